"""--draw: a picture of a collective or of a compressor's wire, as a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..pictures.picture import FORMATS, Picture
from ..pictures.schedule import Schedule, plan_world
from ..pictures.spacetime import MOST_RANKS, space_time
from ..pictures.timeline import timeline
from ..pictures.wire import wire_layout
from ..pipeline import Collective, World
from ..plan.show import COUNT
from ..wire.codec import Codec


def draw(collective: Collective, world: World, dtype: str, args: argparse.Namespace) -> int:
    """Write the picture that --picture names. Raises ValueError for a file that is neither .svg nor .png."""
    _check(args.draw)
    kind = args.picture or "steps"
    if kind == "wire":
        return draw_wires(collective.program(dtype).codecs, args)
    s = plan_world(collective, world, count=args.count or COUNT, dtype=dtype)
    _save(_of(s, kind, args), args.draw)
    if kind == "steps" and s.world > MOST_RANKS:
        print(f"  one rank stands for all {s.world}: up to {MOST_RANKS} ranks are drawn")
    return 0


def _of(s: Schedule, kind: str, args: argparse.Namespace) -> Picture:
    if kind == "timeline":
        return timeline(s, rank=args.rank, slices=args.slices or 1)
    if kind == "links":
        try:
            from ..pictures.charts import link_bytes
        except ImportError as e:  # no matplotlib
            raise RuntimeError(f"--picture links: {e}") from e
        return link_bytes(s)
    return space_time(s)


def draw_wires(codecs: dict[str, Codec], args: argparse.Namespace) -> int:
    """Write a compressor's wire; those of several, by their names in the text, to FILE-NAME.svg."""
    _check(args.draw)
    if args.picture not in (None, "wire"):
        raise ValueError(f"--picture {args.picture} is for a collective; a compressor has --picture wire")
    if not codecs:
        raise ValueError("it has no compressor, so there is no wire to draw")
    for name, codec in codecs.items():
        path = args.draw if len(codecs) == 1 else args.draw.with_stem(f"{args.draw.stem}-{name}")
        _save(wire_layout(codec), path)
    return 0


def _check(path: Path) -> None:
    """Before anything is proven."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--draw {path}: pictures are written as {' or '.join(FORMATS)}")


def _save(picture: Picture, path: Path) -> None:
    print(f"wrote {picture.save(path)}")
