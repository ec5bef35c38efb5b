"""AST -> Program: what each name means, what each expression is. Everything that can be said without running the text is said here.

`wire` sits above `lang`, so the compressors come in as a function: `codecs(binding) -> Codec`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..diagnostics import CompileError, Sink, Span
from . import ast
from .integers import WRITTEN
from .program import (
    KINDS,
    Add,
    BufferRef,
    BufferSpec,
    Close,
    Index,
    IntExpr,
    LetInt,
    LetValue,
    Loop,
    Mask,
    Open,
    PhaseBlock,
    Program,
    SendTo,
    Statement,
    Store,
    Type,
    ValueExpr,
    VarRef,
    VarSpec,
)

if TYPE_CHECKING:
    from ..wire.codec import Codec

# What the header promises about buffers: roles that must each stand once.
_ROLES = {
    "all_reduce": ("inout",),
    "broadcast": ("inout",),
    "reduce": ("inout",),
    "reduce_scatter": ("in", "out"),
    "all_gather": ("in", "out"),
    "all_to_all": ("in", "out"),
    "send_recv": ("in", "out"),
}
_PYTHON = {"div": "//", "mod": "%", "and": "and", "or": "or"}


class _Stop(Exception):
    """This statement has an error that was reported; go on with the next."""


class _Scope:
    """Names of a block. `masked` blocks belong to a `when`: what `as` names in them belongs to the block around."""

    def __init__(self, parent: _Scope | None, masked: bool = False):
        self.parent, self.masked = parent, masked
        self.names: dict[str, object] = {}

    def find(self, name: str) -> object | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def all(self) -> list[str]:
        return list(self.names) + (self.parent.all() if self.parent else [])


class _Int:
    """A name for an integer."""

    def __init__(self, slot: int, varies: bool):
        self.slot, self.varies = slot, varies


class _Compressor:
    def __init__(self, name: str, codec: Codec | None):
        self.name, self.codec = name, codec


class _Axis:
    def __init__(self, index: int):
        self.index = index


class _Resolver:
    def __init__(self, c: ast.Collective, dtype: str, codecs: Callable[[ast.Binding], Codec], overrides: dict[str, ast.Binding]):
        self.c, self.dtype, self.codec_of, self.overrides = c, dtype, codecs, overrides
        self.sink = Sink()
        self.slots = 0
        self.slot_names: dict[int, str] = {}
        self.top = _Scope(None)
        self.axes: tuple[tuple[str | None, str, str], ...] = ()
        self.buffers: list[BufferSpec] = []
        self.vars: list[VarSpec] = []
        self.sizes: list[tuple[int, IntExpr]] = []
        self.codecs: dict[str, Codec] = {}
        self.requires: list[ast.Require] = []
        self.divergent = False
        self.sites: dict[int, Span] = {}
        self.phases: list[str] = []
        self.params: dict[str, int] = {}

    def error(self, code: str, message: str, span: Span, **more: object) -> _Stop:
        self.sink.error(code, message, span, **more)  # type: ignore[arg-type]
        return _Stop()

    def slot(self, name: str) -> int:
        self.slots += 1
        self.slot_names[self.slots - 1] = name
        return self.slots - 1

    # ------------------------------------------------------------ header and declarations

    def run(self) -> Program:
        c = self.c
        if c.kind not in KINDS:
            near = difflib.get_close_matches(c.kind, KINDS, 1)
            self.error("E212", f"unknown collective `{c.kind}`", c.kind_span, help=f"did you mean `{near[0]}`?" if near else ", ".join(KINDS))
            self.sink.raise_if_any()
        if c.kind_params and c.kind_params != KINDS[c.kind]:
            wants = f"{c.kind}({', '.join(KINDS[c.kind])})" if KINDS[c.kind] else c.kind
            self.error("E212", f"the header is written `{wants}`", c.kind_span)
        ranks = [i for i in c.items if isinstance(i, ast.Ranks)]
        if len(ranks) != 1:
            extra = ranks[1].span if ranks else c.span
            self.error("E213", "`ranks r of n` or `mesh (...)` is needed once" if not ranks else "ranks are declared twice", extra)
            self.sink.raise_if_any()
        self.declare_ranks(ranks[0])
        statements: list[Statement] = []
        for item in c.items:
            try:
                statement = self.item(item)
                if statement is not None:
                    statements.append(statement)
            except _Stop:
                pass
        self.check_buffers()
        depths, overlaps = self.schedule()
        self.sink.raise_if_any()
        return Program(
            c.name,
            c.kind,
            c,
            self.axes,
            self.params,
            self.slots,
            self.slot_names,
            tuple(self.sizes),
            tuple(self.buffers),
            tuple(self.vars),
            self.codecs,
            tuple(self.requires),
            self.divergent,
            tuple(statements),
            self.dtype,
            depths,
            overlaps,
            tuple(self.phases),
            self.sites,
        )

    def declare(self, scope: _Scope, name: str, what: object, span: Span) -> None:
        if scope.find(name) is not None:
            raise self.error("E202", f"`{name}` is already in use here", span, help="choose another name")
        scope.names[name] = what

    def declare_ranks(self, r: ast.Ranks) -> None:
        self.axes = r.axes
        try:
            for _, coordinate, _ in r.axes:
                self.declare(self.top, coordinate, _Int(self.slot(coordinate), True), r.span)
            for _, _, size in r.axes:
                self.declare(self.top, size, _Int(self.slot(size), False), r.span)
            for name in KINDS[self.c.kind]:
                self.params[name] = self.slot(name)
                self.declare(self.top, name, _Int(self.params[name], False), self.c.kind_span)
            for i, (axis, _, _) in enumerate(r.axes):
                if axis is not None:
                    self.declare(self.top, axis, _Axis(i), r.span)
        except _Stop:
            self.sink.raise_if_any()

    def item(self, item: ast.Item) -> Statement | None:
        match item:
            case ast.Ranks():
                return None
            case ast.Size():
                value = self.uniform(item.value, self.top, "a size")
                slot = self.slot(item.name)
                self.declare(self.top, item.name, _Int(slot, False), item.span)
                self.sizes.append((slot, value))
            case ast.Buffer():
                self.buffer(item)
            case ast.CompressorDecl():
                self.compressor(item)
            case ast.WireDecl():
                q = self.top.find(item.compressor)
                dims = tuple(self.uniform(d, self.top, "a number of places") for d in item.dims)
                if not isinstance(q, _Compressor):
                    raise self.error("E201", f"`{item.compressor}` is no compressor of this collective", item.compressor_span)
                self.declare(self.top, item.name, self.var(item.name, Type(q.name), dims, item.span), item.span)
            case ast.Require():
                self.requires.append(item)
            case ast.Allow():
                if item.what != "divergent":
                    raise self.error("E219", f"`allow {item.what}` is unknown", item.span, help="there is `allow divergent`")
                self.divergent = True
            case _:
                return self.statement(item, self.top)
        return None

    def buffer(self, b: ast.Buffer) -> None:
        basis = 0
        if b.basis is not None:
            text = b.basis
            if not (text[:1] == "h" and text[1:].isdigit() and int(text[1:]) >= 2 and int(text[1:]) & (int(text[1:]) - 1) == 0):
                assert b.basis_span is not None
                raise self.error("E204", f"`{text}` is no basis", b.basis_span, help="a basis is h32, h64, ...; to declare a buffer `in x`, put it before the scratch")
            basis = int(text[1:])
            if b.role != "scratch":
                raise self.error("E214", "only scratch lives in a basis", b.span)
        dims = tuple(self.uniform(d, self.top, "a number of chunks") for d in b.dims)
        spec = BufferSpec(b.span, len(self.buffers), b.name, b.role, dims, basis)
        self.declare(self.top, b.name, spec, b.span)
        self.buffers.append(spec)

    def compressor(self, d: ast.CompressorDecl) -> None:
        entry = _Compressor(d.name, None)
        self.declare(self.top, d.name, entry, d.span)
        try:
            entry.codec = self.codecs[d.name] = self.codec_of(self.overrides.get(d.name, d.binding))
        except CompileError as e:
            for found in e.diagnostics:
                self.sink.error(found.code, found.message, found.span, label=found.label, help=found.help, also=found.also)
            raise _Stop from None

    def var(self, name: str, type: Type, dims: tuple[IntExpr, ...] | None, span: Span) -> VarSpec:
        spec = VarSpec(span, len(self.vars), name, type, dims)
        self.vars.append(spec)
        return spec

    def check_buffers(self) -> None:
        if self.c.kind not in _ROLES:
            return
        wanted = _ROLES[self.c.kind]
        for role in ("in", "out", "inout"):
            found = [b for b in self.buffers if b.role == role]
            if len(found) != wanted.count(role):
                words = " and ".join(f"one `{w}` buffer" for w in wanted)
                self.sink.error("E214", f"{self.c.kind} has {words}", found[-1].span if found else self.c.kind_span)
        for b in self.buffers:
            one = (self.c.kind, b.role) in (("all_gather", "in"), ("reduce_scatter", "out"))
            if one and b.dims:
                self.sink.error("E214", f"`{b.name}` of {self.c.kind} is one chunk, without an index", b.span)

    def schedule(self) -> tuple[tuple[int, ...], tuple[tuple[str, str], ...]]:
        s = self.c.schedule
        if s is None:
            return (1,), ()
        for a, b, span in s.overlaps:
            for name in (a, b):
                if name not in self.phases:
                    self.sink.error("E218", f"there is no phase `{name}`", span, help=f"phases: {', '.join(self.phases) or 'none'}")
        return s.depths, tuple((a, b) for a, b, _ in s.overlaps)

    # ------------------------------------------------------------ statements

    def block(self, statements: tuple[ast.Statement, ...], scope: _Scope) -> tuple[Statement, ...]:
        done = []
        for s in statements:
            try:
                done.append(self.statement(s, scope))
            except _Stop:
                pass
        return tuple(done)

    def statement(self, s: ast.Statement, scope: _Scope) -> Statement:
        match s:
            case ast.Let():
                return self.let(s, scope)
            case ast.For():
                low = self.uniform(s.low, scope, "a loop bound") if s.low is not None else None
                high = self.uniform(s.high, scope, "a loop bound")
                inner = _Scope(scope)
                slot = self.slot(s.name)
                self.declare(inner, s.name, _Int(slot, False), s.name_span)
                return Loop(s.span, s.name, slot, low, high, self.block(s.body, inner))
            case ast.When():
                return Mask(s.span, self.condition(s.test, scope), self.block(s.body, _Scope(scope, masked=True)))
            case ast.Phase():
                if s.name in self.phases:
                    self.sink.error("E202", f"there are two phases `{s.name}`", s.span)
                self.phases.append(s.name)
                return PhaseBlock(s.span, s.name, self.block(s.body, _Scope(scope, masked=scope.masked)))
            case ast.Send():
                return self.send(s, scope)
            case ast.Assign():
                return self.store(s, scope)

    def let(self, s: ast.Let, scope: _Scope) -> Statement:
        value = self.expr(s.value, scope)
        if isinstance(value, IntExpr):
            slot = self.slot(s.name)
            self.declare(scope, s.name, _Int(slot, value.varies), s.name_span)
            return LetInt(s.span, slot, value)
        if scope.find(s.name) is not None:
            raise self.error("E202", f"`{s.name}` is already in use here", s.name_span)
        var = self.var(s.name, value.type, None, s.name_span)
        scope.names[s.name] = var
        return LetValue(s.span, var, value)

    def send(self, s: ast.Send, scope: _Scope) -> Statement:
        payload = self.value(s.payload, scope)
        axis, coordinates = self.dest(s.dest, scope)
        received = payload.type
        known = scope.find(s.target.name)
        if known is None:
            if s.target.index is not None:
                raise self.error("E201", f"`{s.target.name}` is not declared", s.target.span, help=f"declare `wire {s.target.name}[...] : q` to receive at an index")
            owner = scope
            while owner.masked and owner.parent is not None:
                owner = owner.parent
            var = self.var(s.target.name, received, None, s.target.span)
            owner.names[s.target.name] = var
            return SendTo(s.span, payload, axis, coordinates, s.dest.span, VarRef(s.target.span, received, var, None), True)
        target = self.target(s.target, scope, "receive")
        if target.type.wire != received.wire or (isinstance(target, VarRef) and target.type.basis != received.basis):
            raise self.error("E208", f"`{s.target.name}` is {target.type}, what is sent is {received}", s.target.span, also=((s.payload.span, f"{received}"),))
        return SendTo(s.span, payload, axis, coordinates, s.dest.span, target, False)

    def dest(self, d: ast.Dest, scope: _Scope) -> tuple[int, tuple[IntExpr, ...]]:
        coordinates = tuple(self.integer(e, scope) for e in d.coordinates)
        if d.axis is not None:
            axis = scope.find(d.axis)
            if not isinstance(axis, _Axis):
                axes = ", ".join(a for a, _, _ in self.axes if a) or "none (this collective has `ranks`)"
                raise self.error("E201", f"`{d.axis}` is no axis of the mesh", d.span, help=f"axes: {axes}")
            return axis.index, coordinates
        if len(coordinates) == 1 and len(self.axes) > 1:
            raise self.error("E211", "on a mesh a send goes `to AXIS: p` or `to (i, j)`", d.span)
        if len(coordinates) != len(self.axes):
            raise self.error("E211", f"{len(coordinates)} coordinates for {len(self.axes)} axes", d.span)
        return -1, coordinates

    def store(self, s: ast.Assign, scope: _Scope) -> Statement:
        target = self.target(s.target, scope, "assign")
        value = self.value(s.value, scope)
        if target.type.wire:
            if s.accumulate:
                raise self.error("E207", f"`{s.target.name}` is a wire: wires cannot be added", s.target.span, help="decompress both sides")
            if value.type.wire != target.type.wire:
                raise self.error("E208", f"`{s.target.name}` is {target.type}, the value is {value.type}", s.target.span, also=((s.value.span, str(value.type)),))
        elif value.type.wire:
            code, message = ("E207", "a wire cannot be added to a chunk") if s.accumulate else ("E204", f"`{s.target.name}` is a chunk, the value is {value.type}")
            raise self.error(code, message, s.value.span, help=f"decompress({s.value.span.text})")
        elif target.type.basis and value.type.basis and target.type.basis != value.type.basis:
            raise self.error("E210", f"h{target.type.basis} and h{value.type.basis} meet in one statement", s.span)
        return Store(s.span, target, value, s.accumulate, s)

    def target(self, ref: ast.Ref, scope: _Scope, verb: str) -> BufferRef | VarRef:
        known = scope.find(ref.name)
        if known is None:
            raise self.unknown(ref, scope)
        if isinstance(known, BufferSpec):
            if known.role == "in":
                raise self.error("E217", f"`{ref.name}` is an input; it cannot be assigned", ref.span)
            return BufferRef(ref.span, Type(None, known.basis), known, self.index(ref, len(known.dims), scope))
        if isinstance(known, VarSpec):
            dims = None if known.dims is None else len(known.dims)
            if ref.index is not None and dims is None:
                raise self.error("E217", f"`{ref.name}` names a value; only declared wires are assigned at an index", ref.span)
            if known.dims is None and verb == "assign":
                raise self.error("E217", f"`{ref.name}` was named by `let` or `as`; it changes by `as` only", ref.span, help=f"declare `wire {ref.name} : q` to assign it")
            index = self.index(ref, dims, scope) if ref.index is not None and dims is not None else None
            return VarRef(ref.span, known.type, known, index)
        raise self.error("E217", f"`{ref.name}` cannot be assigned", ref.span)

    # ------------------------------------------------------------ expressions

    def unknown(self, ref: ast.Ref, scope: _Scope) -> _Stop:
        near = difflib.get_close_matches(ref.name, scope.all(), 1)
        return self.error("E201", f"unknown name `{ref.name}`", ref.name_span, help=f"did you mean `{near[0]}`?" if near else "")

    def index(self, ref: ast.Ref, axes: int, scope: _Scope) -> tuple[Index, ...]:
        items = ref.index or ()
        if len(items) != axes:
            hint = f"`{ref.name}` has {axes} {'axis' if axes == 1 else 'axes'}; this names {len(items)}"
            raise self.error("E211", hint, ref.span)
        done: list[Index] = []
        for i in items:
            if isinstance(i, ast.Whole):
                done.append(None)
            elif isinstance(i, ast.Interval):
                done.append((self.integer(i.low, scope), self.integer(i.high, scope)))
            else:
                done.append(self.integer(i, scope))
        return tuple(done)

    def value(self, e: ast.Expr, scope: _Scope) -> ValueExpr:
        v = self.expr(e, scope)
        if isinstance(v, IntExpr):
            raise self.error("E204", f"a chunk or a wire is wanted here, `{e.span.text}` is an Int", e.span)
        return v

    def integer(self, e: ast.Expr, scope: _Scope) -> IntExpr:
        v = self.expr(e, scope)
        if not isinstance(v, IntExpr):
            raise self.error("E204", f"an Int is wanted here, `{e.span.text}` is {v.type}", e.span)
        if self.is_condition(e):
            raise self.error("E204", f"an Int is wanted here, `{e.span.text}` is a condition", e.span, help="select(condition, a, b) gives an Int")
        return v

    def uniform(self, e: ast.Expr, scope: _Scope, what: str) -> IntExpr:
        v = self.integer(e, scope)
        if v.varies:
            raise self.error("E205", f"{what} may not depend on the rank", e.span, help="use `when` to leave ranks out")
        return v

    @staticmethod
    def is_condition(e: ast.Expr) -> bool:
        return (isinstance(e, ast.Binary) and e.op in ("==", "!=", "<", "<=", ">", ">=", "and", "or")) or (isinstance(e, ast.Unary) and e.op == "not")

    def condition(self, e: ast.Expr, scope: _Scope) -> IntExpr:
        v = self.expr(e, scope)
        if not isinstance(v, IntExpr) or not self.is_condition(e):
            raise self.error("E204", f"a condition is wanted here, such as `{e.span.text} == 0`", e.span)
        return v

    def expr(self, e: ast.Expr, scope: _Scope) -> IntExpr | ValueExpr:
        match e:
            case ast.Number():
                if not isinstance(e.value, int):
                    raise self.error("E204", "algorithm texts have integers only", e.span)
                return IntExpr(e.span, str(e.value), False, e)
            case ast.Ref():
                return self.ref(e, scope)
            case ast.Unary():
                v = self.condition(e.operand, scope) if e.op == "not" else self.integer(e.operand, scope)
                return IntExpr(e.span, f"({e.op} {v.code})", v.varies, e)
            case ast.Binary():
                return self.binary(e, scope)
            case ast.Call():
                return self.call(e, scope)

    def ref(self, e: ast.Ref, scope: _Scope) -> IntExpr | ValueExpr:
        known = scope.find(e.name)
        if e.field is not None:
            raise self.error("E207", f"`{e.name}.{e.field}`: a wire cannot be looked into", e.span, help="decompress it")
        match known:
            case None:
                raise self.unknown(e, scope)
            case _Int():
                if e.index is not None:
                    raise self.error("E211", f"`{e.name}` is an Int and takes no index", e.span)
                return IntExpr(e.span, f"E[{known.slot}]", known.varies, e)
            case BufferSpec():
                return BufferRef(e.span, Type(None, known.basis), known, self.index(e, len(known.dims), scope))
            case VarSpec():
                if e.index is None:
                    return VarRef(e.span, known.type, known, None)
                axes = len(known.dims) if known.dims is not None else len(e.index)
                return VarRef(e.span, known.type, known, self.index(e, axes, scope))
        what = "a compressor" if isinstance(known, _Compressor) else "an axis of the mesh"
        raise self.error("E204", f"`{e.name}` is {what}, not a value", e.span)

    def binary(self, e: ast.Binary, scope: _Scope) -> IntExpr | ValueExpr:
        if e.op in ("and", "or"):
            a, b = self.condition(e.left, scope), self.condition(e.right, scope)
            return IntExpr(e.span, f"({a.code} {e.op} {b.code})", a.varies or b.varies, e)
        left, right = self.expr(e.left, scope), self.expr(e.right, scope)
        if isinstance(left, IntExpr) and isinstance(right, IntExpr):
            if e.op == "/":
                raise self.error("E204", "Ints divide with `div` (and `mod`)", e.span)
            left, right = self.integer(e.left, scope), self.integer(e.right, scope)
            code = f"({left.code} {_PYTHON.get(e.op, e.op)} {right.code})"
            if e.op in ("<<", ">>"):
                code = f"shift({left.code}, {right.code})" if e.op == "<<" else f"({left.code} // pow2({right.code}))"
            return IntExpr(e.span, code, left.varies or right.varies, e)
        for v, at in ((left, e.left), (right, e.right)):
            if isinstance(v, IntExpr):
                raise self.error("E204", f"`{at.span.text}` is an Int and cannot be combined with {'a wire' if self._wired(left, right) else 'a chunk'}", e.span)
            if v.type.wire:
                raise self.error("E207", f"`{at.span.text}` is a wire and cannot be computed with", at.span, help=f"decompress({at.span.text})")
        if e.op != "+":
            raise self.error("E204", f"chunks are only added; `{e.op}` is not available", e.span)
        assert not isinstance(left, IntExpr) and not isinstance(right, IntExpr)
        if left.type.basis and right.type.basis and left.type.basis != right.type.basis:
            raise self.error("E210", f"h{left.type.basis} and h{right.type.basis} meet in one sum", e.span)
        return Add(e.span, Type(None, left.type.basis or right.type.basis), left, right)

    @staticmethod
    def _wired(*values: IntExpr | ValueExpr) -> bool:
        return any(not isinstance(v, IntExpr) and v.type.wire for v in values)

    def call(self, e: ast.Call, scope: _Scope) -> IntExpr | ValueExpr:
        if e.keywords:
            raise self.error("E203", f"`{e.fn}` takes no named arguments", e.span)
        if e.fn == "compress":
            if len(e.args) != 2 or not isinstance(e.args[0], ast.Ref):
                raise self.error("E203", "`compress(q, x)` takes a compressor and a chunk", e.span)
            q = scope.find(e.args[0].name)
            if q is None:
                raise self.unknown(e.args[0], scope)
            if not isinstance(q, _Compressor):
                raise self.error("E203", f"`{e.args[0].name}` is no compressor", e.args[0].span, help="declare `compressor q = int8(group=128)`")
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
                raise self.error("E206", f"`{e.args[0].span.text}` is a chunk, not a wire", e.args[0].span, help="leave `decompress` out")
            codec = self.codecs.get(w.type.wire)
            return Open(e.span, Type(None, codec.basis if codec else 0), w)
        if e.fn not in WRITTEN:
            near = difflib.get_close_matches(e.fn, [*WRITTEN, "compress", "decompress"], 1)
            raise self.error("E201", f"unknown function `{e.fn}`", e.fn_span, help=f"did you mean `{near[0]}`?" if near else "functions: " + " ".join(WRITTEN))
        count, write = WRITTEN[e.fn]
        if len(e.args) != count:
            raise self.error("E203", f"`{e.fn}` takes {count} argument{'s' if count > 1 else ''}, not {len(e.args)}", e.span)
        parts = [self.condition(a, scope) if e.fn == "select" and i == 0 else self.integer(a, scope) for i, a in enumerate(e.args)]
        return IntExpr(e.span, write(*(p.code for p in parts)), any(p.varies for p in parts), e)


def resolve(
    collective: ast.Collective, dtype: str, codecs: Callable[[ast.Binding], Codec], overrides: dict[str, ast.Binding] | None = None
) -> Program:
    """Resolve one collective for tensors of `dtype`; `overrides` rebinds its compressors. Raises CompileError with all that was found."""
    resolver = _Resolver(collective, dtype, codecs, overrides or {})
    declared = {i.name for i in collective.items if isinstance(i, ast.CompressorDecl)}
    for name, binding in (overrides or {}).items():
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            resolver.sink.error("E501", f"`{collective.name}` has no compressor `{name}`", binding.span, help=f"its compressors: {known}")
    return resolver.run()
