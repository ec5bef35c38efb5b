"""A Fold as several of a few frames each: what a CPU evaluates stays in its cache, and no large temporary is made. Changes no bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..plan.ops import Signature
from ..wire.codec import FRAME, Codec
from ..wire.layout import frame_bytes
from .casts import TORCH_DTYPES
from .launch import FoldArgs, Place, StatePlaces

FRAMES = 16


def batches(fold: FoldArgs, signature: Signature, codecs: dict[str, Codec]) -> Iterator[FoldArgs]:
    """`fold` in runs of FRAMES frames, in order."""
    step = FRAMES * FRAME
    if fold.length <= step:
        yield fold
        return
    opened = codecs[signature.in_codec] if signature.in_codec else None
    closed = codecs[signature.out_codec] if signature.out_codec else None

    def dense(place: int | Place, first: int) -> int | Place:
        return place + first if isinstance(place, int) else replace(place, offset=place.offset + 4 * first)

    def wires(places: tuple[Place, ...], codec: Codec | None, first: int) -> tuple[Place, ...]:
        at = first // FRAME * frame_bytes(codec) if codec is not None else 0
        return tuple(replace(p, offset=p.offset + at) for p in places)

    def states(places: dict[str, StatePlaces], codec: Codec | None, first: int) -> dict[str, StatePlaces]:
        sizes = {s.name: TORCH_DTYPES[s.dtype].itemsize for s in codec.states} if codec is not None else {}
        return {
            name: StatePlaces(*(replace(p, offset=p.offset + first * sizes[name]) for p in (both.current, both.next)))
            for name, both in places.items()
            if name in sizes
        }

    for first in range(0, fold.length, step):
        yield FoldArgs(
            length=min(step, fold.length - first),
            start=fold.start + first,
            dense=tuple(dense(p, first) for p in fold.dense),
            wires=wires(fold.wires, opened, first),
            places=wires(fold.places, closed, first),
            sinks=tuple(dense(p, first) for p in fold.sinks),
            key=fold.key,
            state=states(fold.state, closed, first),
            wire_states=tuple(states(s, opened, first) for s in fold.wire_states),
            copy_to=fold.copy_to + first if fold.copy_to is not None else None,
        )
