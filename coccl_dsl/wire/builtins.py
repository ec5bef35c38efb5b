"""The built-in functions and operators of compressor texts, as builders of IR nodes: types, lengths, constant folding."""

from __future__ import annotations

import difflib
import math
import struct
from collections.abc import Callable
from typing import Any

from ..diagnostics import Span, fail
from ..lang import ast
from .codec import FRAME, TYPES, Field, Graph, Node, StateSpec

ROUNDINGS = ("nearest", "stochastic")
# What stands for itself in conditions about parameters, as in `round == nearest`.
WORDS = (*ROUNDINGS, *TYPES)
# How `scale = up(v)` and `low = down(v)` round to the field's type.
DIRECTIONS = ("up", "down")
_INT_OPS = {"div": "idiv", "mod": "imod", "<<": "shl", ">>": "shr", "&": "and_bits", "|": "or_bits", "^": "xor_bits"}
_ARITH = {"+": "add", "-": "sub", "*": "mul"}
_COMPARE = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_WORD = (1 << 32) - 1
_SCOPES = ("const", "frame", "group", "array")


def f32(v: float) -> float:
    """Round a Python number to float32."""
    try:
        return struct.unpack("f", struct.pack("f", v))[0]
    except OverflowError:
        return math.copysign(math.inf, v)


def _fold(op: str, values: list[Any], kind: str) -> Any:
    a: Any = values[0]
    b: Any = values[1] if len(values) > 1 else None
    table: dict[str, Callable[[], Any]] = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "div": lambda: a / b,
        "idiv": lambda: a // b,
        "imod": lambda: a % b,
        "shl": lambda: a << b if 0 <= b < 32 else 0,
        "shr": lambda: (a & _WORD) >> b if 0 <= b < 32 else 0,
        "and_bits": lambda: a & b,
        "or_bits": lambda: a | b,
        "xor_bits": lambda: a ^ b,
        "neg": lambda: -a,
        "abs": lambda: abs(a),
        "sqrt": lambda: math.sqrt(a),
        "floor": lambda: a if a == 0 or math.isinf(a) else math.floor(a),
        "round": lambda: a if a == 0 or math.isinf(a) else round(a),
        "sign": lambda: float((a > 0) - (a < 0)),
        "isfinite": lambda: math.isfinite(a),
        "rcp": lambda: 1.0 / a,
        "rsqrt": lambda: 1.0 / f32(math.sqrt(a)),
        "min2": lambda: min(a, b),
        "max2": lambda: max(a, b),
        "eq": lambda: a == b,
        "ne": lambda: a != b,
        "lt": lambda: a < b,
        "le": lambda: a <= b,
        "gt": lambda: a > b,
        "ge": lambda: a >= b,
        "both": lambda: a and b,
        "either": lambda: a or b,
        "invert": lambda: not a,
        "to_f32": lambda: float(a),
        "to_i32": lambda: max(-(1 << 31), min(int(a), (1 << 31) - 1)),
    }
    v = table[op]()
    if kind == "f32":
        return f32(float(v))
    return (v + (1 << 31) & _WORD) - (1 << 31) if kind == "i32" else v


def _given(v: Node, span: Span | None) -> str:
    kinds = {"f32": "a number", "i32": "an integer", "bool": "a condition", "word": "a word"}
    return f", `{span.text}` is {kinds[v.kind]}" if span else ""


def integer_range(field: Field) -> tuple[int, int]:
    """Lowest and highest value of an integer field."""
    if field.type[0] == "s":
        return -(1 << field.bits - 1), (1 << field.bits - 1) - 1
    return 0, (1 << field.bits) - 1


def quantized(v: Node) -> tuple[int, int] | None:
    """The codes that a quantised value takes; None when it is not made by `quantize`."""
    while v.op in ("select", "spread"):
        v = v.args[-1 if v.op == "spread" else 1]
    return (v.args[1].value, v.args[2].value) if v.op == "quantize" else None


