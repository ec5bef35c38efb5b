"""Expressions of algorithm texts: each is an Int, a Condition, a Chunk or a Wire, and every place wants one of them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from ..diagnostics import Sink, Span
from . import ast
from .integers import WRITTEN
from .program import (
    Add,
    BufferRef,
    BufferSpec,
    Close,
    Index,
    IntExpr,
    Open,
    Type,
    ValueExpr,
    VarRef,
    VarSpec,
)
from .scopes import Broken, CompressorName, IntName, Scope, Stop

if TYPE_CHECKING:
    from ..wire.codec import Codec

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_PYTHON = {"div": "//", "mod": "%"}


def counted(n: int, noun: str) -> str:
    """`no index`, `1 index`, `2 indices`."""
    many = {"index": "indices", "axis": "axes"}.get(noun, noun + "s")
    return f"no {noun}" if n == 0 else f"{n} {noun if n == 1 else many}"


class Expressions:
    """Turns expressions into those of `program`; errors go to `sink`, then Stop is raised."""

    def __init__(self) -> None:
        self.sink = Sink()
        self.codecs: dict[str, Codec] = {}
        self.sites: dict[int, Span] = {}

    def error(self, code: str, message: str, span: Span, **more: object) -> Stop:
        self.sink.error(code, message, span, **more)  # type: ignore[arg-type]
        return Stop()

    def look(self, name: str, scope: Scope) -> object | None:
        """What a name means, None if nothing. Raises Stop where its declaration failed."""
        known = scope.find(name)
        if isinstance(known, Broken):
            raise Stop
        return known

    def unknown(self, ref: ast.Ref, scope: Scope) -> Stop:
        near = difflib.get_close_matches(ref.name, scope.all(), 1)
        return self.error(
            "E201", f"unknown name `{ref.name}`", ref.name_span, help=f"did you mean `{near[0]}`?" if near else ""
        )

    def index(self, ref: ast.Ref, axes: int, scope: Scope) -> tuple[Index, ...]:
        items = ref.index or ()
        if len(items) != axes:
            raise self.error("E211", f"`{ref.name}` takes {counted(axes, 'index')}, not {len(items)}", ref.span)
        done: list[Index] = []
        for i in items:
            if isinstance(i, ast.Whole):
                done.append(None)
            elif isinstance(i, ast.Interval):
                done.append((self.integer(i.low, scope), self.integer(i.high, scope)))
            else:
                done.append(self.integer(i, scope))
        return tuple(done)

    def value(self, e: ast.Expr, scope: Scope) -> ValueExpr:
        v = self.expr(e, scope)
        if isinstance(v, IntExpr):
            raise self.error("E204", f"a chunk or a wire is wanted here, `{e.span.text}` is an Int", e.span)
        return v

    def integer(self, e: ast.Expr, scope: Scope) -> IntExpr:
        return self.as_integer(self.expr(e, scope), e)

    def as_integer(self, v: IntExpr | ValueExpr, e: ast.Expr) -> IntExpr:
        if not isinstance(v, IntExpr):
            raise self.error("E204", f"an Int is wanted here, `{e.span.text}` is {v.type}", e.span)
        if v.truth:
            message = f"an Int is wanted here, `{e.span.text}` is a condition"
            raise self.error("E204", message, e.span, help="select(condition, a, b) gives an Int")
        return v

    def uniform(self, e: ast.Expr, scope: Scope, what: str, help: str = "") -> IntExpr:
        v = self.integer(e, scope)
        if v.varies:
            raise self.error("E205", f"{what} may not depend on the rank", e.span, help=help)
        return v

    def condition(self, e: ast.Expr, scope: Scope) -> IntExpr:
        v = self.expr(e, scope)
        if not isinstance(v, IntExpr):
            raise self.error("E204", f"a condition is wanted here, `{e.span.text}` is {v.type}", e.span)
        if not v.truth:
            message = f"a condition is wanted here, `{e.span.text}` is an Int"
            raise self.error("E204", message, e.span, help=f"for example `{e.span.text} == 0`")
        return v

    def expr(self, e: ast.Expr, scope: Scope) -> IntExpr | ValueExpr:
        match e:
            case ast.Number():
                if not isinstance(e.value, int):
                    raise self.error("E204", "algorithm texts have integers only", e.span)
                return IntExpr(e.span, str(e.value), False, e)
            case ast.Ref():
                return self.ref(e, scope)
            case ast.Unary():
                v = self.condition(e.operand, scope) if e.op == "not" else self.integer(e.operand, scope)
                return IntExpr(e.span, f"({e.op} {v.code})", v.varies, e, v.truth, (v,))
            case ast.Binary():
                return self.binary(e, scope)
            case ast.Call():
                return self.call(e, scope)

    def ref(self, e: ast.Ref, scope: Scope) -> IntExpr | ValueExpr:
        known = self.look(e.name, scope)
        if e.field is not None:
            raise self.error(
                "E207", f"`{e.name}.{e.field}`: a wire cannot be looked into", e.span, help="decompress it"
            )
        match known:
            case None:
                raise self.unknown(e, scope)
            case IntName():
                if e.index is not None:
                    raise self.error("E211", f"`{e.name}` is an Int and takes no index", e.span)
                return IntExpr(e.span, f"E[{known.slot}]", known.varies, e, known.truth)
            case BufferSpec():
                return BufferRef(e.span, Type(None, known.basis), known, self.index(e, len(known.dims), scope))
            case VarSpec():
                if e.index is None:
                    return VarRef(e.span, known.type, known, None)
                axes = len(known.dims) if known.dims is not None else len(e.index)
                return VarRef(e.span, known.type, known, self.index(e, axes, scope))
        what = "a compressor" if isinstance(known, CompressorName) else "an axis of the mesh"
        raise self.error("E204", f"`{e.name}` is {what}, not a value", e.span)

    def binary(self, e: ast.Binary, scope: Scope) -> IntExpr | ValueExpr:
        if e.op in ("and", "or"):
            a, b = self.condition(e.left, scope), self.condition(e.right, scope)
            return IntExpr(e.span, f"({a.code} {e.op} {b.code})", a.varies or b.varies, e, True, (a, b))
        left, right = self.expr(e.left, scope), self.expr(e.right, scope)
        if isinstance(left, IntExpr) and isinstance(right, IntExpr):
            if e.op == "/":
                raise self.error("E204", "Ints divide with `div` (and `mod`)", e.span)
            left, right = self.as_integer(left, e.left), self.as_integer(right, e.right)
            code = f"({left.code} {_PYTHON.get(e.op, e.op)} {right.code})"
            if e.op in ("<<", ">>"):
                code = f"shift({left.code}, {right.code})" if e.op == "<<" else f"({left.code} // pow2({right.code}))"
            return IntExpr(e.span, code, left.varies or right.varies, e, e.op in COMPARISONS, (left, right))
        for v, at in ((left, e.left), (right, e.right)):
            if isinstance(v, IntExpr):
                raise self.error("E204", f"`{at.span.text}` is an Int, which joins no chunk and no wire", e.span)
            if v.type.wire:
                raise self.error(
                    "E207",
                    f"`{at.span.text}` is a wire and cannot be computed with",
                    at.span,
                    help=f"decompress({at.span.text})",
                )
        if e.op != "+":
            raise self.error("E204", f"chunks are only added; `{e.op}` is not available", e.span)
        assert not isinstance(left, IntExpr) and not isinstance(right, IntExpr)
        if left.type.basis and right.type.basis and left.type.basis != right.type.basis:
            raise self.error("E210", f"h{left.type.basis} and h{right.type.basis} meet in one sum", e.span)
        return Add(e.span, Type(None, left.type.basis or right.type.basis), left, right)

    def call(self, e: ast.Call, scope: Scope) -> IntExpr | ValueExpr:
        if e.keywords:
            raise self.error("E203", f"`{e.fn}` takes no named arguments", e.span)
        if e.fn == "compress":
            if len(e.args) != 2 or not isinstance(e.args[0], ast.Ref):
                raise self.error("E203", "`compress(q, x)` takes a compressor and a chunk", e.span)
            q = self.look(e.args[0].name, scope)
            if q is None:
                raise self.unknown(e.args[0], scope)
            if not isinstance(q, CompressorName):
                raise self.error(
                    "E203",
                    f"`{e.args[0].name}` is no compressor",
                    e.args[0].span,
                    help="declare `compressor q = int8(group=128)`",
                )
            x = self.value(e.args[1], scope)
            if x.type.wire:
                raise self.error("E204", f"`{e.args[1].span.text}` is a wire already", e.args[1].span)
            basis = q.codec.basis if q.codec else 0
            if basis and x.type.basis and basis != x.type.basis:
                raise self.error("E210", f"`{q.name}` works in h{basis}, the value is in h{x.type.basis}", e.span)
            site = len(self.sites)
            self.sites[site] = e.span
            return Close(e.span, Type(q.name, basis), x, site)
        if e.fn == "decompress":
            if len(e.args) != 1:
                raise self.error("E203", "`decompress(w)` takes one wire", e.span)
            w = self.value(e.args[0], scope)
            if not w.type.wire:
                raise self.error(
                    "E206",
                    f"`{e.args[0].span.text}` is a chunk, not a wire",
                    e.args[0].span,
                    help="leave `decompress` out",
                )
            codec = self.codecs.get(w.type.wire)
            return Open(e.span, Type(None, codec.basis if codec else 0), w)
        if e.fn not in WRITTEN:
            near = difflib.get_close_matches(e.fn, [*WRITTEN, "compress", "decompress"], 1)
            raise self.error(
                "E201",
                f"unknown function `{e.fn}`",
                e.fn_span,
                help=f"did you mean `{near[0]}`?" if near else "functions: " + " ".join(WRITTEN),
            )
        count, write = WRITTEN[e.fn]
        if len(e.args) != count:
            raise self.error("E203", f"`{e.fn}` takes {counted(count, 'argument')}, not {len(e.args)}", e.span)
        parts = [
            self.condition(a, scope) if e.fn == "select" and i == 0 else self.integer(a, scope)
            for i, a in enumerate(e.args)
        ]
        return IntExpr(e.span, write(*(p.code for p in parts)), any(p.varies for p in parts), e, False, tuple(parts))
