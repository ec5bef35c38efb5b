"""A `.comp` definition with its parameters -> `Codec`: names, lengths and types checked, policies and state built into the graphs.

before:  compress(x) { scale = up(max(abs(x)) / 7)   code = quantize(x / nonzero(scale), -7, 7, round) }
after:   scale = round_to(mul(rmax(abs(clean x)), 1/7), bf16 up), NaN where the group is not finite
         code  = select(live, quantize(mul(clean x, rcp(select(eq(scale, 0), 1, scale))), -7, 7), 0)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..diagnostics import CompileError, Diagnostic, Span, fail
from ..lang import ast
from . import builtins
from .builtins import Builder
from .codec import DTYPES, FRAME, TYPES, ClaimSpec, Codec, Field, Graph, Node, StateSpec, walk
from .scope import Bound

_FLUSHED = ("f32", "bf16")


@dataclass
class _Parts:
    """A definition's parts by kind, each checked for being there once."""

    basis: ast.Basis | None = None
    states: list[ast.State] = field(default_factory=list)
    wire: ast.WireBlock | None = None
    nonfinite: ast.NonFinite | None = None
    dtypes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    flags: list[ast.Flag] = field(default_factory=list)
    compress: ast.Body | None = None
    decompress: ast.Body | None = None
    updates: dict[str, ast.Body] = field(default_factory=dict)
    claims: list[ast.Claim] = field(default_factory=list)


def _sort_parts(d: ast.CompressorDef) -> _Parts:
    parts = _Parts()

    def once(name: str, node: ast.Part) -> None:
        if getattr(parts, name) is not None:
            fail("E406", f"`{d.name}` has two `{name}` parts", node.span)
        setattr(parts, name, node)

    for p in d.parts:
        match p:
            case ast.Basis():
                once("basis", p)
            case ast.State():
                parts.states.append(p)
            case ast.WireBlock():
                once("wire", p)
            case ast.NonFinite():
                once("nonfinite", p)
            case ast.Dtypes():
                for t in p.dtypes:
                    if t not in DTYPES:
                        fail("E407", f"`{t}` is no tensor dtype; they are {', '.join(DTYPES)}", p.span)
                parts.dtypes[p.what] = (*parts.dtypes.get(p.what, ()), *p.dtypes)
            case ast.Flag():
                parts.flags.append(p)
            case ast.Body(kind="update"):
                assert p.scope
                if p.scope in parts.updates:
                    fail("E406", f"`{d.name}` has two `update {p.scope}` parts", p.span)
                parts.updates[p.scope] = p
            case ast.Body():
                once(p.kind, p)
            case ast.Claim():
                parts.claims.append(p)
    for name in ("wire", "compress", "decompress"):
        if getattr(parts, name) is None:
            fail("E406", f"compressor `{d.name}` has no `{name}` part", d.name_span)
    return parts