class Builder:
    """Node constructors for one codec. `group` is the length of x; `stream` numbers the stochastic draws."""

    def __init__(self, graph: Graph, group: int, stream: list[int]):
        self.graph, self.group, self.stream = graph, group, stream

    @property
    def live(self) -> Node:
        return self.graph.node("live", kind="bool", scope="array", length=self.group)

    def const(self, v: int | float | str | bool) -> Node:
        if isinstance(v, bool):
            kind = "bool"
        elif isinstance(v, int):
            kind = "i32"
        elif isinstance(v, str):
            kind = "word"
        else:
            kind, v = "f32", f32(v)
        return self.graph.node("const", (), (v,), kind=kind, scope="const")

    def state(self, spec: StateSpec) -> Node:
        return self.graph.node("state", (), (spec.name,), kind="f32", scope="array", length=self.group)

    def _shape(self, args: tuple[Node, ...], span: Span | None = None) -> tuple[str, int]:
        scope = max((a.scope for a in args), key=_SCOPES.index)
        lengths = {a.length for a in args if a.scope == "array"}
        if len(lengths) > 1:
            some = " and ".join(str(n) for n in sorted(lengths))
            fail("E408", f"{some} values a group cannot be combined one by one", span)
        return scope, lengths.pop() if lengths else 0

    def make(
        self, op: str, args: tuple[Node, ...], kind: str, span: Span | None = None, attr: tuple[Any, ...] = ()
    ) -> Node:
        """An elementwise node over args of any scope, folded when they are constants."""
        if all(a.op == "const" for a in args) and not attr:
            try:
                return self.const(_fold(op, [a.value for a in args], kind))
            except (ZeroDivisionError, ValueError, OverflowError):
                fail("E311", f"`{span.text}` has no result" if span else "this arithmetic has no result", span)
            except KeyError:
                pass
        scope, length = self._shape(args, span)
        return self.graph.node(op, args, attr, kind=kind, scope=scope, length=length)

    def unary(self, op: str, v: Node, kind: str | None = None) -> Node:
        return self.make(op, (v,), kind or v.kind)

    def binary(self, op: str, a: Node, b: Node, span: Span | None = None) -> Node:
        return self.make(op, (a, b), a.kind, span)

    def compare(self, op: str, a: Node, b: Node, span: Span | None = None) -> Node:
        return self.make(op, (a, b), "bool", span)

    def select(self, cond: Node, a: Node, b: Node, span: Span | None = None) -> Node:
        if cond.op == "const":
            return a if cond.value else b
        return self.make("select", (cond, a, b), a.kind, span, ())

    def round_to(self, v: Node, type: str, how: str, flush: bool) -> Node:
        scope, length = self._shape((v,))
        return self.graph.node("round_to", (v,), (type, how, flush), kind="f32", scope=scope, length=length)

    def to_f32(self, v: Node) -> Node:
        return v if v.kind == "f32" else self.unary("to_f32", v, "f32")

    def to_i32(self, v: Node) -> Node:
        return v if v.kind == "i32" else self.unary("to_i32", v, "i32")

    def spread(self, v: Node, length: int | None = None) -> Node:
        """One value a group (or a constant) as an array."""
        if v.scope == "array":
            return v
        n = length or self.group
        return self.graph.node("spread", (v,), (n,), kind=v.kind, scope="array", length=n)

    def want(self, v: Node, kind: str, span: Span | None) -> Node:
        words = {"f32": "a number", "i32": "an integer", "bool": "a condition"}
        if kind == "f32" and v.kind == "i32":
            return self.to_f32(v)
        if v.kind != kind:
            fail("E204", f"{words[kind]} is wanted here{_given(v, span)}", span)
        return v

    def numeric(self, v: Node, span: Span | None) -> Node:
        if v.kind not in ("f32", "i32"):
            fail("E204", f"a number is wanted here{_given(v, span)}", span)
        return v

    def fit_integer(self, v: Node, field: Field, span: Span) -> Node:
        """Make sure that the receiver reads what the sender holds: codes must fit, other values wrap (unsigned) or clamp (signed)."""
        low, high = integer_range(field)
        codes = quantized(v)
        if codes is not None:
            lo, hi = codes
            if lo < low or hi > high:
                fail("E216", f"codes {lo} .. {hi} do not fit {field.type} ({low} .. {high})", span)
            return v
        if low == 0:
            return self.binary("and_bits", v, self.const(high))
        return self.binary("min2", self.binary("max2", v, self.const(low)), self.const(high))

    def operator(self, e: ast.Binary, a: Node, b: Node) -> Node:
        op = e.op
        if op in ("and", "or"):
            a, b = self.want(a, "bool", e.left.span), self.want(b, "bool", e.right.span)
            return self.make("both" if op == "and" else "either", (a, b), "bool", e.span)
        if a.kind == "word" or b.kind == "word":
            if op not in ("==", "!=") or a.kind != b.kind:
                fail("E204", "words such as `nearest` can only be compared with == and !=", e.span)
            return self.const(bool((a.value == b.value) == (op == "==")))
        a, b = self.numeric(a, e.left.span), self.numeric(b, e.right.span)
        if op in _INT_OPS:
            if a.kind != "i32" or b.kind != "i32":
                fail("E204", f"`{op}` takes integers", e.span)
            return self.make(_INT_OPS[op], (a, b), "i32", e.span)
        if a.kind == b.kind == "i32" and op != "/":
            return self.make(_ARITH.get(op) or _COMPARE[op], (a, b), "i32" if op in _ARITH else "bool", e.span)
        a, b = self.to_f32(a), self.to_f32(b)
        if op in _COMPARE:
            return self.compare(_COMPARE[op], a, b, e.span)
        if op == "/":
            if b.scope == "array":
                return self.make("div", (a, b), "f32", e.span)
            if a.op == b.op == "const":
                return self.make("div", (a, b), "f32", e.span)
            return self.make("mul", (a, self.make("rcp", (b,), "f32", e.span)), "f32", e.span)
        return self.make(_ARITH[op], (a, b), "f32", e.span)


