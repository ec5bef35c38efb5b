"""A piece of a chunk, cut into batches of frames of one size: whole frames together, the chunk's short last frame alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..wire.codec import FRAME, Codec
from ..wire.layout import frame_bytes
from .casts import TORCH_DTYPES
from .evaluate import Batch

# Frames evaluated at a time: every node of a graph is kept until its batch is done. On CPU few, which stay in cache.
_BATCH, _CPU_BATCH = 128, 16


@dataclass(frozen=True)
class Part:
    """`frames` frames of `elements` elements each, from element `first` and frame `frame` of the piece."""

    first: int
    frame: int
    frames: int
    elements: int

    @property
    def size(self) -> int:
        return self.frames * self.elements

    def batch(self, codec: Codec, device: torch.device) -> Batch:
        """What to evaluate graphs in; the caller adds x, states, fields and draws."""
        groups = -(-self.elements // codec.group)
        live = None
        if groups * codec.group != self.elements:
            index = torch.arange(groups * codec.group, device=device)
            live = (index < self.elements).view(1, groups, codec.group)
        return Batch(codec, self.frames, groups, device, live)

    def frames_of(self, wire: Tensor, codec: Codec) -> Tensor:
        """This part of the piece's wire, a view [frames, bytes of a frame]."""
        begin = self.frame * frame_bytes(codec)
        size = frame_bytes(codec, self.elements)
        return wire[begin : begin + self.frames * size].view(self.frames, size)

    def take(self, values: Tensor, batch: Batch) -> Tensor:
        """Elements of the piece as [frames, groups, group], zeros at the end."""
        whole = self.frames * batch.groups * batch.codec.group
        part = values[self.first : self.first + self.size]
        return torch.nn.functional.pad(part, (0, whole - self.size)).view(self.frames, batch.groups, batch.codec.group)

    def put(self, out: Tensor, values: Tensor) -> None:
        """Write [frames, groups, group] into the piece's elements, and into the padding where `out` has it; casts to out's dtype."""
        flat = values.reshape(-1)
        end = min(self.first + flat.numel(), out.numel())
        out[self.first : end] = flat[: end - self.first]


def parts(n: int, device: torch.device) -> Iterator[Part]:
    """The parts of a piece of `n` elements; none where it is empty."""
    full, rest = divmod(n, FRAME)
    step = _CPU_BATCH if device.type == "cpu" else _BATCH
    for frame in range(0, full, step):
        yield Part(frame * FRAME, frame, min(step, full - frame), FRAME)
    if rest:
        yield Part(full * FRAME, full, 1, rest)


class States:
    """The states of a piece of `n` elements, as given by the caller. Raises ValueError where one is too short."""

    def __init__(self, codec: Codec, n: int, given: dict[str, Tensor] | None, device: torch.device):
        self.codec, self.device = codec, device
        self.whole = -(-n // codec.group) * codec.group
        self.given = {s.name: given[s.name] for s in codec.states if given and s.name in given}
        for name, v in self.given.items():
            if v.numel() < n:
                raise ValueError(f"state `{name}` of {codec.name} has {v.numel()} values, the piece {n}")

    def of(self, part: Part, batch: Batch) -> dict[str, Tensor]:
        """float32 [frames, groups, group], 0.0 where not live."""
        return {name: part.take(v, batch).to(torch.float32) for name, v in self.given.items()}

    def fresh(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Zeros for the new values of these states: whole groups, in the state's dtype."""
        dtypes = {s.name: TORCH_DTYPES[s.dtype] for s in self.codec.states}
        return {name: torch.zeros(self.whole, dtype=dtypes[name], device=self.device) for name in names}
