"""What names mean, block by block, while a collective is resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..diagnostics import Span

if TYPE_CHECKING:
    from ..wire.codec import Codec


class Stop(Exception):
    """This statement has an error that was reported; go on with the next."""


class Scope:
    """Names of a block. `masked` blocks belong to a `when`: what `as` names in them belongs to the block around."""

    def __init__(self, parent: Scope | None, masked: bool = False):
        self.parent, self.masked = parent, masked
        self.names: dict[str, object] = {}
        self.spans: dict[str, Span] = {}

    def find(self, name: str) -> object | None:
        scope = self.holder(name)
        return scope.names[name] if scope else None

    def holder(self, name: str) -> Scope | None:
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.parent
        return scope

    def place(self, name: str) -> Span | None:
        """Where a visible name was declared."""
        scope = self.holder(name)
        return scope.spans.get(name) if scope else None

    def add(self, name: str, what: object, span: Span) -> None:
        self.names[name], self.spans[name] = what, span

    def all(self) -> list[str]:
        return list(self.names) + (self.parent.all() if self.parent else [])

    @property
    def receiving(self) -> Scope:
        """The block that a name after `as` belongs to."""
        scope = self
        while scope.masked and scope.parent is not None:
            scope = scope.parent
        return scope


class IntName:
    """A name for an integer, or for a condition when `truth`."""

    def __init__(self, slot: int, varies: bool, truth: bool = False):
        self.slot, self.varies, self.truth = slot, varies, truth


class CompressorName:
    """`codec` is None when its text has errors."""

    def __init__(self, name: str, codec: Codec | None):
        self.name, self.codec = name, codec


class AxisName:
    def __init__(self, index: int):
        self.index = index


class Broken:
    """A name whose declaration has an error: reading it says nothing more."""
