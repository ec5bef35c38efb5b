"""Frames: the exact bytes of a compressor's wire.

A wire is a run of frames. A frame holds 32768 elements of one chunk (the last frame of a chunk is shorter) and is planar: each field's run is
16-byte aligned, array fields in wire order, then group fields, then frame fields, then for `both` state one u32 version. Element i of a sub-byte
array sits in byte i * bits / 8, low bits first. A short last group is padded to a whole one. Slices and messages are whole frames, so bytes
never depend on the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .codec import FRAME, Codec

ALIGN = 16


def align(n: int) -> int:
    return (n + ALIGN - 1) // ALIGN * ALIGN


def live_elements(codec: Codec, count: int) -> int:
    """Elements on the wire of a chunk of `count`: whole Hadamard blocks for a codec in a basis."""
    return count if codec.basis <= 1 else (count + codec.basis - 1) // codec.basis * codec.basis


@dataclass(frozen=True)
class Run:
    """Where a field lies in a frame: `offset` and `bytes` from the frame's start; `values` numbers in it."""

    field: str
    offset: int
    bytes: int
    values: int


@lru_cache(maxsize=4096)
def frame_runs(codec: Codec, elements: int) -> tuple[tuple[Run, ...], int]:
    """Runs of a frame of 1..32768 elements and the frame's size in bytes. The version, if any, is the run named `version`."""
    assert 0 < elements <= FRAME
    groups = -(-elements // codec.group)
    offset, runs = 0, []
    for f in codec.fields:
        values = {"array": groups * f.length, "group": groups, "frame": 1}[f.per]
        size = values * f.bits // 8
        runs.append(Run(f.name, offset, size, values))
        offset = align(offset + size)
    if codec.versioned:
        runs.append(Run("version", offset, 4, 1))
        offset = align(offset + 4)
    return tuple(runs), offset


def frame_bytes(codec: Codec, elements: int = FRAME) -> int:
    return frame_runs(codec, elements)[1]


def wire_bytes(codec: Codec, count: int) -> int:
    """Bytes of the wire of a chunk of `count` elements; 0 for an empty one."""
    n = live_elements(codec, count)
    full, rest = divmod(n, FRAME)
    return full * frame_bytes(codec) + (frame_bytes(codec, rest) if rest else 0)


def frame_count(count: int) -> int:
    return -(-count // FRAME)


def bits_per_value(codec: Codec) -> float:
    """Exact over whole frames."""
    return frame_bytes(codec) * 8 / FRAME
