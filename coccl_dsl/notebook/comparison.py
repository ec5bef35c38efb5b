"""Collectives side by side, on one machine: bytes, steps, lossy steps, error on real data, predicted time. No GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch

from ..cli.progress import track
from ..cli.show import columns
from ..pictures.errors import errors
from ..pictures.schedule import plan_world, sizes_of
from ..pictures.timeline import microseconds, predicted_time
from ..pipeline import Collective, World, load
from ..plan.model import GPU, Links
from ..plan.show import ratio
from ..runtime.dtypes import dtype_name
from ..shown import Printed
from .displays import bundle, table


@dataclass(frozen=True)
class Row:
    """sent: bytes of the busiest rank; plain: those messages in the tensor's dtype; error: of the result, rms / rms; seconds: predicted."""

    collective: str
    compressor: str
    ranks: int
    steps: int
    lossy: int
    sent: int
    plain: int
    error: float
    seconds: float


@dataclass(frozen=True, repr=False)
class Comparison(Printed):
    """What `compare` found: a table in a notebook, columns in a terminal."""

    rows: tuple[Row, ...]
    about: str

    def cells(self) -> list[list[str]]:
        return [
            [
                r.collective,
                r.compressor,
                str(r.ranks),
                str(r.steps),
                str(r.lossy),
                f"{r.sent:,}",
                ratio(r.sent, r.plain),
                f"{r.error:.2e}",
                microseconds(r.seconds),
            ]
            for r in self.rows
        ]

    def __repr__(self) -> str:
        return str(self)


HEAD = (
    "collective",
    "compressor",
    "ranks",
    "steps",
    "lossy",
    "bytes sent",
    "than dtype",
    "relative error",
    "predicted",
)
RIGHT = range(2, 9)


@bundle.register
def _(c: Comparison) -> dict[str, str]:
    html = f"<div>{table(c.cells(), HEAD, RIGHT)}<small>{c.about}</small></div>"
    return {"text/html": html, "text/plain": columns(HEAD, c.cells(), RIGHT) + f"\n  {c.about}"}


@lru_cache(maxsize=2)
def real_gradients(ranks: int, count: int = 1 << 17) -> tuple[torch.Tensor, ...]:
    """Part of the gradients that each of `ranks` would bring to an all-reduce: `count` elements of the MLPs of a small language model after one
    step (cli/gradients.py), float32."""
    from ..cli.gradients import gradients

    return tuple(gradients(r, ranks)["mlp"][:count] for r in track(range(ranks), "gradients"))


def compare(
    collectives: Sequence[Collective | str],
    compressors: Sequence[str] = ("int8",),
    *,
    ranks: int | Mapping[str, int] = 4,
    data: Sequence[torch.Tensor] | None = None,
    links: Links = GPU,
) -> Comparison:
    """Each collective with each compressor in every place where its text compresses.

    ranks  how many, or a mesh's sizes; collectives over ranks are laid on it
    data   one tensor a rank; real gradients unless given (`real_gradients`)
    links  of the predicted time

    Raises CompileError and ValueError as `schedule` does.
    """
    count = prod(ranks.values()) if isinstance(ranks, Mapping) else ranks
    loaded = [load(c) if isinstance(c, str) else c for c in collectives]
    xs = list(data) if data is not None else list(real_gradients(count))
    if len(xs) != count:
        raise ValueError(f"{len(xs)} tensors for {count} ranks")
    what = "real gradients" if data is None else "the given data"
    pairs = [(c, q) for c in loaded for q in compressors]
    mesh = ranks if isinstance(ranks, Mapping) else None
    rows = tuple(_row(c, q, ranks if c.axes else count, mesh, xs, links) for c, q in track(pairs, "comparing"))
    dtype = dtype_name(xs[0].dtype)
    return Comparison(
        rows, f"{xs[0].numel():,} elements of {dtype} a rank, {what}; times by the model of links, no measurement"
    )


def _row(
    c: Collective,
    compressor: str,
    ranks: int | Mapping[str, int],
    mesh: Mapping[str, int] | None,
    xs: list[torch.Tensor],
    links: Links,
) -> Row:
    dtype = dtype_name(xs[0].dtype)
    bound: dict[str, Any] = dict.fromkeys(c.program(dtype).codecs, compressor)
    s = plan_world(c, World(sizes_of(c, ranks)), count=xs[0].numel(), dtype=dtype, compressors=bound)
    if isinstance(ranks, int) and mesh is not None:
        s = s.laid_on(mesh)
    found = errors(c, xs, mesh=dict(ranks) if isinstance(ranks, Mapping) else None, **bound)
    seconds = predicted_time(s, links)
    return Row(c.name, compressor, s.world, s.trace.levels, s.trace.lossy, max(s.sent), s.plain, found.end, seconds)
