"""Field values <-> the bytes of frames, as `wire.layout` places them (little endian, sub-byte values low bits first)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..wire.codec import Codec, Field
from ..wire.layout import frame_runs
from .casts import decode, encode

# Integers as wide as the codes of one byte, a byte each.
_WIDE = {4: torch.int16, 2: torch.int32, 1: torch.int64}


def write_frames(
    codec: Codec, out: Tensor, elements: int, values: dict[str, Tensor], version: Tensor | None = None
) -> None:
    """Fill `out` (uint8 [frames, bytes of a frame], zeros before) with frames of `elements` elements.

    values   field name -> float32 or int32, broadcastable to [frames, groups, length], [frames, groups, 1] or [frames, 1, 1]
    version  int32[1], for codecs with `both` state
    """
    fields = {f.name: f for f in codec.fields}
    for run in frame_runs(codec, elements)[0]:
        if run.field in fields:
            f = fields[run.field]
            shape = {"array": (run.values // max(f.length, 1), f.length), "group": (run.values, 1), "frame": (1, 1)}[
                f.per
            ]
            data = _pack(f, values[run.field].expand(out.shape[0], *shape).reshape(out.shape[0], run.values))
        else:
            assert version is not None
            data = version.to(torch.int32).expand(out.shape[0], 1).contiguous().view(torch.uint8)
        out[:, run.offset : run.offset + run.bytes] = data


def read_frames(codec: Codec, frames: Tensor, elements: int) -> tuple[dict[str, Tensor], Tensor | None]:
    """The fields of `frames` (uint8 [frames, bytes of a frame] of `elements` elements) as the receiver sees them: field name -> float32 or
    int32 [frames, groups, length], [frames, groups, 1] or [frames, 1, 1]; and the versions (int32 [frames]) or None."""
    fields = {f.name: f for f in codec.fields}
    values: dict[str, Tensor] = {}
    version = None
    for run in frame_runs(codec, elements)[0]:
        # A copy, because a view of another type wants alignment that a slice of the user's bytes may lack.
        data = frames[:, run.offset : run.offset + run.bytes].clone(memory_format=torch.contiguous_format)
        if run.field in fields:
            f = fields[run.field]
            shape = {"array": (-1, f.length), "group": (-1, 1), "frame": (1, 1)}[f.per]
            values[run.field] = _unpack(f, data).reshape(frames.shape[0], *shape)
        else:
            version = data.view(torch.int32).reshape(-1)
    return values, version


def _pack(f: Field, v: Tensor) -> Tensor:
    code = v if f.integer else encode(v, f.type)
    if f.bits == 32:
        return code.contiguous().view(torch.uint8)
    if f.bits == 16:
        return code.to(torch.int16).contiguous().view(torch.uint8)
    code = code.to(torch.uint8)
    if f.bits == 8:
        return code
    # Codes that share a byte, seen as one wide integer, are brought together by shifts of it.
    code &= (1 << f.bits) - 1
    wide = code.contiguous().view(_WIDE[f.bits])
    packed = wide
    for i in range(1, 8 // f.bits):
        packed = packed | wide >> i * (8 - f.bits)
    return packed.to(torch.uint8)


def _unpack(f: Field, data: Tensor) -> Tensor:
    if f.bits == 32:
        code = data.view(torch.int32)
    elif f.bits == 16:
        code = data.view(torch.int16).to(torch.int32) & 0xFFFF
    else:
        code = data
        if f.bits < 8:
            wide = spread = data.to(_WIDE[f.bits])
            for i in range(1, 8 // f.bits):
                spread = spread | wide << i * (8 - f.bits)
            code = spread.view(torch.uint8) & (1 << f.bits) - 1
        code = code.to(torch.int32)
    if not f.integer:
        return decode(code, f.type)
    if f.type[0] == "s":
        half = 1 << f.bits - 1
        code = (code ^ half) - half
    return code
