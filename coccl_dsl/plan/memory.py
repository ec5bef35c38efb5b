"""Where wires lie in a rank's arena: host integers, a pure function of plan, capacity and slices, so each rank knows every rank's places.

A chunk is cut into `depth * passes` pieces. `depth` pieces are in flight, each in places of its own; a call whose wires do not fit the arena
runs in passes, one after the other, over the same places. Borders are set by the capacity and never depend on a call's count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..wire.codec import FRAME, TYPES, Codec
from ..wire.layout import align, frame_count, wire_bytes
from .cut import Cut, cut, largest_piece
from .ops import Exchange, Plan


@dataclass(frozen=True)
class Layout:
    """offsets[k][slot]: byte offset of a slot for slice k. largest: extent -> elements of the longest chunk. size: bytes in all."""

    depth: int
    passes: int
    min_bytes: int
    largest: dict[int, int]
    offsets: tuple[tuple[int, ...], ...]
    size: int

    @property
    def pieces(self) -> int:
        return self.depth * self.passes


def lay_out(plan: Plan, raw: Codec, capacity: int, depth: int, min_bytes: int = 0, limit: int | None = None) -> Layout:
    """Places for calls of at most `capacity` elements, in at most `limit` bytes. raw: the codec of chunks below `min_bytes`.

    Raises ValueError where even single frames do not fit.
    """
    largest = cut(plan, capacity).lengths
    longest = max(largest.values(), default=0)
    passes = 1
    while True:
        made = _placed(plan, raw, largest, depth, passes, min_bytes)
        if limit is None or made.size <= limit:
            return made
        if longest <= FRAME * depth * passes:
            raise ValueError(f"`{plan.name}` needs {made.size} bytes of wire memory, there are {limit}")
        passes *= 2


def doubled(layout: Layout) -> Layout:
    """The same places twice: calls take them in turn, and offsets[1] are those of odd calls."""
    assert layout.pieces == 1
    odd = tuple(at + layout.size for at in layout.offsets[0])
    return replace(layout, offsets=(*layout.offsets, odd), size=2 * layout.size)


def _placed(plan: Plan, raw: Codec, largest: dict[int, int], depth: int, passes: int, min_bytes: int) -> Layout:
    plain = min_bytes * 8 // TYPES[plan.dtype][0]

    def needed(kind: str, id: int) -> int:
        """Bytes of the largest piece of a wire or a scratch."""
        info = plan.wires[id] if kind == "wire" else plan.scratch[id]
        length = largest_piece(largest[info.extent], depth * passes)
        if length == 0:
            return 0
        if kind == "scratch":
            basis = max(plan.scratch[id].basis, 1)
            return 4 * (-(-length // basis) * basis)
        codec = plan.codecs[plan.wires[id].codec]
        sizes = [wire_bytes(c, length) for c in (codec, codec.first) if c is not None]
        return max(wire_bytes(raw, min(length, plain)), *sizes)

    sizes = [align(max(needed(*member) for member in members)) for members in plan.slots]
    for step in plan.steps:
        if isinstance(step, Exchange) and step.gather:
            beside = [plan.wires[w].slot for w in step.gather]
            largest_one = max(sizes[slot] for slot in beside)
            for slot in beside:
                sizes[slot] = largest_one
    offsets, at = [], 0
    for _ in range(depth):
        row = []
        for size in sizes:
            row.append(at)
            at += size
        offsets.append(tuple(row))
    return Layout(depth, passes, min_bytes, largest, tuple(offsets), max(at, 16))


def passes_of(layout: Layout, made: Cut, uneven: bool) -> int:
    """Passes of one call, alike on all ranks: fewer where it is short. Lengths of uneven splits are not common knowledge, so all of them."""
    if uneven or layout.passes == 1:
        return layout.passes
    held = {e: -(-frame_count(n) // layout.pieces) * layout.depth for e, n in layout.largest.items()}
    return max((-(-frame_count(n) // held[e]) for e, n in made.lengths.items() if n), default=1)


def incoming(plan: Plan, layout: Layout) -> list[list[tuple[int, int, list[int]]]]:
    """Where mapped peers store: for each slice, or even and odd calls, (source, level, offsets in the arena) of each level of each source."""
    table = []
    for k in range(len(layout.offsets)):
        rows: dict[tuple[int, int], list[int]] = {}
        for step in plan.steps:
            if isinstance(step, Exchange):
                for t in step.recvs:
                    if t.direct:
                        places = [layout.offsets[k][plan.wires[w].slot] for w in t.wires]
                        rows.setdefault((t.peer, step.level), []).extend(places)
        table.append([(peer, level, places) for (peer, level), places in rows.items()])
    return table
