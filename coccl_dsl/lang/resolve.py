"""AST -> Program: what each name means, what each expression is. Everything that can be said without running the text is said here.

`wire` sits above `lang`, so the compressors come in as a function: `codecs(binding) -> Codec`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..diagnostics import CompileError, Span
from . import ast
from .expressions import COMPARISONS, Expressions, counted
from .program import (
    KINDS,
    BufferRef,
    BufferSpec,
    IntExpr,
    LetInt,
    LetValue,
    Loop,
    Mask,
    PhaseBlock,
    Program,
    SendTo,
    Statement,
    Store,
    Type,
    VarRef,
    VarSpec,
)
from .scopes import AxisName, Broken, CompressorName, IntName, Scope, Stop

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
_BASES = {f"h{1 << k}": 1 << k for k in range(1, 16)}
# Counts that a `require` line may name, beside the sizes.
REQUIRABLE = ("lossy", "sends", "steps", "chunks")
REQUIRE_OPERATORS = ("and", "or", *COMPARISONS, "+", "-", "*", "div", "mod")
# Each axis beyond two doubles the worlds' ranks that are tried.
_MAX_AXES = 6


class _Resolver(Expressions):
    def __init__(
        self, c: ast.Collective, dtype: str, codecs: Callable[[ast.Binding], Codec], overrides: dict[str, ast.Binding]
    ):
        super().__init__()
        self.c, self.dtype, self.codec_of, self.overrides = c, dtype, codecs, overrides
        self.slots = 0
        self.slot_names: dict[int, str] = {}
        self.top = Scope(None)
        self.axes: tuple[tuple[str | None, str, str], ...] = ()
        self.buffers: list[BufferSpec] = []
        self.vars: list[VarSpec] = []
        self.sizes: list[tuple[int, IntExpr]] = []
        self.requires: list[ast.Require] = []
        self.divergent = False
        self.phases: list[str] = []
        self.params: dict[str, int] = {}

    def slot(self, name: str) -> int:
        self.slots += 1
        self.slot_names[self.slots - 1] = name
        return self.slots - 1

    # ------------------------------------------------------------ header and declarations

    def run(self) -> Program:
        c = self.c
        if c.kind not in KINDS:
            near = difflib.get_close_matches(c.kind, KINDS, 1)
            self.error(
                "E212",
                f"unknown collective `{c.kind}`",
                c.kind_span,
                help=f"did you mean `{near[0]}`?" if near else ", ".join(KINDS),
            )
            self.sink.raise_if_any()
        if c.kind_params != KINDS[c.kind]:
            wants = f"{c.kind}({', '.join(KINDS[c.kind])})" if KINDS[c.kind] else c.kind
            self.error("E212", f"the header is written `{wants}`", c.kind_span)
        ranks = [i for i in c.items if isinstance(i, ast.Ranks)]
        if not ranks:
            self.error("E213", f"`{c.name}` does not say on which ranks it runs", c.span, help="add `ranks r of n`")
            self.sink.raise_if_any()
        for again in ranks[1:]:
            self.error("E213", "ranks are declared twice", again.span, also=((ranks[0].span, "first here"),))
        self.declare_ranks(ranks[0])
        statements: list[Statement] = []
        for item in c.items:
            with suppress(Stop):
                statement = self.item(item)
                if statement is not None:
                    statements.append(statement)
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

    def declare(self, scope: Scope, name: str, what: object, span: Span) -> None:
        if scope.find(name) is not None:
            first = scope.place(name)
            also = ((first, f"`{name}` is declared here"),) if first else ()
            raise self.error("E202", f"`{name}` is already in use", span, help="choose another name", also=also)
        scope.add(name, what, span)

    def declare_ranks(self, r: ast.Ranks) -> None:
        self.axes = r.axes
        if len(r.axes) > _MAX_AXES:
            self.error("E213", f"a mesh has at most {_MAX_AXES} axes, not {len(r.axes)}", r.span)
            self.sink.raise_if_any()
        try:
            for _, coordinate, _ in r.axes:
                self.declare(self.top, coordinate, IntName(self.slot(coordinate), True), r.span)
            for _, _, size in r.axes:
                self.declare(self.top, size, IntName(self.slot(size), False), r.span)
            for name in KINDS[self.c.kind]:
                self.params[name] = self.slot(name)
                self.declare(self.top, name, IntName(self.params[name], False), self.c.kind_span)
            for i, (axis, _, _) in enumerate(r.axes):
                if axis is not None:
                    self.declare(self.top, axis, AxisName(i), r.span)
        except Stop:
            self.sink.raise_if_any()

    def item(self, item: ast.Item) -> Statement | None:
        match item:
            case ast.Ranks():
                return None
            case ast.Require():
                self.requirement(item.test, True)
                self.requires.append(item)
            case ast.Allow():
                if item.what != "divergent":
                    raise self.error(
                        "E219", f"`allow {item.what}` is unknown", item.span, help="there is `allow divergent`"
                    )
                self.divergent = True
            case ast.Size() | ast.Buffer() | ast.CompressorDecl() | ast.WireDecl():
                with self.declaring(self.top, item.name, item.span):
                    self.declaration(item)
            case _:
                return self.statement(item, self.top)
        return None

    def requirement(self, e: ast.Expr, truth: bool) -> None:
        """`require` compares counts of the finished proof; they are no names of the text."""
        match e:
            case ast.Ref(index=None, field=None):
                known = [*REQUIRABLE, *(size for _, _, size in self.axes)]
                if e.name not in known:
                    help = f"`require` knows {', '.join(known)}"
                    raise self.error("E201", f"unknown name `{e.name}`", e.span, help=help)
                is_truth = False
            case ast.Binary():
                is_truth = e.op in ("and", "or", *COMPARISONS)
                self.requirement(e.left, e.op in ("and", "or"))
                self.requirement(e.right, e.op in ("and", "or"))
            case ast.Unary():
                is_truth = e.op == "not"
                self.requirement(e.operand, is_truth)
            case ast.Number(value=int()):
                is_truth = False
            case _:
                is_truth = not truth
        if is_truth != truth or isinstance(e, ast.Binary) and e.op not in REQUIRE_OPERATORS:
            raise self.error("E204", "`require` compares counts", e.span, help="for example `require lossy <= 2`")

    @contextmanager
    def declaring(self, scope: Scope, name: str, span: Span) -> Iterator[None]:
        """Within, an error leaves the name known as broken, so that its uses are not reported too."""
        try:
            yield
        except Stop:
            if scope.find(name) is None:
                scope.add(name, Broken(), span)
            raise

    def declaration(self, item: ast.Size | ast.Buffer | ast.CompressorDecl | ast.WireDecl) -> None:
        match item:
            case ast.Size():
                value = self.uniform(item.value, self.top, "a size")
                slot = self.slot(item.name)
                self.declare(self.top, item.name, IntName(slot, False), item.span)
                self.sizes.append((slot, value))
            case ast.Buffer():
                self.buffer(item)
            case ast.CompressorDecl():
                self.compressor(item)
            case ast.WireDecl():
                q = self.look(item.compressor, self.top)
                if not isinstance(q, CompressorName):
                    known = [n for n, w in self.top.names.items() if isinstance(w, CompressorName)]
                    help = f"it has {', '.join(known)}" if known else f"add `compressor {item.compressor} = int8`"
                    message = f"`{item.compressor}` is no compressor of this collective"
                    raise self.error("E201", message, item.compressor_span, help=help)
                dims = tuple(self.uniform(d, self.top, "a number of places") for d in item.dims)
                type = Type(q.name, q.codec.basis if q.codec else 0)
                self.declare(self.top, item.name, self.var(item.name, type, dims, item.span), item.span)

    def buffer(self, b: ast.Buffer) -> None:
        basis = 0
        if b.basis is not None:
            assert b.basis_span is not None
            if b.basis not in _BASES:
                help = "a basis is h32, h64, ...; to declare a buffer `in x`, put it before the scratch"
                raise self.error("E204", f"`{b.basis}` is no basis", b.basis_span, help=help)
            basis = _BASES[b.basis]
        dims = tuple(self.uniform(d, self.top, "a number of chunks") for d in b.dims)
        spec = BufferSpec(b.span, len(self.buffers), b.name, b.role, dims, basis)
        self.declare(self.top, b.name, spec, b.span)
        self.buffers.append(spec)

    def compressor(self, d: ast.CompressorDecl) -> None:
        entry = CompressorName(d.name, None)
        self.declare(self.top, d.name, entry, d.span)
        try:
            entry.codec = self.codecs[d.name] = self.codec_of(self.overrides.get(d.name, d.binding))
        except CompileError as e:
            for found in e.diagnostics:
                self.sink.error(
                    found.code, found.message, found.span, label=found.label, help=found.help, also=found.also
                )
            raise Stop from None

    def var(self, name: str, type: Type, dims: tuple[IntExpr, ...] | None, span: Span) -> VarSpec:
        spec = VarSpec(span, len(self.vars), name, type, dims)
        self.vars.append(spec)
        return spec

    def check_buffers(self) -> None:
        if self.c.kind not in _ROLES:
            return
        wanted = _ROLES[self.c.kind]
        found = [b for b in self.buffers if b.role != "scratch"]
        if sorted(b.role for b in found) != sorted(wanted):
            words = " and ".join(f"one `{w}` buffer" for w in wanted)
            here = ", ".join(f"`{b.role} {b.name}`" for b in found) or "none"
            broken = any(isinstance(w, Broken) for w in self.top.names.values())
            if not broken:
                wrong = [b for b in found if b.role not in wanted] or found[len(wanted) :]
                span = wrong[0].span if wrong else self.c.kind_span
                self.sink.error("E214", f"{self.c.kind} has {words}; here: {here}", span)
            return
        for b in self.buffers:
            one = (self.c.kind, b.role) in (("all_gather", "in"), ("reduce_scatter", "out"))
            if one and b.dims:
                self.sink.error("E214", f"`{b.name}` of {self.c.kind} is one chunk: leave out `[...]`", b.span)

    def schedule(self) -> tuple[tuple[int, ...], tuple[tuple[str, str], ...]]:
        s = self.c.schedule
        if s is None:
            return (1,), ()
        for a, b, span in s.overlaps:
            for name in (a, b):
                if name not in self.phases:
                    self.sink.error(
                        "E218", f"there is no phase `{name}`", span, help=f"phases: {', '.join(self.phases) or 'none'}"
                    )
        return s.depths, tuple((a, b) for a, b, _ in s.overlaps)

    # ------------------------------------------------------------ statements

    def block(self, statements: tuple[ast.Statement, ...], scope: Scope) -> tuple[Statement, ...]:
        done = []
        for s in statements:
            with suppress(Stop):
                done.append(self.statement(s, scope))
        return tuple(done)

    def statement(self, s: ast.Statement, scope: Scope) -> Statement:
        match s:
            case ast.Let():
                with self.declaring(scope, s.name, s.name_span):
                    return self.let(s, scope)
            case ast.For():
                return self.loop(s, scope)
            case ast.When():
                test: IntExpr | None = None
                with suppress(Stop):
                    test = self.condition(s.test, scope)
                body = self.block(s.body, Scope(scope, masked=True))
                if test is None:
                    raise Stop
                return Mask(s.span, test, body)
            case ast.Phase():
                if s.name in self.phases:
                    self.sink.error("E202", f"there are two phases `{s.name}`", s.span)
                self.phases.append(s.name)
                return PhaseBlock(s.span, s.name, self.block(s.body, Scope(scope, masked=scope.masked)))
            case ast.Send():
                with self.declaring(scope.receiving, s.target.name, s.target.span):
                    return self.send(s, scope)
            case ast.Assign():
                return self.store(s, scope)

    def loop(self, s: ast.For, scope: Scope) -> Loop:
        inner, slot = Scope(scope), self.slot(s.name)
        low: IntExpr | None = None
        high: IntExpr | None = None
        with suppress(Stop):
            self.declare(inner, s.name, IntName(slot, False), s.name_span)
        with suppress(Stop):
            help = "loop over what all ranks share, and leave ranks out with `when`"
            low = self.uniform(s.low, scope, "a loop bound", help) if s.low is not None else None
            high = self.uniform(s.high, scope, "a loop bound", help)
        body = self.block(s.body, inner)
        if high is None:
            raise Stop
        return Loop(s.span, s.name, slot, low, high, body)

    def let(self, s: ast.Let, scope: Scope) -> Statement:
        value = self.expr(s.value, scope)
        if isinstance(value, IntExpr):
            slot = self.slot(s.name)
            self.declare(scope, s.name, IntName(slot, value.varies, value.truth), s.name_span)
            return LetInt(s.span, slot, value)
        var = self.var(s.name, value.type, None, s.name_span)
        self.declare(scope, s.name, var, s.name_span)
        return LetValue(s.span, var, value)

    def send(self, s: ast.Send, scope: Scope) -> Statement:
        payload = self.value(s.payload, scope)
        axis, coordinates = self.dest(s.dest, scope)
        received, name, span = payload.type, s.target.name, s.target.span
        if self.look(name, scope) is None:
            if s.target.index is not None:
                help = f"declare `wire {name}[...] : q` to receive at an index"
                raise self.error("E201", f"`{name}` is not declared", span, help=help)
            var = self.var(name, received, None, span)
            scope.receiving.add(name, var, span)
            target = VarRef(span, received, var, None)
            return SendTo(s.span, payload, axis, coordinates, s.dest.span, target, True)
        target = self.target(s.target, scope, receives=True)
        if target.type.wire != received.wire or (isinstance(target, VarRef) and target.type.basis != received.basis):
            also = ((s.payload.span, f"this is {received}"),)
            message = f"`{name}` is {target.type}, what is sent is {received}"
            raise self.error("E208", message, span, help="receive it under another name", also=also)
        return SendTo(s.span, payload, axis, coordinates, s.dest.span, target, False)

    def dest(self, d: ast.Dest, scope: Scope) -> tuple[int, tuple[IntExpr, ...]]:
        coordinates = tuple(self.integer(e, scope) for e in d.coordinates)
        names = [a for a, _, _ in self.axes if a]
        if d.axis is not None:
            axis = self.look(d.axis, scope)
            if not isinstance(axis, AxisName):
                near = difflib.get_close_matches(d.axis, names, 1)
                help = f"its axes: {', '.join(names)}" if names else "ranks have no axes: `to p`, or declare a mesh"
                help = f"did you mean `{near[0]}`?" if near else help
                raise self.error("E201", f"`{d.axis}` is no axis of this collective", d.span, help=help)
            return axis.index, coordinates
        if len(coordinates) != len(self.axes):
            wants = counted(len(self.axes), "coordinate")
            along = f", or goes along one axis: `to {names[0]}: p`" if names else ""
            raise self.error("E211", f"a send takes {wants} here, not {len(coordinates)}{along}", d.span)
        return -1, coordinates

    def store(self, s: ast.Assign, scope: Scope) -> Statement:
        target = self.target(s.target, scope, receives=False)
        value = self.value(s.value, scope)
        name, at, given = s.target.name, s.target.span, s.value.span
        if target.type.wire and s.accumulate:
            raise self.error(
                "E207", f"`{name}` is a wire: wires cannot be added", at, help="decompress, then add chunks"
            )
        if target.type.wire and value.type.wire != target.type.wire:
            also = ((given, f"this is {value.type}"),)
            raise self.error("E208", f"`{name}` is {target.type}, the value is {value.type}", at, also=also)
        if value.type.wire and not target.type.wire:
            help = f"decompress({given.text})"
            if s.accumulate:
                raise self.error("E207", f"`{given.text}` is a wire and cannot be added to a chunk", given, help=help)
            raise self.error("E204", f"`{name}` holds chunks, the value is {value.type}", given, help=help)
        if target.type.basis and value.type.basis and target.type.basis != value.type.basis:
            raise self.error("E210", f"h{target.type.basis} and h{value.type.basis} meet in one statement", s.span)
        return Store(s.span, target, value, s.accumulate, s)

    def target(self, ref: ast.Ref, scope: Scope, receives: bool) -> BufferRef | VarRef:
        """What an assignment or a receive writes."""
        known = self.look(ref.name, scope)
        if known is None:
            raise self.unknown(ref, scope)
        if isinstance(known, BufferSpec):
            if known.role == "in":
                raise self.error("E217", f"`{ref.name}` is an input; it cannot be assigned", ref.span)
            return BufferRef(ref.span, Type(None, known.basis), known, self.index(ref, len(known.dims), scope))
        if not isinstance(known, VarSpec):
            place = scope.place(ref.name)
            also = ((place, "declared here"),) if place else ()
            raise self.error(
                "E217", f"`{ref.name}` is no buffer and no wire; it cannot be assigned", ref.span, also=also
            )
        if known.dims is None and ref.index is not None:
            message = f"`{ref.name}` names a value; only declared wires are assigned at an index"
            raise self.error("E217", message, ref.span)
        if known.dims is None and not receives:
            message = f"`{ref.name}` was named by `let` or `as`; it changes by `as` only"
            raise self.error("E217", message, ref.span, help=f"declare `wire {ref.name} : q` to assign it")
        dims = 0 if known.dims is None else len(known.dims)
        index = self.index(ref, dims, scope) if ref.index is not None else None
        return VarRef(ref.span, known.type, known, index)


def resolve(
    collective: ast.Collective,
    dtype: str,
    codecs: Callable[[ast.Binding], Codec],
    overrides: dict[str, ast.Binding] | None = None,
) -> Program:
    """Resolve one collective for tensors of `dtype`; `overrides` rebinds its compressors. Raises CompileError with all that was found."""
    resolver = _Resolver(collective, dtype, codecs, overrides or {})
    declared = {i.name for i in collective.items if isinstance(i, ast.CompressorDecl)}
    for name, binding in (overrides or {}).items():
        if name not in declared:
            known = ", ".join(sorted(declared)) or "none"
            resolver.sink.error(
                "E501",
                f"`{collective.name}` has no compressor `{name}`",
                binding.span,
                help=f"its compressors: {known}",
            )
    return resolver.run()
