"""A resolved algorithm: every name is a slot, every expression an Int, a Condition, a Chunk or a Wire, compressors are bound.

Int expressions are kept as Python source over `E`, the list of a rank's integers, and compiled once; so a world of 256 ranks is checked in
seconds. `varies` marks what may differ between ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ..diagnostics import Span
from . import ast
from .integers import FUNCTIONS

if TYPE_CHECKING:
    from ..wire.codec import Codec

KINDS: dict[str, tuple[str, ...]] = {
    "all_reduce": (),
    "reduce_scatter": (),
    "all_gather": (),
    "all_to_all": (),
    "broadcast": ("root",),
    "reduce": ("root",),
    "send_recv": ("source", "target"),
}


@dataclass(frozen=True)
class IntExpr:
    """`code` is Python source over E. `truth` marks a Condition. `parts` are its operands."""

    span: Span
    code: str
    varies: bool
    syntax: ast.Expr
    truth: bool = False
    parts: tuple[IntExpr, ...] = ()

    @cached_property
    def run(self) -> Callable[[list[int]], int]:
        return eval(f"lambda E: {self.code}", dict(FUNCTIONS))  # noqa: S307 - made here from the grammar's operators alone

    def culprit(self, E: list[int]) -> IntExpr:
        """The innermost part without a result, where the whole has none."""
        for part in self.parts:
            try:
                part.run(E)
            except (ZeroDivisionError, ValueError):
                return part.culprit(E)
        return self


@dataclass(frozen=True)
class Type:
    """A chunk (`wire` None) in `basis`, or a wire of the compressor declared as `wire`."""

    wire: str | None = None
    basis: int = 0

    def __str__(self) -> str:
        if self.wire:
            return f"a wire of `{self.wire}`"
        return f"a chunk in h{self.basis}" if self.basis else "a chunk"


# An index is an IntExpr, a pair (low, high), or None for `:`.
Index = IntExpr | tuple[IntExpr, IntExpr] | None


@dataclass(frozen=True)
class BufferSpec:
    span: Span
    id: int
    name: str
    role: str
    dims: tuple[IntExpr, ...]
    basis: int


@dataclass(frozen=True)
class VarSpec:
    """A name for values: declared by `wire`, `let` or `as`. dims: declared places; None when it takes the shape of its value."""

    span: Span
    id: int
    name: str
    type: Type
    dims: tuple[IntExpr, ...] | None


@dataclass(frozen=True)
class BufferRef:
    span: Span
    type: Type
    buffer: BufferSpec
    index: tuple[Index, ...]


@dataclass(frozen=True)
class VarRef:
    span: Span
    type: Type
    var: VarSpec
    index: tuple[Index, ...] | None


@dataclass(frozen=True)
class Close:
    """compress(q, value); `site` numbers the compress calls of the text."""

    span: Span
    type: Type
    value: ValueExpr
    site: int


@dataclass(frozen=True)
class Open:
    span: Span
    type: Type
    wire: ValueExpr


@dataclass(frozen=True)
class Add:
    span: Span
    type: Type
    left: ValueExpr
    right: ValueExpr


ValueExpr = BufferRef | VarRef | Close | Open | Add


@dataclass(frozen=True)
class LetInt:
    span: Span
    slot: int
    value: IntExpr


@dataclass(frozen=True)
class LetValue:
    span: Span
    var: VarSpec
    value: ValueExpr


@dataclass(frozen=True)
class Loop:
    span: Span
    name: str
    slot: int
    low: IntExpr | None
    high: IntExpr
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Mask:
    span: Span
    test: IntExpr
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class SendTo:
    """axis: index of the mesh axis along which the one coordinate moves, or -1 for all coordinates (one for `ranks`).
    fresh: the target is first named here."""

    span: Span
    payload: ValueExpr
    axis: int
    coordinates: tuple[IntExpr, ...]
    dest_span: Span
    target: VarRef | BufferRef
    fresh: bool


@dataclass(frozen=True)
class Store:
    span: Span
    target: BufferRef | VarRef
    value: ValueExpr
    accumulate: bool
    syntax: ast.Assign


@dataclass(frozen=True)
class PhaseBlock:
    span: Span
    name: str
    body: tuple[Statement, ...]


Statement = LetInt | LetValue | Loop | Mask | SendTo | Store | PhaseBlock


@dataclass(frozen=True)
class Program:
    """axes: (axis name or None, coordinate name, size name); coordinates are slots 0.., sizes follow; params name root, source, target."""

    name: str
    kind: str
    syntax: ast.Collective
    axes: tuple[tuple[str | None, str, str], ...]
    params: dict[str, int]
    slots: int
    slot_names: dict[int, str]
    sizes: tuple[tuple[int, IntExpr], ...]
    buffers: tuple[BufferSpec, ...]
    vars: tuple[VarSpec, ...]
    codecs: dict[str, Codec]
    requires: tuple[ast.Require, ...]
    divergent: bool
    body: tuple[Statement, ...]
    dtype: str
    depths: tuple[int, ...] = (1,)
    overlaps: tuple[tuple[str, str], ...] = ()
    phases: tuple[str, ...] = ()
    sites: dict[int, Span] = field(default_factory=dict)

    @property
    def is_mesh(self) -> bool:
        return self.axes[0][0] is not None
