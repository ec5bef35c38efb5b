"""The syntax of both languages, a span on every node. `parse` makes these, `resolve` and the compressor compiler read them."""

from __future__ import annotations

from dataclasses import dataclass

from ..diagnostics import Span

# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Number:
    span: Span
    value: int | float


@dataclass(frozen=True)
class Whole:
    """`:` as an index."""

    span: Span


@dataclass(frozen=True)
class Interval:
    """`a : b` as an index."""

    span: Span
    low: Expr
    high: Expr


@dataclass(frozen=True)
class Ref:
    """`name`, `name.field`, `name[index, ...]`."""

    span: Span
    name: str
    field: str | None
    index: tuple[Index, ...] | None
    name_span: Span


@dataclass(frozen=True)
class Call:
    span: Span
    fn: str
    args: tuple[Expr, ...]
    keywords: tuple[tuple[str, Expr], ...]
    fn_span: Span


@dataclass(frozen=True)
class Binary:
    """op is one of + - * / mod div << >> & | ^ == != < <= > >= and or."""

    span: Span
    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Unary:
    """op is `-` or `not`."""

    span: Span
    op: str
    operand: Expr


Expr = Number | Ref | Call | Binary | Unary
Index = Expr | Whole | Interval


@dataclass(frozen=True)
class Binding:
    """A compressor with arguments: `int8(group=128)`. Arguments are numbers, names or bindings."""

    span: Span
    name: str
    args: tuple[tuple[str | None, Value], ...]


Value = Number | Binding


@dataclass(frozen=True)
class Use:
    span: Span
    target: str


# ---------------------------------------------------------------- algorithms


@dataclass(frozen=True)
class Ranks:
    """`ranks r of n` is one axis; a mesh has several. axes: (axis name or None, coordinate name, size name)."""

    span: Span
    axes: tuple[tuple[str | None, str, str], ...]


@dataclass(frozen=True)
class Size:
    span: Span
    name: str
    value: Expr


@dataclass(frozen=True)
class Buffer:
    span: Span
    role: str
    name: str
    dims: tuple[Expr, ...]
    basis: str | None
    basis_span: Span | None


@dataclass(frozen=True)
class CompressorDecl:
    span: Span
    name: str
    binding: Binding


@dataclass(frozen=True)
class WireDecl:
    span: Span
    name: str
    dims: tuple[Expr, ...]
    compressor: str
    compressor_span: Span


@dataclass(frozen=True)
class Require:
    span: Span
    test: Expr


@dataclass(frozen=True)
class Allow:
    span: Span
    what: str


@dataclass(frozen=True)
class Let:
    span: Span
    name: str
    value: Expr
    name_span: Span


@dataclass(frozen=True)
class For:
    span: Span
    name: str
    low: Expr | None
    high: Expr
    body: tuple[Statement, ...]
    name_span: Span


@dataclass(frozen=True)
class When:
    span: Span
    test: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Dest:
    """Where a send goes: a rank, a position along an axis, or coordinates."""

    span: Span
    axis: str | None
    coordinates: tuple[Expr, ...]


@dataclass(frozen=True)
class Send:
    span: Span
    payload: Expr
    dest: Dest
    target: Ref


@dataclass(frozen=True)
class Assign:
    """`target = value`, or `target += value` when `accumulate`."""

    span: Span
    target: Ref
    value: Expr
    accumulate: bool


@dataclass(frozen=True)
class Phase:
    span: Span
    name: str
    body: tuple[Statement, ...]


Statement = Let | For | When | Send | Assign | Phase


@dataclass(frozen=True)
class Schedule:
    span: Span
    depths: tuple[int, ...]
    overlaps: tuple[tuple[str, str, Span], ...]


Item = Ranks | Size | Buffer | CompressorDecl | WireDecl | Require | Allow | Statement


@dataclass(frozen=True)
class Collective:
    span: Span
    name: str
    kind: str
    kind_params: tuple[str, ...]
    items: tuple[Item, ...]
    schedule: Schedule | None
    kind_span: Span


@dataclass(frozen=True)
class CollFile:
    uses: tuple[Use, ...]
    collectives: tuple[Collective, ...]


# ---------------------------------------------------------------- compressors


@dataclass(frozen=True)
class Param:
    span: Span
    name: str
    kind: str
    default: Value | None


@dataclass(frozen=True)
class Basis:
    span: Span
    name: str
    size: Expr


@dataclass(frozen=True)
class State:
    span: Span
    name: str
    dtype: str
    scope: str
    first: str | None


@dataclass(frozen=True)
class FieldDecl:
    """`name : dtype[length] frame?`, or `name : wire(c)` with `nested` = c."""

    span: Span
    name: str
    dtype: str | None
    nested: str | None
    length: Expr | None
    frame: bool


@dataclass(frozen=True)
class WireBlock:
    span: Span
    fields: tuple[FieldDecl, ...]


@dataclass(frozen=True)
class NonFinite:
    """`field`: the named field becomes NaN (field "pass": each element keeps its own); `code`: the named field becomes `value`."""

    span: Span
    field: str
    value: Expr | None


@dataclass(frozen=True)
class Dtypes:
    """`exact for ...` and `only ...`."""

    span: Span
    what: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Flag:
    """flag NAME [code FIELD = N] when TEST: `field` and `code` tell a flagged group where NaN and Inf pass."""

    span: Span
    name: str
    test: Expr
    field: str | None = None
    code: Expr | None = None


@dataclass(frozen=True)
class Body:
    """compress(param) / decompress / update: steps, then for decompress the value yielded. kind says which; scope is update's."""

    span: Span
    kind: str
    param: str | None
    scope: str | None
    steps: tuple[Let | Assign, ...]
    result: Expr | None


@dataclass(frozen=True)
class Claim:
    span: Span
    test: Expr
    when: Expr | None


Part = Basis | State | WireBlock | NonFinite | Dtypes | Flag | Body | Claim


@dataclass(frozen=True)
class CompressorDef:
    span: Span
    name: str
    params: tuple[Param, ...]
    parts: tuple[Part, ...]
    name_span: Span


@dataclass(frozen=True)
class CompFile:
    uses: tuple[Use, ...]
    compressors: tuple[CompressorDef, ...]
