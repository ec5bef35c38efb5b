"""What a back end is given: a signature, and one `FoldArgs` a Fold with this call's lengths and places filled in.

A back end `prepare`s a launch once per (plan step, slice, count) and `run`s it with the user's tensors of each call, so a call does no more
than launch. `EagerBackend` (codegen/eager.py, any torch device: the reference) and `TritonBackend` (codegen/triton_backend.py, CUDA or
Triton's interpreter) implement it and agree bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..plan.ops import Signature
from ..wire.codec import Codec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Place:
    """A byte offset into a buffer: this rank's arena, a peer's mapped arena, or a state tensor. uint8 tensors, 16-byte aligned places."""

    buffer: torch.Tensor
    offset: int

    @property
    def address(self) -> int:
        return self.buffer.data_ptr() + self.offset


@dataclass(frozen=True)
class StatePlaces:
    """One state of one chunk: the values before the call, where the new ones go, and the int32[1] version tensor (`both` state only).

    `current` and `next` hold this piece's values, one an element (rounded up to whole groups), in the state's dtype.
    """

    current: Place
    next: Place


@dataclass(frozen=True)
class FoldArgs:
    """One Fold of a launch.

    length  elements of this piece of the chunk: whole frames, but for the chunk's tail; never 0
    start   index in the chunk of the piece's first element, a multiple of 32768
    dense   one entry a dense source: element offset into x (role input), or the place of a float32 scratch
    wires   places of the opened wires, in order
    places  where the wire goes (0..d places)
    sinks   one entry a sink: element offset into y (role output), or the place of a float32 scratch
    key     value number for stochastic rounding, 64 bits
    state   state name -> places, of the out codec; wire_states: the same for each opened wire
    copy_to a row that does not fold: elements dense[0].. of x go to this offset of y as they are
    """

    length: int
    start: int
    dense: tuple[int | Place, ...]
    wires: tuple[Place, ...]
    places: tuple[Place, ...]
    sinks: tuple[int | Place, ...]
    key: int = 0
    state: dict[str, StatePlaces] = field(default_factory=dict)
    wire_states: tuple[dict[str, StatePlaces], ...] = ()
    copy_to: int | None = None


@dataclass(frozen=True)
class OpContext:
    """What all launches of an op share.

    dtype   f32, bf16 or f16
    factor  None for sum; else each input element is multiplied by float32(factor) when read
    codecs  key -> codec (the plan's, or their `first` in the first call after a reset)
    rng     int64[2] on the op's device: seed, call number
    version int32[1] on the op's device: version of the `both` states, written into wires and compared when they are opened (a mismatch
            decompresses to NaN and sets flags[0])
    flags   int32[1 + n] on the op's device: [0] counts version mismatches, then one counter a codec flag, in the order of `flag_names`
    """

    dtype: str
    factor: float | None
    codecs: dict[str, Codec]
    rng: torch.Tensor
    version: torch.Tensor
    flags: torch.Tensor
    flag_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class UserKernel:
    """A kernel whose first two arguments are the addresses of x and y. variants: aligned -> (function, bytes of shared memory); the aligned one
    is for offsets and addresses that keep 16 bytes."""

    variants: dict[bool, tuple[int, int]]
    offsets_aligned: bool


class Prepared(Protocol):
    """user_kernel: of a launch on a GPU that touches x or y."""

    user_kernel: UserKernel | None

    def run(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """x, y: flat contiguous tensors of the op's dtype (the user's input and output)."""


class Backend(Protocol):
    def prepare(
        self, signature: Signature, folds: list[FoldArgs], context: OpContext, programs: int | None = None
    ) -> Prepared:
        """programs: run as at most so many programs, to leave room for other kernels; no bit depends on it."""
        ...
