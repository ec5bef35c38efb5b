"""A table of times measured on this machine, from which `auto` chooses: torch's own collective, or a compressed one, over which transport.

`coccl-bench --calibrate` measures and writes it; rank 0 of a group reads it, and all ranks go by rank 0's (runtime/agreement.py). A table says
nothing of worlds, links or collectives that were not measured: there the alpha-beta model of plan/model.py decides.

Times of a compressed call go by its number of elements (its wire depends on nothing else), those of torch's own by bytes. A compressor that was
not measured counts as the measured one with the next more bits a value.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import exp, log
from pathlib import Path
from typing import Any

SCHEMA = 1
NATIVE = "native"
MODES = ("eager", "graph")


@dataclass(frozen=True)
class Place:
    """What times belong to. device: its name; link: what torch's own collectives go over (nccl p2p, nccl shm, nccl net, gloo); nodes: hosts."""

    device: str
    link: str
    ranks: int
    nodes: int

    def __str__(self) -> str:
        return f"{self.ranks} ranks on {self.nodes} host{'s' * (self.nodes > 1)}, {self.device}, {self.link}"


@dataclass(frozen=True)
class Way:
    """One way to run a collective. name: NATIVE, or an algorithm with a transport and a number of slices; bits: a value of the compressor's."""

    name: str
    transport: str = ""
    slices: int = 0
    bits: float = 0.0

    def __str__(self) -> str:
        if self.name == NATIVE:
            return "torch's own"
        return f"{self.name} over {self.transport}, {self.slices} slice{'s' * (self.slices > 1)}"


@dataclass(frozen=True)
class Curve:
    """Microseconds of one way of one collective in one mode. points: (size, us) in rising order; size: bytes of the larger of input and output
    for torch's own, else elements of it."""

    kind: str
    mode: str
    way: Way
    points: tuple[tuple[int, float], ...]

    def us(self, size: float) -> float:
        """Between points on a line in logarithms; beyond the last in proportion; before the first as there."""
        sizes = [s for s, _ in self.points]
        if size <= sizes[0]:
            return self.points[0][1]
        if size >= sizes[-1]:
            return self.points[-1][1] * size / sizes[-1]
        i = bisect_left(sizes, size)
        (s0, t0), (s1, t1) = self.points[i - 1], self.points[i]
        share = (log(size) - log(s0)) / (log(s1) - log(s0))
        return exp(log(t0) + share * (log(t1) - log(t0)))


@dataclass(frozen=True)
class Verdict:
    """ways: from the best to the worst, each with its time in the mode where it compares worst with torch's own, and that ratio."""

    ways: tuple[tuple[Way, float, float], ...]

    @property
    def best(self) -> Way:
        return self.ways[0][0]

    def text(self) -> str:
        return "\n".join(
            f"  {way!s:<44} {us:12,.1f} us measured   {ratio:.2f} of torch's own" for way, us, ratio in self.ways
        )


@dataclass(frozen=True)
class Table:
    """curves of each place; about: machine, versions, date and command, for people."""

    curves: Mapping[Place, tuple[Curve, ...]]
    about: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        return hashlib.blake2b(self.text().encode(), digest_size=8).hexdigest()

    def text(self) -> str:
        places = [{**asdict(p), "curves": [asdict(c) for c in curves]} for p, curves in self.curves.items()]
        return json.dumps({"schema": SCHEMA, "about": dict(self.about), "places": places}, indent=1)

    def decide(
        self,
        place: Place,
        kind: str,
        elements: int,
        itemsize: int,
        bits: float,
        names: Iterable[str] | None = None,
        transports: Iterable[str] | None = None,
        native: bool = True,
    ) -> Verdict | None:
        """How to run a call of so many elements (the larger of input and output), or None where nothing was measured that fits.

        A way that is slower than torch's own in one mode is not taken for being faster in the other: its worse ratio counts. names, transports:
        the ways that are possible; native=False: torch's own is none of them.
        """
        curves = [c for c in self.curves.get(place, ()) if c.kind == kind]
        allowed = None if transports is None else {*transports}
        known = None if names is None else {*names}
        measured = sorted({c.way.bits for c in curves if c.way.name != NATIVE})
        taken = next((b for b in measured if b >= bits - 1e-9), None)
        own = {c.mode: c.us(elements * itemsize) for c in curves if c.way.name == NATIVE}
        if not own or taken is None:
            return None
        scores: dict[Way, dict[str, float]] = {}
        for c in curves:
            if c.mode not in own:
                continue
            if c.way.name == NATIVE:
                if native:
                    scores.setdefault(c.way, {})[c.mode] = own[c.mode]
            elif (
                c.way.bits == taken
                and (known is None or c.way.name in known)
                and (allowed is None or c.way.transport in allowed)
            ):
                scores.setdefault(c.way, {})[c.mode] = c.us(elements)
        ways = []
        for way, times in scores.items():
            if times.keys() == own.keys():
                mode = max(times, key=lambda m: times[m] / own[m])
                ways.append((way, times[mode], times[mode] / own[mode]))
        ways.sort(key=lambda w: (w[2], w[0].name != NATIVE, str(w[0])))
        return Verdict(tuple(ways)) if ways else None


def parse(text: str) -> Table:
    """Raises ValueError for what is no table, or one of another schema."""
    try:
        found = json.loads(text)
        if found["schema"] != SCHEMA:
            raise ValueError(
                f"schema {found['schema']!r}, this version reads {SCHEMA}: measure again with coccl-bench --calibrate"
            )
        curves = {}
        for p in found["places"]:
            place = Place(p["device"], p["link"], int(p["ranks"]), int(p["nodes"]))
            made = []
            for c in p["curves"]:
                points = tuple((int(size), float(us)) for size, us in c["points"])
                rising = all(a[0] < b[0] for a, b in zip(points, points[1:], strict=False))
                if (
                    not points
                    or not rising
                    or any(us <= 0 or size <= 0 for size, us in points)
                    or c["mode"] not in MODES
                ):
                    raise ValueError(f"a curve of {c['kind']} has points that cannot be")
                made.append(Curve(c["kind"], c["mode"], Way(**c["way"]), points))
            curves[place] = tuple(made)
        return Table(curves, found.get("about", {}))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as e:
        raise ValueError(f"not a calibration table: {type(e).__name__}: {e}") from None


def merged(old: Table | None, new: Table) -> Table:
    """The new table's curves, and the old one's of the places and kinds that the new one has not measured."""
    curves = dict(old.curves) if old is not None else {}
    for place, made in new.curves.items():
        kinds = {c.kind for c in made}
        curves[place] = (*(c for c in curves.get(place, ()) if c.kind not in kinds), *made)
    return Table(curves, new.about)


def table_path() -> Path:
    """COCCL_TABLE, or calibration.json in COCCL_CACHE or ~/.cache/coccl_dsl."""
    if os.environ.get("COCCL_TABLE"):
        return Path(os.environ["COCCL_TABLE"])
    return Path(os.environ.get("COCCL_CACHE") or Path.home() / ".cache" / "coccl_dsl") / "calibration.json"


def read_table(path: Path | None = None) -> Table | None:
    """This machine's table, or None where there is none. Raises ValueError, naming the file, where it cannot be read."""
    path = path if path is not None else table_path()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if os.environ.get("COCCL_TABLE"):
            raise ValueError(f"COCCL_TABLE={path}: there is no such file") from None
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"{path}: {e}") from None
    try:
        return parse(text)
    except ValueError as e:
        raise ValueError(f"{path}: {e}") from None