class _Instance:
    """One definition being compiled, at its place in the wire: the whole codec, or a nested compressor under `prefix`."""

    def __init__(
        self, bound: Bound, dtype: str, graph: Graph, x: Node | None, prefix: str = "", stream: list[int] | None = None
    ):
        self.bound, self.dtype, self.graph, self.prefix = bound, dtype, graph, prefix
        self.d = bound.definition
        self.parts = _sort_parts(self.d)
        self.consts = {k: v for k, v in bound.values.items() if not isinstance(v, Bound)}
        self.stream = stream if stream is not None else [0]
        self.nested: dict[str, _Instance] = {}
        wire = self.parts.wire
        assert wire is not None
        inner = [f for f in wire.fields if f.nested]
        self.group = self._group(inner)
        self.build = Builder(graph, self.group, self.stream)
        self.x_given = x if x is not None else graph.node("x", kind="f32", scope="array", length=self.group)
        self.basis = self._basis()
        self.states = {s.name: self._state(s) for s in self.parts.states}
        self.fields: list[Field] = []
        self.own: dict[str, Field] = {}
        self.compressed: dict[str, Node] = {}
        self.flags: dict[str, Node] = {}
        self._declare_fields(wire, inner)
        self._policy()
        self._compress()
        self.leaf_fields = {
            n: graph.node(
                "field",
                (),
                (prefix + n,),
                kind="i32" if f.integer else "f32",
                scope=f.per,
                length=f.length if f.per == "array" else 0,
            )
            for n, f in self.own.items()
        }
        self.reopened = self.opened(sender=True)
        self.decompress = self.opened(sender=False)

    # -------------------------------------------------------- declarations

    def _group(self, inner: list[ast.FieldDecl]) -> int:
        group = self.consts.get("group")
        if group is None and inner:
            child = self.bound.values.get(inner[0].nested or "")
            if isinstance(child, Bound):
                group = _group_of(child)
        if group is None:
            fail("E216", f"compressor `{self.d.name}` has no `group: int` parameter", self.d.name_span)
        if not isinstance(group, int) or group < 1 or group > FRAME or group & (group - 1):
            near = 1 << max(0, min(15, (int(group)).bit_length() - 1)) if isinstance(group, int) and group > 0 else 128
            fail(
                "E401",
                f"a group of {group} does not divide the frame of {FRAME} elements",
                self.bound.span or self.d.name_span,
                help=f"group={near} would",
            )
        return group

    def _basis(self) -> int:
        b = self.parts.basis
        if b is None:
            return 0
        size = self.const_int(b.size)
        if b.name != "hadamard":
            fail("E216", f"unknown basis `{b.name}`; there is hadamard(B)", b.span)
        if size < 2 or size & (size - 1) or self.group % size:
            fail("E216", f"hadamard({size}) needs a power of two that divides the group of {self.group}", b.span)
        return size

    def _state(self, s: ast.State) -> StateSpec:
        if s.dtype not in DTYPES:
            fail("E407", f"a state is f32, bf16 or f16, not `{s.dtype}`", s.span)
        if s.first is not None and s.first != "raw":
            fail("E216", f"`first` takes raw, not `{s.first}`", s.span)
        return StateSpec(self.prefix + s.name, s.dtype, s.scope)

    def _declare_fields(self, wire: ast.WireBlock, inner: list[ast.FieldDecl]) -> None:
        arrays: list[tuple[str, Field | None]] = []
        groups: list[tuple[str, Field | None]] = []
        frames: list[tuple[str, Field | None]] = []
        seen: set[str] = set()
        for f in wire.fields:
            if f.name in seen:
                fail("E202", f"the wire has two fields `{f.name}`", f.span)
            seen.add(f.name)
            if f.nested is not None:
                if not isinstance(self.bound.values.get(f.nested), Bound):
                    fail("E215", f"`{f.nested}` is no compressor parameter of `{self.d.name}`", f.span)
                arrays.append((f.name, None))
                continue
            assert f.dtype is not None
            kind = str(self.consts.get(f.dtype, f.dtype))
            kind = self.dtype if kind == "input" else kind
            if kind not in TYPES:
                fail("E407", f"unknown field type `{f.dtype}`", f.span, help="types: " + " ".join(TYPES) + " input")
            length = self.const_int(f.length) if f.length is not None else 0
            per = "array" if f.length is not None else "frame" if f.frame else "group"
            if f.frame and f.length is not None:
                fail("E408", "a field of the frame is one value, without a length", f.span)
            bits = TYPES[kind][0]
            if per == "array" and (length < 1 or length * bits % 8):
                fail(
                    "E408",
                    f"`{f.name}` takes {length} x {bits} bits a group, which is no whole number of bytes",
                    f.span,
                )
            if per != "array" and bits < 8:
                fail("E407", f"`{f.name}`: one value a {per} takes a type of at least 8 bits, not {kind}", f.span)
            spec = Field(self.prefix + f.name, kind, per, length)
            self.own[f.name] = spec
            {"array": arrays, "group": groups, "frame": frames}[per].append((f.name, spec))
        if not wire.fields:
            fail("E406", "the wire has no fields", wire.span)
        self.order = arrays + groups + frames
        self.inner_names = {f.name: f.nested for f in inner}

    def _policy(self) -> None:
        p, g, b = self.parts.nonfinite, self.graph, self.build
        self.bad: Node | None = None
        self.policy = "pass"
        self.x = self.x_given
        if self.inner_names:
            if p is not None:
                fail("E406", "a compressor that wraps another takes its `nonfinite` policy", p.span)
            return
        if p is None:
            fail(
                "E404",
                f"compressor `{self.d.name}` does not say what becomes of NaN and Inf",
                self.d.name_span,
                help="add `nonfinite FIELD`, `nonfinite code FIELD = N` or `nonfinite pass`",
            )
        if self.exact_dtype:
            self.x = b.round_to(self.x, self.dtype, "nearest", False)
        if p.field == "pass" and p.value is None:
            return
        if p.field not in self.own:
            fail("E201", f"`{p.field}` is no field of this wire", p.span)
        spec = self.own[p.field]
        if p.value is None:
            if spec.integer or spec.type == "e2m1":
                fail(
                    "E407",
                    f"`{p.field}` is {spec.type}, which has no NaN",
                    p.span,
                    help=f"say `nonfinite code {p.field} = N`",
                )
            self.policy, self.code = "field", 0
        else:
            if not spec.integer or spec.per == "frame":
                fail("E407", f"`nonfinite code` takes an integer field, `{p.field}` is {spec.type}", p.span)
            self.policy, self.code = "code", self.const_int(p.value)
        self.policy_field = p.field
        self.bad = g.node(
            "rany", (b.unary("invert", b.unary("isfinite", self.x, "bool"), "bool"),), kind="bool", scope="group"
        )
        self.x = b.select(self.bad, b.const(0.0), self.x)

    @property
    def exact_dtype(self) -> bool:
        return self.dtype in self.parts.dtypes.get("exact", ())

    def const_int(self, e: ast.Expr) -> int:
        node = self.expr(e, {})
        if node.op != "const" or node.kind != "i32":
            fail("E204", "a number is wanted here, known when the file is compiled", e.span)
        return node.value

    # -------------------------------------------------------- compress

    def _compress(self) -> None:
        body = self.parts.compress
        assert body is not None and body.param is not None
        env: dict[str, Node] = {body.param: self.x}
        assigned: dict[str, Span] = {}
        problems: list[Diagnostic] = []
        for step in body.steps:
            if isinstance(step, ast.Let):
                if step.name in env or step.name in self.own or step.name in self.consts:
                    fail("E202", f"`{step.name}` is already in use", step.name_span)
                env[step.name] = self.expr(step.value, env)
                continue
            name = step.target.name
            if name not in self.own and name not in self.inner_names:
                fail("E201", f"`{name}` is no field of this wire", step.target.span)
            if step.target.index is not None or step.target.field is not None:
                fail("E217", "a field is assigned as a whole", step.target.span)
            if name in assigned:
                problems.append(
                    Diagnostic(
                        "E402",
                        f"field `{name}` is assigned twice",
                        step.target.span,
                        also=((assigned[name], "first here"),),
                    )
                )
                continue
            assigned[name] = step.target.span
            if name in self.inner_names:
                self._nest(name, step.value, env)
            else:
                env[name] = self.compressed[name] = self._stored(self.own[name], step.value, env)
        for name, _ in self.order:
            if name not in assigned:
                assert self.parts.wire is not None
                span = next(f.span for f in self.parts.wire.fields if f.name == name)
                problems.append(Diagnostic("E403", f"field `{name}` is never assigned in `compress`", span))
        if problems:
            raise CompileError(problems)
        for name, spec in self.order:
            if spec is not None:
                self.fields.append(spec)
            else:
                self.fields.extend(self.nested[name].fields)
        for flag in self.parts.flags:
            test = self.build.want(self.expr(flag.test, env), "bool", flag.span)
            if test.scope == "array":
                test = self.graph.node("rany", (test,), kind="bool", scope="group")
            self.flags[self.prefix + flag.name] = test
            if self.bad is not None:
                poison = self.build.const(float("nan") if self.policy == "field" else self.code)
                self.compressed[self.policy_field] = self.build.select(test, poison, self.compressed[self.policy_field])
        self.env = env

    def _nest(self, name: str, value: ast.Expr, env: dict[str, Node]) -> None:
        child = self.bound.values[self.inner_names[name] or ""]
        assert isinstance(child, Bound)
        if not (
            isinstance(value, ast.Call)
            and value.fn == "compress"
            and len(value.args) == 2
            and isinstance(value.args[0], ast.Ref)
            and value.args[0].name == self.inner_names[name]
        ):
            fail("E204", f"`{name}` wants `compress({self.inner_names[name]}, ...)`", value.span)
        x = self.build.want(self.expr(value.args[1], env), "f32", value.args[1].span)
        self.nested[name] = _Instance(
            child, self.dtype, self.graph, self.build.spread(x), f"{self.prefix}{name}.", self.stream
        )

    def _stored(self, spec: Field, value: ast.Expr, env: dict[str, Node]) -> Node:
        b, how = self.build, "nearest"
        if isinstance(value, ast.Call) and value.fn == "up":
            if len(value.args) != 1 or value.keywords or spec.integer:
                fail("E203", "`up` takes one value and rounds it to a field of a float type", value.span)
            value, how = value.args[0], "up"
        v = self.expr(value, env, frame=spec.per == "frame")
        if v.kind == "bool":
            v = b.select(v, b.const(1), b.const(0))
        order = ("const", "frame", "group", "array")
        if order.index(v.scope) > order.index(spec.per):
            fail(
                "E408",
                f"`{value.span.text}` is one value {'an element' if v.scope == 'array' else 'a group'}, but `{spec.name}` holds one a {spec.per}",
                value.span,
            )
        if spec.per == "array":
            if v.scope == "array" and v.length != spec.length:
                fail(
                    "E408",
                    f"`{value.span.text}` has {v.length} values a group, `{spec.name}` has {spec.length}",
                    value.span,
                )
            v = b.spread(v, spec.length)
        if spec.integer:
            v = b.fit_integer(b.to_i32(v), spec, value.span)
            zero: Node = b.const(0)
        else:
            v = b.round_to(b.to_f32(v), spec.type, how, spec.per != "array" and spec.type in _FLUSHED)
            zero = b.const(0.0)
        if spec.per == "array" and spec.length == self.group:
            v = b.select(b.live, v, zero)
        if self.bad is not None and spec.name == self.prefix + self.policy_field:
            v = b.select(self.bad, b.const(float("nan")) if self.policy == "field" else b.const(self.code), v)
        return v

    # -------------------------------------------------------- decompress, update, claims

    def opened(self, sender: bool) -> Node:
        """The reconstruction: from compress's graphs on the sender, from field leaves on the receiver."""
        body = self.parts.decompress
        assert body is not None and body.result is not None
        env = dict(self.compressed) if sender else dict(self.leaf_fields)
        fields = dict(env)
        for step in body.steps:
            if not isinstance(step, ast.Let):
                fail("E217", "`decompress` only has `let` and `yield`", step.span)
            if step.name in env or step.name in self.consts:
                fail("E202", f"`{step.name}` is already in use", step.name_span)
            env[step.name] = self.expr(step.value, env, sender=sender)
        b = self.build
        y = b.spread(b.to_f32(self.expr(body.result, env, sender=sender)))
        if y.length != self.group:
            fail("E408", f"`yield` gives {y.length} values a group of {self.group}", body.result.span)
        own = {spec.name for spec in self.states.values() if spec.scope == "sender"}
        for node in walk([y]) if not sender and own else ():
            if node.op == "state" and node.attr[0] in own:
                fail(
                    "E405",
                    f"`decompress` reads `{node.attr[0].removeprefix(self.prefix)}`, which only the sender has",
                    body.span,
                )
        if self.policy == "field":
            f = fields[self.policy_field]
            y = b.select(b.compare("ne", f, f), b.const(float("nan")), y)
        elif self.policy == "code":
            y = b.select(b.compare("eq", fields[self.policy_field], b.const(self.code)), b.const(float("nan")), y)
        return y

    def updates(
        self, sender: bool, decompressed: Node | None = None, fields: dict[str, Node] | None = None
    ) -> dict[str, Node]:
        """New values of the states that this side keeps, those of nested compressors too."""
        b, result = self.build, {}
        done = decompressed if decompressed is not None else self.reopened if sender else self.decompress
        for scope, body in self.parts.updates.items():
            if scope == "sender" and not sender:
                continue
            own = fields if fields is not None else self.compressed if sender else self.leaf_fields
            env: dict[str, Node] = {**own, "decompressed": done}
            if scope == "sender":
                env = {**self.env, **env}
            seen: set[str] = set()
            for step in body.steps:
                name = step.target.name if isinstance(step, ast.Assign) else ""
                spec = self.states.get(name)
                if spec is None or spec.scope != scope or not isinstance(step, ast.Assign):
                    fail("E201", f"`update {scope}` assigns states of that scope, `{name}` is none", step.span)
                if name in seen:
                    fail("E402", f"state `{name}` is assigned twice", step.span)
                seen.add(name)
                value = b.spread(b.to_f32(self.expr(step.value, env, sender=sender, both=scope == "both")))
                old = b.state(spec)
                kept = self.graph.node("rall", (b.unary("isfinite", done, "bool"),), kind="bool", scope="group")
                result[spec.name] = b.select(kept, b.round_to(value, spec.dtype, "nearest", False), old)
        for child in self.nested.values():
            result.update(child.updates(sender, decompressed, fields))
        return result

    def all_states(self) -> tuple[StateSpec, ...]:
        return tuple(self.states.values()) + tuple(s for c in self.nested.values() for s in c.all_states())

    def check_updates(self) -> None:
        for s in self.parts.states:
            body = self.parts.updates.get(s.scope)
            if body is None or all(not (isinstance(a, ast.Assign) and a.target.name == s.name) for a in body.steps):
                fail("E403", f"state `{s.name}` is never assigned in `update {s.scope}`", s.span)

    def claims(self) -> list[ClaimSpec]:
        b, found = self.build, []
        peak = self.graph.node("rmax", (b.unary("abs", self.x),), kind="f32", scope="group")
        tiny = b.binary("add", b.binary("mul", peak, b.const(2.0**-22)), b.const(2.0**-118))
        param = self.parts.compress.param if self.parts.compress else None
        env = {**self.env, **self.compressed, "decompressed": self.reopened, "tiny": tiny, str(param): self.x}
        for c in self.parts.claims:
            if c.when is not None:
                when = self.expr(c.when, {})
                if when.op != "const":
                    fail("E204", "`when` of a claim compares parameters", c.when.span)
                if not when.value:
                    continue
            test = b.want(self.expr(c.test, env), "bool", c.test.span)
            bound = None
            if (
                isinstance(c.test, ast.Binary)
                and c.test.op == "<="
                and isinstance(c.test.left, ast.Call)
                and c.test.left.fn == "abs"
            ):
                bound = b.spread(b.to_f32(self.expr(c.test.right, env)))
            found.append(ClaimSpec(test, bound, c.test.span.text))
        for child in self.nested.values():
            found.extend(child.claims())
        return found

    # -------------------------------------------------------- expressions

    def expr(
        self, e: ast.Expr, env: dict[str, Node], *, frame: bool = False, sender: bool = True, both: bool = False
    ) -> Node:
        b = self.build

        def go(e: ast.Expr) -> Node:
            match e:
                case ast.Number():
                    return b.const(e.value)
                case ast.Ref():
                    return self.name(e, env, both)
                case ast.Unary(op="-"):
                    return b.unary("neg", b.numeric(go(e.operand), e.operand.span))
                case ast.Unary():
                    return b.unary("invert", b.want(go(e.operand), "bool", e.operand.span), "bool")
                case ast.Binary():
                    return b.operator(e, go(e.left), go(e.right))
                case ast.Call(fn="decompress"):
                    return self.open_nested(e, sender)
                case ast.Call():
                    return builtins.call(b, e, go, frame)
            raise AssertionError(e)

        return go(e)

    def name(self, e: ast.Ref, env: dict[str, Node], both: bool) -> Node:
        if e.index is not None or e.field is not None:
            fail("E204", f"`{e.span.text}`: values of a group are taken as a whole; use at(x, i)", e.span)
        if e.name in env:
            return env[e.name]
        if e.name in self.consts:
            return self.build.const(self.consts[e.name])
        if e.name in self.states:
            spec = self.states[e.name]
            if both and spec.scope != "both":
                fail("E405", f"`both` state cannot depend on `{e.name}`, which only the sender has", e.span)
            return self.build.state(spec)
        if e.name in builtins.WORDS:
            return self.build.const(e.name)
        param = self.parts.compress.param if self.parts.compress else None
        if both and (e.name == param or e.name in self.env):
            fail(
                "E405",
                f"`both` state is updated from `{e.name}`, which the receiver does not have",
                e.span,
                help="use `decompressed` or wire fields",
            )
        if e.name in self.own or e.name == param or e.name in ("decompressed", "tiny") or e.name in self.inner_names:
            fail(
                "E409",
                f"`{e.name}` cannot be read here",
                e.span,
                help="a field is read after it is assigned; `decompressed` in updates and claims",
            )
        import difflib

        near = difflib.get_close_matches(e.name, [*env, *self.consts, *self.states, *self.own], 1)
        fail("E201", f"unknown name `{e.name}`", e.span, help=f"did you mean `{near[0]}`?" if near else "")

    def open_nested(self, e: ast.Call, sender: bool) -> Node:
        if len(e.args) != 1 or not isinstance(e.args[0], ast.Ref) or e.args[0].name not in self.nested:
            fail("E206", "`decompress` opens a nested wire field of this compressor", e.span)
        child = self.nested[e.args[0].name]
        return child.reopened if sender else child.decompress