def call(b: Builder, e: ast.Call, go: Callable[[ast.Expr], Node], frame: bool, draws: bool) -> Node:
    """Compile a call of a built-in.

    frame   the value is for a frame field, so reductions run over the frame
    draws   random numbers may be drawn: in `compress`, whose result the receiver reads
    """
    maker = FUNCTIONS.get(e.fn)
    if maker is None:
        if e.fn == "extern":
            fail("E410", "`extern` is reserved: variable-length coding has no static size", e.span)
        if e.fn in DIRECTIONS:
            message = f"`{e.fn}` stands at the top of an assignment to a field: it rounds to the field's type"
            fail("E203", message, e.span)
        near = difflib.get_close_matches(e.fn, FUNCTIONS, 1)
        help = f"did you mean `{near[0]}`?" if near else "functions: " + " ".join(FUNCTIONS)
        fail("E201", f"unknown function `{e.fn}`", e.fn_span, help=help)
    if e.keywords:
        fail("E203", f"`{e.fn}` takes no named arguments", e.span)
    low, high, make = maker
    if not low <= len(e.args) <= high:
        takes = str(low) if low == high else f"{low} to {high}"
        fail("E203", f"`{e.fn}` takes {takes} argument{'s' if takes != '1' else ''}, not {len(e.args)}", e.span)
    return make(_Call(b, e, [go(a) for a in e.args], frame, draws))


class _Call:
    def __init__(self, b: Builder, e: ast.Call, args: list[Node], frame: bool, draws: bool):
        self.b, self.e, self.args, self.frame, self.draws = b, e, args, frame, draws

    def num(self, i: int) -> Node:
        return self.b.numeric(self.args[i], self.e.args[i].span)

    def real(self, i: int) -> Node:
        return self.b.to_f32(self.num(i))

    def int(self, i: int) -> Node:
        return self.b.want(self.args[i], "i32", self.e.args[i].span)

    def bool(self, i: int) -> Node:
        return self.b.want(self.args[i], "bool", self.e.args[i].span)

    def array(self, i: int) -> Node:
        if self.args[i].scope != "array":
            fail("E408", f"`{self.e.fn}` takes the values of a group here", self.e.args[i].span)
        return self.args[i]

    def const(self, i: int, low: int = -(1 << 31), high: int = 1 << 31) -> int:
        v = self.args[i]
        if v.op != "const" or v.kind != "i32" or not low <= v.value <= high:
            wants = f"a whole number from {low} to {high} here, of numbers and parameters"
            fail("E203", f"`{self.e.fn}` takes {wants}", self.e.args[i].span)
        return int(v.value)

    def array_of(self, i: int, kind: str = "f32") -> Node:
        return self.b.want(self.array(i), kind, self.e.args[i].span)

    def node(
        self, op: str, args: tuple[Node, ...], kind: str, scope: str, length: int = 0, attr: tuple[Any, ...] = ()
    ) -> Node:
        return self.b.graph.node(op, args, attr, kind=kind, scope=scope, length=length)


def _elementwise(op: str, kind: str | None = None, real: bool = False):
    def make(c: _Call) -> Node:
        v = c.real(0) if real else c.num(0)
        return c.b.make(op, (v,), kind or v.kind, c.e.span)

    return 1, 1, make


