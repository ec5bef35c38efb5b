"""One `.comp` definition being compiled: fields, lengths and types checked, policies and state built into the graphs (compile.py)."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager

from ..diagnostics import CompileError, Diagnostic, Span, fail
from ..lang import ast
from . import builtins
from .builtins import Builder
from .codec import DTYPES, FRAME, ClaimSpec, Field, Graph, Node, StateSpec
from .parts import field_of, sort_parts
from .scope import Bound

_FLUSHED = ("f32", "bf16")


class Instance:
    """One definition being compiled, at its place in the wire: the whole codec, or a nested compressor under `prefix`."""

    def __init__(
        self, bound: Bound, dtype: str, graph: Graph, x: Node | None, prefix: str = "", stream: list[int] | None = None
    ):
        self.bound, self.dtype, self.graph, self.prefix = bound, dtype, graph, prefix
        self.d = bound.definition
        self.parts = sort_parts(self.d)
        self.consts = {k: v for k, v in bound.values.items() if not isinstance(v, Bound)}
        self.stream = stream if stream is not None else [0]
        self.nested: dict[str, Instance] = {}
        self.inner_names: dict[str, str] = {}
        self.states: dict[str, StateSpec] = {}
        self.fields: list[Field] = []
        self.own: dict[str, Field] = {}
        self.compressed: dict[str, Node] = {}
        self.flags: dict[str, Node] = {}
        self.told: list[tuple[str, int]] = []
        self.env: dict[str, Node] = {}
        self.broken: set[str] = set()
        self.part = "declaration"
        wire = self.parts.wire
        assert wire is not None
        inner = [f for f in wire.fields if f.nested]
        self.group = self._group(inner)
        self.build = Builder(graph, self.group, self.stream)
        self.x_given = x if x is not None else graph.node("x", kind="f32", scope="array", length=self.group)
        self.basis = self._basis()
        self.states = {s.name: self._state(s) for s in self.parts.states}
        self._declare_fields(wire, inner)
        self._policy()
        self._compress()
        self.leaf_fields = {
            n: graph.node(
                "field",
                (),
                (prefix + n, "whole") if self.compressed[n].whole else (prefix + n,),
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
        for f in inner:
            child = self.bound.values.get(str(f.nested))
            if not isinstance(child, Bound):
                fail("E215", f"`{f.nested}` is no compressor parameter of `{self.d.name}`", f.span)
            group = _group_of(child) if group is None else group
        if group is None:
            help = "add `group: int = 128`"
            fail("E216", f"compressor `{self.d.name}` has no `group: int` parameter", self.d.name_span, help=help)
        if not isinstance(group, int) or group < 1 or group > FRAME or group & (group - 1):
            near = 1 << min(15, group.bit_length() - 1) if isinstance(group, int) and group > 0 else 128
            message = f"a group of {group} does not divide the frame of {FRAME} elements"
            fail("E401", message, self.bound.span or self.d.name_span, help=f"group={near} would")
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
        for f in wire.fields:
            if f.nested is not None:
                arrays.append((f.name, None))
                continue
            assert f.dtype is not None
            kind = str(self.consts.get(f.dtype, f.dtype))
            length = self.const_int(f.length) if f.length is not None else 0
            spec = field_of(f, self.dtype if kind == "input" else kind, length, self.prefix)
            self.own[f.name] = spec
            {"array": arrays, "group": groups, "frame": frames}[spec.per].append((f.name, spec))
        if not wire.fields:
            fail("E406", "the wire has no fields", wire.span)
        self.order = arrays + groups + frames
        self.inner_names = {f.name: str(f.nested) for f in inner}

    def _policy(self) -> None:
        p, g, b = self.parts.nonfinite, self.graph, self.build
        self.bad: Node | None = None
        self.policy = "pass"
        self.x = self.x_given
        if self.inner_names:
            if p is not None:
                fail("E406", "a compressor that wraps another takes its `nonfinite` policy", p.span)
            return
        assert p is not None
        if self.exact_dtype:
            self.x = b.round_to(self.x, self.dtype, "nearest", False)
        if p.field == "pass" and p.value is None:
            return
        if p.field not in self.own:
            fail("E201", f"`{p.field}` is no field of this wire", p.span)
        spec = self.own[p.field]
        if p.value is None:
            if spec.integer or spec.type == "e2m1" or spec.per == "frame":
                why = "has no NaN" if spec.per != "frame" else "is one value a frame, not a group"
                help = f"say `nonfinite code {p.field} = N`" if spec.integer else ""
                fail("E407", f"`{p.field}` is {spec.type}, which {why}", p.span, help=help)
            self.policy, self.code = "field", 0
        else:
            if not spec.integer or spec.per == "frame":
                fail("E407", f"`nonfinite code` takes an integer field, `{p.field}` is {spec.type}", p.span)
            self.policy, self.code = "code", self.const_int(p.value)
            low, high = builtins.integer_range(spec)
            if not low <= self.code <= high:
                fail("E216", f"{self.code} does not fit {spec.type} ({low} .. {high})", p.value.span)
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
            fail("E204", "a whole number is wanted here, made of numbers and parameters", e.span)
        return node.value

    @contextmanager
    def collecting(self, problems: list[Diagnostic], name: str = "") -> Iterator[None]:
        """Keep an error for later; reading `name`, whose value it spoiled, is then no error of its own."""
        try:
            yield
        except CompileError as e:
            problems.extend(e.diagnostics)
            self.broken.add(name)

    def new_name(self, let: ast.Let, env: dict[str, Node]) -> None:
        taken = (*env, *self.own, *self.consts, *self.states, *self.inner_names, *self.broken)
        if let.name in taken or let.name in ("decompressed", "tiny", *builtins.WORDS):
            fail("E202", f"`{let.name}` is already in use", let.name_span, help="choose another name")

    # -------------------------------------------------------- compress

    def _compress(self) -> None:
        body = self.parts.compress
        assert body is not None and body.param is not None
        self.part = "compress"
        env: dict[str, Node] = {body.param: self.x}
        assigned: dict[str, Span] = {}
        problems: list[Diagnostic] = []
        for step in body.steps:
            if isinstance(step, ast.Let):
                with self.collecting(problems, step.name):
                    self.new_name(step, env)
                    env[step.name] = self.expr(step.value, env)
                continue
            name, span = step.target.name, step.target.span
            with self.collecting(problems, name):
                if name not in self.own and name not in self.inner_names:
                    near = difflib.get_close_matches(name, [*self.own, *self.inner_names], 1)
                    help = f"did you mean `{near[0]}`?" if near else "values of your own are named by `let`"
                    fail("E201", f"`{name}` is no field of this wire", span, help=help)
                if step.target.index is not None or step.target.field is not None:
                    fail("E217", "a field is assigned as a whole", span, help=f"write `{name} = ...`")
                if name in assigned:
                    also = ((assigned[name], "first here"),)
                    raise CompileError([Diagnostic("E402", f"field `{name}` is assigned twice", span, also=also)])
                assigned[name] = span
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
        self.part = "claim"
        for flag in self.parts.flags:
            test = self.build.want(self.expr(flag.test, env), "bool", flag.test.span)
            if test.scope in ("const", "frame"):
                fail("E408", "a flag is about a group: it compares values of the group", flag.test.span)
            if test.scope == "array":
                test = self.graph.node("rany", (test,), kind="bool", scope="group")
            self.flags[self.prefix + flag.name] = test
            field, code = self._tells(flag)
            poison = self.build.const(float("nan") if code is None else code)
            self.compressed[field] = self.build.select(test, poison, self.compressed[field])
        self.env = env

    def _tells(self, flag: ast.Flag) -> tuple[str, int | None]:
        """The field that tells of a flagged group, and its code; None for NaN."""
        if flag.field is None or flag.code is None:
            if self.bad is None:
                message = "a flag makes its group NaN, and here NaN and Inf pass: nothing tells of such a group"
                help = "name a code that is not used otherwise: `flag NAME code FIELD = N when COND`"
                fail("E406", message, flag.span, help=help)
            return self.policy_field, None if self.policy == "field" else self.code
        if self.bad is not None:
            fail("E406", "`code` is for a flag where NaN and Inf pass; here `nonfinite` says how", flag.code.span)
        self.told.append((flag.field, self._spare_code(flag.field, flag.code, flag.span)))
        return self.told[-1]

    def _spare_code(self, name: str, value: ast.Expr, span: Span) -> int:
        """The code of a field that stands for NaN. Raises E201, E216 and E407."""
        if name not in self.own:
            fail("E201", f"`{name}` is no field of this wire", span)
        spec = self.own[name]
        if not spec.integer or spec.per == "frame":
            fail("E407", f"`code` takes an integer field of a group, `{name}` is {spec.type}", span)
        code = self.const_int(value)
        low, high = builtins.integer_range(spec)
        if not low <= code <= high:
            fail("E216", f"{code} does not fit {spec.type} ({low} .. {high})", value.span)
        return code

    def _nest(self, name: str, value: ast.Expr, env: dict[str, Node]) -> None:
        inner = self.inner_names[name]
        child = self.bound.values[inner]
        assert isinstance(child, Bound)
        q = value.args[0] if isinstance(value, ast.Call) and value.fn == "compress" and len(value.args) == 2 else None
        if not isinstance(value, ast.Call) or not isinstance(q, ast.Ref) or q.name != inner:
            fail(
                "E204", f"`{name}` is a wire of `{inner}`", value.span, help=f"write `{name} = compress({inner}, ...)`"
            )
        x = self.build.spread(self.build.want(self.expr(value.args[1], env), "f32", value.args[1].span))
        nested = Instance(child, self.dtype, self.graph, x, f"{self.prefix}{name}.", self.stream)
        if not x.length == nested.group == self.group:
            message = (
                f"`{inner}` takes groups of {nested.group}, `{value.args[1].span.text}` has {x.length} values a group"
            )
            fail("E408", message, value.span)
        self.nested[name] = nested

    def _stored(self, spec: Field, value: ast.Expr, env: dict[str, Node]) -> Node:
        b, how = self.build, "nearest"
        name = spec.name.removeprefix(self.prefix)
        if isinstance(value, ast.Call) and value.fn in builtins.DIRECTIONS:
            how = value.fn
            if len(value.args) != 1 or value.keywords or spec.integer:
                fail("E203", f"`{how}` takes one value and rounds it to a field of a float type", value.span)
            value = value.args[0]
        v = self.expr(value, env, frame=spec.per == "frame")
        if v.kind == "bool":
            v = b.select(v, b.const(1), b.const(0))
        v = b.numeric(v, value.span)
        order = ("const", "frame", "group", "array")
        if order.index(v.scope) > order.index(spec.per):
            many = "an element" if v.scope == "array" else "a group"
            message = f"`{value.span.text}` is one value {many}, `{name}` holds one a {spec.per}"
            fail("E408", message, value.span)
        if spec.per == "array":
            if v.scope == "array" and v.length != spec.length:
                message = f"`{value.span.text}` has {v.length} values a group, `{name}` has {spec.length}"
                fail("E408", message, value.span)
            v = b.spread(v, spec.length)
        poison = self.bad is not None and name == self.policy_field
        if spec.integer:
            codes = builtins.quantized(v)
            if poison and codes is not None and codes[0] <= self.code <= codes[1]:
                message = f"codes {codes[0]} .. {codes[1]} include {self.code}, which stands for NaN in `{name}`"
                fail("E216", message, value.span)
            v = b.fit_integer(b.to_i32(v), spec, value.span)
            zero: Node = b.const(0)
        else:
            v = b.round_to(b.to_f32(v), spec.type, how, spec.per != "array" and spec.type in _FLUSHED)
            zero = b.const(0.0)
        if spec.per == "array" and spec.length == self.group and not v.whole:
            v = b.select(b.live, v, zero)
        if poison:
            assert self.bad is not None
            v = b.select(self.bad, b.const(float("nan")) if self.policy == "field" else b.const(self.code), v)
        return v

    # -------------------------------------------------------- decompress, update, claims

    def opened(self, sender: bool) -> Node:
        """The reconstruction: from compress's graphs on the sender, from field leaves on the receiver."""
        body, b = self.parts.decompress, self.build
        assert body is not None and body.result is not None
        self.part = "decompress"
        env = dict(self.compressed) if sender else dict(self.leaf_fields)
        fields = dict(env)
        problems: list[Diagnostic] = []
        y: Node | None = None
        for step in body.steps:
            name = step.name if isinstance(step, ast.Let) else step.target.name
            with self.collecting(problems, name):
                if not isinstance(step, ast.Let):
                    fail("E217", "`decompress` assigns nothing: it has `let` and `yield`", step.span)
                self.new_name(step, env)
                env[name] = self.expr(step.value, env, sender=sender)
        with self.collecting(problems):
            y = self.expr(body.result, env, sender=sender)
            y = b.spread(b.want(y, "f32", body.result.span))
            if y.length != self.group:
                fail("E408", f"`yield` gives {y.length} values a group of {self.group}", body.result.span)
        if problems:
            raise CompileError(problems)
        assert y is not None
        tells: list[tuple[str, int | None]] = [*self.told]
        if self.policy != "pass":
            tells.append((self.policy_field, None if self.policy == "field" else self.code))
        for name, code in tells:
            f = fields[name]
            if f.scope == "array" and f.length != self.group:
                f = self.graph.node("at", (f, b.const(0)), kind=f.kind, scope="group")
            bad = b.compare("ne", f, f) if code is None else b.compare("eq", f, b.const(code))
            y = b.select(bad, b.const(float("nan")), y)
        return y

    def updates(
        self, sender: bool, decompressed: Node | None = None, fields: dict[str, Node] | None = None
    ) -> dict[str, Node]:
        """New values of the states that this side keeps, those of nested compressors too."""
        b, result = self.build, {}
        problems: list[Diagnostic] = []
        done = decompressed if decompressed is not None else self.reopened if sender else self.decompress
        for scope, body in self.parts.updates.items():
            if scope == "sender" and not sender:
                continue
            self.part = f"update {scope}"
            own = fields if fields is not None else self.compressed if sender else self.leaf_fields
            env: dict[str, Node] = {**own, "decompressed": done}
            if scope == "sender":
                env = {**self.env, **env}
            seen: dict[str, Span] = {}
            for step in body.steps:
                assert isinstance(step, ast.Assign)
                name, span = step.target.name, step.target.span
                spec = self.states.get(name)
                with self.collecting(problems):
                    if spec is None or spec.scope != scope:
                        own_states = ", ".join(n for n, s in self.states.items() if s.scope == scope) or "none"
                        help = f"states of `{scope}`: {own_states}"
                        fail("E201", f"`update {scope}` has no state `{name}` to assign", span, help=help)
                    if name in seen:
                        also = ((seen[name], "first here"),)
                        raise CompileError([Diagnostic("E402", f"state `{name}` is assigned twice", span, also=also)])
                    seen[name] = span
                    value = self.expr(step.value, env, sender=sender)
                    value = b.spread(b.want(value, "f32", step.value.span))
                    if value.length != self.group:
                        message = f"a state has one value an element; this has {value.length} a group of {self.group}"
                        fail("E408", message, step.value.span)
                    kept = self.graph.node("rall", (b.unary("isfinite", done, "bool"),), kind="bool", scope="group")
                    new = b.round_to(value, spec.dtype, "nearest", False)
                    result[spec.name] = b.select(kept, new, b.state(spec))
        if problems:
            raise CompileError(problems)
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
        self.part = "claim"
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
                bound = b.spread(b.want(self.expr(c.test.right, env), "f32", c.test.right.span))
            found.append(ClaimSpec(test, bound, c.test.span.text))
        for child in self.nested.values():
            found.extend(child.claims())
        return found

    # -------------------------------------------------------- expressions

    def expr(self, e: ast.Expr, env: dict[str, Node], *, frame: bool = False, sender: bool = True) -> Node:
        b = self.build

        def go(e: ast.Expr) -> Node:
            match e:
                case ast.Number():
                    if isinstance(e.value, int) and e.value >= 1 << 31:
                        help = f"`{e.value}.0` is a float32"
                        fail("E106", f"integers of a compressor lie below 2^31, {e.value} does not", e.span, help=help)
                    return b.const(e.value)
                case ast.Ref():
                    return self.name(e, env)
                case ast.Unary(op="-"):
                    return b.unary("neg", b.numeric(go(e.operand), e.operand.span))
                case ast.Unary():
                    return b.unary("invert", b.want(go(e.operand), "bool", e.operand.span), "bool")
                case ast.Binary():
                    return b.operator(e, go(e.left), go(e.right))
                case ast.Call(fn="decompress"):
                    return self.open_nested(e, sender)
                case ast.Call():
                    return builtins.call(b, e, go, frame, self.part == "compress")
            raise AssertionError(e)

        return go(e)

    def name(self, e: ast.Ref, env: dict[str, Node]) -> Node:
        if e.index is not None or e.field is not None:
            fail(
                "E204",
                f"`{e.span.text}`: values of a group are taken as a whole",
                e.span,
                help="at(x, i) takes one of them",
            )
        if e.name in self.broken:
            raise CompileError([])
        if e.name in env:
            return env[e.name]
        if e.name in self.consts:
            return self.build.const(self.consts[e.name])
        if e.name in self.states:
            self.state_is_readable(e)
            return self.build.state(self.states[e.name])
        if e.name in builtins.WORDS:
            return self.build.const(e.name)
        param = self.parts.compress.param if self.parts.compress else None
        if self.part == "update both" and (e.name == param or e.name in self.env and e.name not in self.own):
            help = "use `decompressed`, wire fields or the state itself"
            fail(
                "E405", f"`both` state is updated from `{e.name}`, which the receiver does not have", e.span, help=help
            )
        known = (*self.own, *self.inner_names, "decompressed", "tiny")
        if e.name == param or e.name in known:
            fail("E409", f"`{e.name}` cannot be read here", e.span, help=self.why_unreadable(e.name, param))
        near = difflib.get_close_matches(e.name, [*env, *self.consts, *self.states, *self.own], 1)
        fail("E201", f"unknown name `{e.name}`", e.span, help=f"did you mean `{near[0]}`?" if near else "")

    def state_is_readable(self, e: ast.Ref) -> None:
        if self.states[e.name].scope == "both" or self.part in ("compress", "update sender", "claim"):
            return
        if self.part == "decompress":
            fail("E405", f"`decompress` reads `{e.name}`, which only the sender has", e.span)
        if self.part == "update both":
            fail("E405", f"`both` state cannot depend on `{e.name}`, which only the sender has", e.span)

    def why_unreadable(self, name: str, param: str | None) -> str:
        if name in ("decompressed", "tiny"):
            return f"`{name}` is there in {'`update` and ' if name == 'decompressed' else ''}`claim`"
        if name == param:
            return f"`{name}` is what is compressed; only `compress`, `update sender` and `claim` have it"
        if name in self.inner_names:
            return f"`decompress({name})` opens it"
        if self.part == "compress":
            return "a field is read after it is assigned"
        return "with `first raw` the first call sends no fields: use `decompressed`"

    def open_nested(self, e: ast.Call, sender: bool) -> Node:
        if len(e.args) != 1 or not isinstance(e.args[0], ast.Ref) or e.args[0].name not in self.nested:
            nested = ", ".join(self.inner_names) or "none"
            help = f"its nested fields: {nested}"
            fail("E206", "`decompress` opens a nested field of this compressor, once it is assigned", e.span, help=help)
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