def _group_of(bound: Bound) -> int | None:
    group = bound.values.get("group")
    if isinstance(group, int):
        return group
    for v in bound.values.values():
        if isinstance(v, Bound):
            return _group_of(v)
    return None


def compile_codec(bound: Bound, dtype: str) -> Codec:
    """Compile a bound compressor for tensors of `dtype` (f32, bf16 or f16). Raises CompileError (E2xx, E4xx, E501)."""
    assert dtype in DTYPES, dtype
    graph = Graph()
    top = _Instance(bound, dtype, graph, None)
    leaf = top
    while leaf.nested:
        leaf = next(iter(leaf.nested.values()))
    only = top.parts.dtypes.get("only", ()) or leaf.parts.dtypes.get("only", ())
    if only and dtype not in only:
        fail(
            "E501",
            f"`{bound.definition.name}` takes {', '.join(only)} tensors, not {dtype}",
            bound.span or top.d.name_span,
        )
    _walk_checks(top)
    states = top.all_states()
    compress: dict[str, Node] = {}
    flags: dict[str, Node] = {}
    _collect(top, compress, flags)
    single = (
        len(top.fields) == 1
        and top.fields[0].type == dtype
        and top.fields[0].per == "array"
        and top.fields[0].length == top.group
    )
    cast = single and leaf.policy == "pass" and top.decompress.op == "field" and not states
    exact = tuple(leaf.parts.dtypes.get("exact", ()))
    first = _first(top, bound, dtype, leaf.basis) if _wants_first(top) else None
    return Codec(
        name=bound.name,
        dtype=dtype,
        group=top.group,
        basis=leaf.basis,
        fields=tuple(top.fields),
        compress=compress,
        decompress=top.decompress,
        reopened=top.reopened,
        states=states,
        sender_updates=top.updates(sender=True),
        receiver_updates=top.updates(sender=False),
        flags=flags,
        claims=tuple(top.claims()),
        exact_for=exact,
        only=only,
        stochastic=any(n.op == "uniform" for n in graph_nodes(graph)),
        versioned=any(s.scope == "both" for s in states),
        cast=cast,
        nonfinite=leaf.policy,
        first=first,
        text=bound.definition.span.text,
    )