def _extreme(two: str, group: str, over_frame: str):
    def make(c: _Call) -> Node:
        if len(c.args) == 1:
            v = c.real(0)
            if c.frame:
                if v.scope not in ("array", "group"):
                    fail("E408", f"`{c.e.fn}` of one value takes the values of a group", c.e.span)
                return c.node(over_frame, (v,), "f32", "frame")
            c.array(0)
            return c.node(group, (v,), "f32", "group")
        a, b = c.num(0), c.num(1)
        if a.kind != b.kind:
            a, b = c.b.to_f32(a), c.b.to_f32(b)
        return c.b.make(two, (a, b), a.kind, c.e.span)

    return 1, 2, make


def _sum(c: _Call) -> Node:
    v = c.real(0)
    if c.frame:
        if v.scope not in ("array", "group"):
            fail("E408", "`sum` takes the values of a group", c.e.span)
        return c.node("fsum", (v,), "f32", "frame")
    c.array(0)
    return c.node("rsum", (v,), "f32", "group")


def _mean(c: _Call) -> Node:
    count = c.b.const(float(c.array(0).length)) if c.args[0].whole else c.node("count", (), "f32", "group")
    if c.frame:
        fail("E409", "`mean` is not available for a field of the frame; use sum", c.e.span)
    return c.b.binary("mul", _sum(c), c.b.unary("rcp", count))


def _clamp(c: _Call) -> Node:
    v, lo, hi = c.num(0), c.num(1), c.num(2)
    if not v.kind == lo.kind == hi.kind:
        v, lo, hi = c.real(0), c.real(1), c.real(2)
    return c.b.make("min2", (c.b.make("max2", (v, lo), v.kind, c.e.span), hi), v.kind, c.e.span)


def _select(c: _Call) -> Node:
    a, b = c.args[1], c.args[2]
    cond = c.bool(0)
    if "word" in (a.kind, b.kind) and (a.kind != b.kind or cond.op != "const"):
        fail("E204", "`select` chooses between words by a parameter alone", c.e.span)
    if a.kind != b.kind:
        a, b = c.real(1), c.real(2)
    return c.b.select(cond, a, b, c.e.span)


def _nonzero(c: _Call) -> Node:
    v = c.real(0)
    return c.b.select(c.b.compare("eq", v, c.b.const(0.0)), c.b.const(1.0), v)


def _quantize(c: _Call) -> Node:
    lo, hi = c.const(1), c.const(2)
    mode = c.args[3] if len(c.args) > 3 else c.b.const("nearest")
    if mode.kind != "word" or mode.value not in ROUNDINGS:
        fail("E203", "`quantize` rounds `nearest` or `stochastic`", c.e.args[3].span)
    if not -(1 << 21) < lo <= hi < 1 << 21:
        fail("E203", "`quantize` takes lo <= hi within 21 bits", c.e.span)
    v = c.real(0)
    if v.scope == "const":
        v = c.b.spread(v)
    args = (v, c.b.const(lo), c.b.const(hi))
    if mode.value == "stochastic":
        if not c.draws:
            fail("E409", "stochastic rounding is for `compress` only: its result is what the receiver reads", c.e.span)
        if v.scope != "array" or v.length != c.b.group:
            fail("E408", "stochastic rounding takes the values of a whole group", c.e.span)
        u = c.node("uniform", (), "f32", "array", c.b.group, (c.b.stream[0],))
        c.b.stream[0] += 1
        args = (*args, u)
    return c.node("quantize", args, "i32", v.scope, v.length)


def _hadamard(c: _Call) -> Node:
    v, size = c.array_of(0), c.const(1, 2, 32768)
    if size & (size - 1) or v.length % size:
        fail("E203", f"hadamard of {size} needs a power of two that divides {v.length}", c.e.span)
    return c.node("hadamard", (v,), "f32", "array", v.length, (size,))


def _whole(c: _Call) -> Node:
    v = c.b.to_f32(c.b.numeric(c.array(0), c.e.args[0].span))
    if v.whole or v.length != c.b.group:
        return v
    return c.node("whole", (c.b.select(c.b.live, v, c.b.const(0.0)),), "f32", "array", v.length)


def _at(c: _Call) -> Node:
    if c.args[1].scope == "array":
        fail("E408", "`at` takes one index a group; `gather` takes several", c.e.args[1].span)
    return c.node("at", (c.array(0), c.int(1)), c.args[0].kind, "group")


def _put(c: _Call) -> Node:
    v, value = c.array(0), c.args[2]
    value = c.b.want(value, v.kind, c.e.args[2].span)
    if value.scope == "array" or c.args[1].scope == "array":
        fail("E408", "`put` takes one index and one value a group", c.e.span)
    return c.node("put", (v, c.int(1), value), v.kind, "array", v.length)


