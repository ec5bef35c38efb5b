"""Lengths of one call: how the user's tensors are cut into chunks, chunks into slices. Host integers only; the plan never depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..wire.codec import FRAME
from ..wire.layout import frame_count
from .ops import Plan


@dataclass(frozen=True)
class Cut:
    """lengths: extent -> elements. inputs / outputs: element offset of each chunk in the input / output tensor, which have `input_count` and
    `output_count` elements."""

    lengths: dict[int, int]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_count: int
    output_count: int


def _offsets(extents: Sequence[int], lengths: dict[int, int]) -> tuple[tuple[int, ...], int]:
    at, found = 0, []
    for e in extents:
        found.append(at)
        at += lengths[e]
    return tuple(found), at


def chunk_length(count: int, chunks: int, alignment: int) -> int:
    """Length of all but the trailing chunks: ceil(count / chunks), rounded up to whole groups."""
    whole = -(-count // chunks)
    return -(-whole // alignment) * alignment


def _extents(plan: Plan) -> set[int]:
    return {*plan.buffers.inputs, *plan.buffers.outputs, *(w.extent for w in plan.wires.values())}


def takes_splits(plan: Plan) -> bool:
    """Whether calls may say how much goes to and comes from each rank: an all_to_all in which a rank sees its own chunks only."""
    return plan.kind == "all_to_all" and all(plan.rank in divmod(e, plan.world) for e in _extents(plan))


def cut(plan: Plan, count: int, splits: tuple[Sequence[int], Sequence[int]] | None = None) -> Cut:
    """Cut a call whose input has `count` elements (the output's count for the receiver of a send_recv).

    splits: elements to send to, and receive from, each rank; all_to_all only. Raises ValueError where the count does not fit.
    """
    b, n = plan.buffers, plan.world
    extents = _extents(plan)
    match plan.kind:
        case "reduce_scatter" | "all_to_all" if count % n and splits is None:
            raise ValueError(f"{plan.kind} over {n} ranks takes a multiple of {n} elements, not {count}")
        case "reduce_scatter":
            lengths = dict.fromkeys(extents, count // n)
        case "all_gather":
            lengths = dict.fromkeys(extents, count)
        case "all_to_all" if splits is None:
            lengths = dict.fromkeys(extents, count // n)
        case "all_to_all":
            send, receive = splits or ((), ())
            if len(send) != n or len(receive) != n or sum(send) != count:
                raise ValueError(f"splits {list(send)} and {list(receive)} do not fit {count} elements over {n} ranks")
            if send[plan.rank] != receive[plan.rank]:
                raise ValueError(
                    f"rank {plan.rank} keeps {send[plan.rank]} elements for itself but expects {receive[plan.rank]}"
                )
            lengths = {plan.rank * n + j: int(c) for j, c in enumerate(send)}
            lengths |= {j * n + plan.rank: int(c) for j, c in enumerate(receive)}
            if not takes_splits(plan):
                raise ValueError(f"`{plan.name}` passes other ranks' chunks on, so it takes even splits only")
        case _:
            chunks = max(len(b.inputs), len(b.outputs))
            step = chunk_length(count, chunks, plan.alignment)
            lengths = {i: max(0, min(step, count - i * step)) for i in range(chunks)}
    inputs, input_count = _offsets(b.inputs, lengths)
    outputs, output_count = _offsets(b.outputs, lengths)
    return Cut(lengths, inputs, outputs, input_count, output_count)


@dataclass(frozen=True)
class Piece:
    """Part of a chunk that one slice handles: elements [start, start + length)."""

    start: int
    length: int


def piece(length: int, slice: int, slices: int) -> Piece:
    """Slice number `slice` of `slices` of a chunk: whole frames, but for the chunk's tail."""
    frames = frame_count(length)
    first, last = frames * slice // slices, frames * (slice + 1) // slices
    start = first * FRAME
    return Piece(start, max(0, min(last * FRAME, length) - start))


def largest_piece(length: int, slices: int) -> int:
    """No slice of a chunk of at most `length` elements is longer."""
    frames = frame_count(length)
    return min(length, -(-frames // slices) * FRAME)