def graph_nodes(graph: Graph) -> list[Node]:
    return list(graph._made.values())


def _walk_checks(top: _Instance) -> None:
    top.check_updates()
    for child in top.nested.values():
        _walk_checks(child)


def _collect(instance: _Instance, compress: dict[str, Node], flags: dict[str, Node]) -> None:
    for name, node in instance.compressed.items():
        compress[instance.prefix + name] = node
    flags.update(instance.flags)
    for child in instance.nested.values():
        _collect(child, compress, flags)


def _wants_first(top: _Instance) -> bool:
    return any(s.first for s in top.parts.states) or any(_wants_first(c) for c in top.nested.values())


def _first(top: _Instance, bound: Bound, dtype: str, basis: int) -> Codec:
    """The codec of the first call after a reset: raw on the wire, and the states set from what all ranks then hold, in the codec's basis."""
    g, b = top.graph, top.build
    x = g.node("x", kind="f32", scope="array", length=top.group)
    sent = b.select(b.live, b.round_to(x, dtype, "nearest", False), b.const(0.0))
    received = g.node("field", (), ("raw",), kind="f32", scope="array", length=top.group)
    states = top.all_states()
    return Codec(
        name=f"first raw of {bound.name}",
        dtype=dtype,
        group=top.group,
        basis=basis,
        fields=(Field("raw", dtype, "array", top.group),),
        compress={"raw": sent},
        decompress=received,
        reopened=sent,
        states=states,
        sender_updates=top.updates(True, sent, {}),
        receiver_updates=top.updates(False, received, {}),
        versioned=any(s.scope == "both" for s in states),
    )