def _argmax(c: _Call) -> Node:
    return c.node("argmax", (c.array_of(0),), "i32", "group")


def _iota(c: _Call) -> Node:
    return c.node("iota", (), "i32", "array", c.const(0, 1, 32768))


def _top(c: _Call) -> Node:
    v = c.array_of(0)
    return c.node("top", (v,), "bool", "array", v.length, (c.const(1, 1, v.length),))


def _first(c: _Call) -> Node:
    k = c.const(0, 1, 32768)
    cond = c.array_of(1, "bool")
    return c.node("first", (cond,), "i32", "array", k, (k,))


def _gather(c: _Call) -> Node:
    i = c.array_of(1, "i32")
    return c.node("gather", (c.array(0), i), c.args[0].kind, "array", i.length)


def _scatter(c: _Call) -> Node:
    i, v = c.array_of(0, "i32"), c.array(1)
    if i.length != v.length:
        fail("E408", f"`scatter` got {i.length} indices and {v.length} values", c.e.span)
    return c.node("scatter", (i, v), v.kind, "array", c.b.group, (c.b.group,))


def _plane(c: _Call) -> Node:
    v = c.int(0)
    attr = (c.const(1, 0, 31), c.const(2, 1, 16))
    return c.node("plane", (v,), "i32", v.scope, v.length, attr)


def _slice(c: _Call) -> Node:
    v = c.array(0)
    start, stop = c.const(1, 0, v.length), c.const(2, 0, v.length)
    if start >= stop:
        fail("E203", "`slice` takes start < stop", c.e.span)
    return c.node("slice", (v,), v.kind, "array", stop - start, (start, stop))


def _concat(c: _Call) -> Node:
    parts = tuple(c.array(i) for i in range(len(c.args)))
    if len({p.kind for p in parts}) > 1:
        fail("E204", "`concat` takes values of one kind", c.e.span)
    length = sum(p.length for p in parts)
    if length > FRAME:
        fail("E408", f"{length} values a group are more than a frame holds, {FRAME}", c.e.span)
    return c.node("concat", parts, parts[0].kind, "array", length)


def _ldexp(c: _Call) -> Node:
    return c.b.make("ldexp", (c.real(0), c.int(1)), "f32", c.e.span)


def _bits(c: _Call) -> Node:
    return c.b.make("bits", (c.b.want(c.args[0], "f32", c.e.span),), "i32", c.e.span)


def _from_bits(c: _Call) -> Node:
    return c.b.make("from_bits", (c.int(0),), "f32", c.e.span)


def _reduce_bool(op: str):
    def make(c: _Call) -> Node:
        c.array(0)
        return c.node(op, (c.bool(0),), "bool", "group")

    return 1, 1, make


FUNCTIONS: dict[str, tuple[int, int, Callable[[_Call], Node]]] = {
    "abs": _elementwise("abs"),
    "sqrt": _elementwise("sqrt", "f32", True),
    "rsqrt": _elementwise("rsqrt", "f32", True),
    "floor": _elementwise("floor", "f32", True),
    "round": _elementwise("round", "f32", True),
    "sign": _elementwise("sign", "f32", True),
    "rcp": _elementwise("rcp", "f32", True),
    "exponent": _elementwise("exponent", "i32", True),
    "isfinite": _elementwise("isfinite", "bool", True),
    "min": _extreme("min2", "rmin", "fmin"),
    "max": _extreme("max2", "rmax", "fmax"),
    "sum": (1, 1, _sum),
    "mean": (1, 1, _mean),
    "any": _reduce_bool("rany"),
    "all": _reduce_bool("rall"),
    "clamp": (3, 3, _clamp),
    "select": (3, 3, _select),
    "nonzero": (1, 1, _nonzero),
    "quantize": (3, 4, _quantize),
    "hadamard": (2, 2, _hadamard),
    "whole": (1, 1, _whole),
    "argmax": (1, 1, _argmax),
    "at": (2, 2, _at),
    "put": (3, 3, _put),
    "iota": (1, 1, _iota),
    "top": (2, 2, _top),
    "first": (2, 2, _first),
    "gather": (2, 2, _gather),
    "scatter": (2, 2, _scatter),
    "plane": (3, 3, _plane),
    "slice": (3, 3, _slice),
    "concat": (2, 8, _concat),
    "ldexp": (2, 2, _ldexp),
    "bits": (1, 1, _bits),
    "from_bits": (1, 1, _from_bits),
}
