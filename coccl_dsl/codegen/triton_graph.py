"""Prints a codec's graphs as Triton statements, one a node, with names that say what a value is.

before:  scale = round_to(mul(rmax(abs(clean x)), 1/7), bf16 up), ...
after:   peak = groups.peak(x)
         bad = ~(peak < float("inf"))
         largest = tl.where(bad, 0.0, peak)
         product = largest * 0.1428571492433548
         rounded = lib.round_to(product, "bf16", True, True)
         ...

An array is [G, P] with P the power of two that holds its length, a group value [G], a frame value a scalar. Some groups of nodes that every
compressor has are printed as one cheaper statement with the same bits:

- any(not isfinite(v)) and max(abs(v)) share one reduction, `lib.peak`: a maximum that keeps NaN;
- max(abs(select(bad, 0, v))), bad as above, is select(bad, 0, peak);
- select(f != f, NaN, e) is e where e already is NaN whenever f is;
- `quantize` gives its codes as int32 and as float32, so that reading them back costs no conversion;
- rounding what is already rounded to the same type is nothing;
- codes within -Q .. Q of values times 1/scale, scale = up(max(abs) / Q), need no clamp: see `_within`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..wire.builtins import f32
from ..wire.codec import Codec, Node

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "and_bits": "&",
    "or_bits": "|",
    "xor_bits": "^",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "both": "&",
    "either": "|",
}
_CALLS = {
    "div": "tl.div_rn",
    "rcp": "lib.reciprocal",
    "idiv": "lib.floor_div",
    "imod": "lib.floor_mod",
    "shl": "lib.shift_left",
    "shr": "lib.shift_right",
    "abs": "tl.abs",
    "floor": "tl.floor",
    "sqrt": "tl.sqrt_rn",
    "round": "lib.round_even",
    "select": "tl.where",
    "to_i32": "lib.to_int",
    "bits": "lib.as_int",
    "from_bits": "lib.as_float",
    "exponent": "lib.exponent",
    "ldexp": "lib.ldexp",
}
_NAMES = {
    "add": "total",
    "sub": "difference",
    "mul": "product",
    "div": "quotient",
    "rcp": "inverse",
    "abs": "size",
    "rmax": "largest",
    "rmin": "least",
    "rsum": "sum",
    "rany": "some",
    "rall": "every",
    "fmax": "frame_largest",
    "fmin": "frame_least",
    "fsum": "frame_sum",
    "select": "chosen",
    "round_to": "rounded",
    "isfinite": "finite",
    "invert": "other",
    "eq": "equal",
    "ne": "differs",
    "lt": "below",
    "le": "at_most",
    "gt": "above",
    "ge": "at_least",
    "to_f32": "number",
    "to_i32": "whole",
    "quantize": "code",
    "min2": "smaller",
    "max2": "larger",
    "neg": "negative",
    "both": "both",
    "either": "either",
    "first": "indices",
    "floor": "whole",
    "round": "whole",
}
# Names that a kernel uses itself.
_TAKEN = ("lib", "groups", "tl", "triton", "row", "first", "length", "frame", "group", "left", "live", "place", "total")


def width(length: int) -> int:
    """Columns of an array of `length` values: Triton's shapes are powers of two."""
    return 1 << (length - 1).bit_length()


def literal(v: float | int | bool) -> str:
    if isinstance(v, float) and not math.isfinite(v):
        return f'float("{v}")'
    if isinstance(v, int) and not isinstance(v, bool):
        return str((v + (1 << 31)) % (1 << 32) - (1 << 31))
    return repr(v)


@dataclass
class Printer:
    """Prints nodes of one codec for tiles of `groups` groups (an expression).

    leaves   op, or (op, name), -> expression of a leaf: x, live, left (elements of the tile that exist), fields, states, uniform
    exists   expression of bool [G]: which groups exist (only frame reductions ask)
    """

    codec: Codec
    groups: str
    leaves: dict[tuple[str, str], str]
    exists: str = ""
    lines: list[str] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _floats: dict[int, str] = field(default_factory=dict)
    _peaks: dict[int, str] = field(default_factory=dict)
    _used: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._used.update(dict.fromkeys(_TAKEN, 1))

    # ------------------------------------------------------------ names

    def fresh(self, base: str) -> str:
        base = re.sub(r"\W", "_", base)
        n = self._used[base] = self._used.get(base, 0) + 1
        return base if n == 1 else f"{base}_{n}"

    def say(self, base: str, expression: str) -> str:
        name = self.fresh(base)
        self.lines.append(f"{name} = {expression}")
        return name

    def value(self, root: Node, name: str = "") -> str:
        """Print what `root` needs, and give its expression. `name` is what its own statement is called."""
        for node in self._needed(root):
            if id(node) not in self._names:
                self._names[id(node)] = self._node(node, name if node is root else "")
        return self._names[id(root)]

    def _needed(self, root: Node) -> list[Node]:
        """Nodes to print, arguments first; nodes that a cheaper statement replaces are not asked for."""
        order: list[Node] = []
        seen: set[int] = set()

        def visit(node: Node) -> None:
            if id(node) in seen or id(node) in self._names:
                return
            seen.add(id(node))
            for a in self._asks(node):
                visit(a)
            order.append(node)

        visit(root)
        return order

    # ------------------------------------------------------------ nodes that share a cheaper statement

    def _asks(self, node: Node) -> tuple[Node, ...]:
        """The arguments that the printed statement reads."""
        tested = _all_finite(node)
        if tested is not None:
            return (tested,)
        cleaned = _peak_of_clean(node)
        if cleaned is not None:
            return cleaned
        if node.op == "select" and _nan_anyway(node):
            return (node.args[2],)
        if node.op == "round_to" and _rounded_already(node):
            return (node.args[0],)
        within = _within(node) if node.op == "quantize" else None
        if within is not None:
            return within
        if node.op == "select" and node.args[0].op == "live":
            return node.args[1:]
        return tuple(a for a in node.args if a.op != "const")

    def _special(self, node: Node, name: str) -> str | None:
        tested = _all_finite(node)
        if tested is not None:
            finite = f'{self._peak(tested)} < float("inf")'
            return self.say(name or "bad", f"~({finite})") if node.op == "rany" else self.say(name or "sound", finite)
        cleaned = _peak_of_clean(node)
        if cleaned is not None:
            bad, v = cleaned
            return self.say(name or "largest", f"tl.where({self._names[id(bad)]}, 0.0, {self._peak(v)})")
        if node.op == "to_f32" and id(node.args[0]) in self._floats:
            return self._floats[id(node.args[0])]
        if node.op == "select" and _nan_anyway(node):
            return self._names[id(node.args[2])]
        if node.op == "round_to" and _rounded_already(node):
            return self._names[id(node.args[0])]
        return None

    def _peak(self, v: Node) -> str:
        if id(v) not in self._peaks:
            self._peaks[id(v)] = self.say("peak", f"groups.peak({self._masked(v, '0.0')})")
        return self._peaks[id(v)]

    # ------------------------------------------------------------ one node

    def _node(self, node: Node, name: str) -> str:
        if (node.op, "") in self.leaves:
            return self.leaves[node.op, ""]
        if node.op in ("field", "state", "uniform"):
            return self.leaves[node.op, str(node.attr[0])]
        if node.op == "const":
            return literal(node.value)
        special = self._special(node, name)
        if special is not None:
            return special
        printer: Callable[[Node], str] | None = getattr(self, f"_op_{node.op}", None)
        name = name or _NAMES.get(node.op, node.op)
        if node.op == "quantize":
            return self._quantize(node, name)
        if node.op == "select" and node.args[0].op == "live":
            return self._select_live(node, name)
        if node.op in _INFIX:
            a, b = (self._arg(node, i) for i in (0, 1))
            return self.say(name, f"{a} {_INFIX[node.op]} {b}")
        if node.op in _CALLS:
            return self.say(name, f"{_CALLS[node.op]}({', '.join(self._arg(node, i) for i in range(len(node.args)))})")
        if printer is None:
            raise NotImplementedError(f"the Triton back end cannot generate `{node.op}`")
        return self.say(name, printer(node))

    def _arg(self, node: Node, i: int) -> str:
        """Argument i, with an axis more where the result is an array and the argument one value a group."""
        a = node.args[i]
        text = literal(a.value) if a.op == "const" else self._names[id(a)]
        return f"{text}[:, None]" if a.scope == "group" and node.scope == "array" else text

    def _tensor_arg(self, node: Node, i: int) -> str:
        """Like `_arg`, but a constant as a tensor: some helpers look at bits."""
        a = node.args[i]
        if a.op != "const":
            return self._arg(node, i)
        shape = {"array": "[1, 1]", "group": "[1]"}.get(node.scope, "[]")
        return f"tl.full({shape}, {literal(a.value)}, tl.{_DTYPES[a.kind]})"

    def _shape(self, node: Node) -> str:
        return f"[{self.groups}, {width(node.length)}]"

    def _masked(self, v: Node, neutral: str) -> str:
        """`v`, an array, with `neutral` where elements do not exist."""
        text = self._names[id(v)]
        if v.length == self.codec.group and not v.whole:
            return f"{text} if FULL else tl.where({self.leaves['live', '']}, {text}, {neutral})"
        if width(v.length) != v.length:
            return f"tl.where(groups.columns({width(v.length)}) < {v.length}, {text}, {neutral})"
        return text

    def _live(self, v: Node) -> str:
        """bool [G, P] (or broadcastable): which elements of `v` exist."""
        if v.length == self.codec.group and not v.whole:
            return self.leaves["live", ""]
        return f"(groups.columns({width(v.length)}) < {v.length})"

    def _quantize(self, node: Node, name: str) -> str:
        lo, hi = node.args[1].value, node.args[2].value
        code = self.fresh(name)
        number = self.fresh(f"{code}_number")
        within = _within(node)
        if within is not None:
            bad, v, inverse = (self._names[id(n)] for n in within)
            factor = self.say("factor", f"tl.where({bad}, 1.0, {inverse})")
            call = f"lib.quantize_within(tl.where({bad}[:, None], {float(lo)}, {v}) * {factor}[:, None])"
        elif len(node.args) == 3:
            call = f"lib.quantize({self._tensor_arg(node, 0)}, {lo}, {hi})"
        else:
            call = f"lib.quantize_random({self._arg(node, 0)}, {self._arg(node, 3)}, {lo}, {hi})"
        self.lines.append(f"{code}, {number} = {call}")
        self._floats[id(node)] = number
        return code

    def _select_live(self, node: Node, name: str) -> str:
        """Whole tiles need no mask. The float32 twin of a code is masked with it."""
        live, v, other = self.leaves["live", ""], node.args[1], self._arg(node, 2)
        if id(v) in self._floats:
            number = self._floats[id(v)]
            masked = f"{number} if FULL else tl.where({live}, {number}, {float(node.args[2].value)})"
            self._floats[id(node)] = self.say(f"{name}_number", masked)
        text = self._arg(node, 1)
        return self.say(name, f"{text} if FULL else tl.where({live}, {text}, {other})")

    # ------------------------------------------------------------ the rest of the table

    def _op_count(self, node: Node) -> str:
        return f"groups.live_count({self.leaves['left', '']}, {self.groups}, {self.codec.group})"

    def _op_iota(self, node: Node) -> str:
        return f"groups.columns({width(node.length)}) + tl.zeros({self._shape(node)}, tl.int32)"

    def _op_neg(self, node: Node) -> str:
        return f"-{self._arg(node, 0)}"

    def _op_invert(self, node: Node) -> str:
        return f"~{self._arg(node, 0)}"

    def _op_rsqrt(self, node: Node) -> str:
        return f"lib.reciprocal(tl.sqrt_rn({self._arg(node, 0)}))"

    def _op_sign(self, node: Node) -> str:
        return f"lib.sign{'_f32' if node.kind == 'f32' else ''}({self._arg(node, 0)})"

    def _op_isfinite(self, node: Node) -> str:
        return f'tl.abs({self._arg(node, 0)}) < float("inf")'

    def _op_to_f32(self, node: Node) -> str:
        return f"{self._arg(node, 0)}.to(tl.float32)"

    def _op_min2(self, node: Node) -> str:
        fn = "lib.smaller" if node.kind == "f32" else "tl.minimum"
        return f"{fn}({self._tensor_arg(node, 0)}, {self._tensor_arg(node, 1)})"

    def _op_max2(self, node: Node) -> str:
        fn = "lib.larger" if node.kind == "f32" else "tl.maximum"
        return f"{fn}({self._tensor_arg(node, 0)}, {self._tensor_arg(node, 1)})"

    def _op_round_to(self, node: Node) -> str:
        kind, how, flush = node.attr
        if node.scope == "array" and how == "nearest" and not flush:
            return f'lib.nearest({self._tensor_arg(node, 0)}, "{kind}")'
        if how == "down":
            return f'lib.round_down({self._tensor_arg(node, 0)}, "{kind}", {flush})'
        plain = ", True" if _plain(node.args[0]) else ""
        return f'lib.round_to({self._tensor_arg(node, 0)}, "{kind}", {how == "up"}, {flush}{plain})'

    def _op_spread(self, node: Node) -> str:
        a = node.args[0]
        if a.scope == "group":
            return f"tl.broadcast_to({self._arg(node, 0)}, {self._shape(node)})"
        return f"tl.full({self._shape(node)}, {self._arg(node, 0)}, tl.{_DTYPES[node.kind]})"

    def _op_whole(self, node: Node) -> str:
        return self._arg(node, 0)

    def _op_plane(self, node: Node) -> str:
        return f"lib.plane({self._arg(node, 0)}, {node.attr[0]}, {node.attr[1]})"

    def _op_rmax(self, node: Node) -> str:
        return f"groups.largest({self._masked(node.args[0], _MINUS_INF)})"

    def _op_rmin(self, node: Node) -> str:
        return f"groups.least({self._masked(node.args[0], _PLUS_INF)})"

    def _op_rsum(self, node: Node) -> str:
        return f"groups.tree_sum({self._masked(node.args[0], '0.0')})"

    def _op_rany(self, node: Node) -> str:
        return f"groups.any_of({self._masked(node.args[0], 'False')})"

    def _op_rall(self, node: Node) -> str:
        return f"groups.all_of({self._masked(node.args[0], 'True')})"

    def _per_group(self, node: Node, fn: str, neutral: str) -> str:
        """The group values that a frame reduction reads, neutral where a group does not exist."""
        a = node.args[0]
        text = self._names[id(a)]
        if a.scope == "array":
            text = self.say("per_group", f"groups.{fn}({self._masked(a, neutral)})")
        return self.say("of_groups", f"{text} if FULL else tl.where({self.exists}, {text}, {neutral})")

    def _op_fmax(self, node: Node) -> str:
        return f"groups.largest({self._per_group(node, 'largest', _MINUS_INF)})"

    def _op_fmin(self, node: Node) -> str:
        return f"groups.least({self._per_group(node, 'least', _PLUS_INF)})"

    def _op_fsum(self, node: Node) -> str:
        return f"groups.frame_sum({self._per_group(node, 'tree_sum', '0.0')})"

    def _op_hadamard(self, node: Node) -> str:
        shape = self._shape(node)
        flat = f"tl.reshape({self._arg(node, 0)}, [{self.groups} * {width(node.length)}])"
        return f"tl.reshape(groups.hadamard({flat}, {node.attr[0]}), {shape})"

    def _op_argmax(self, node: Node) -> str:
        return f"groups.argmax({self._names[id(node.args[0])]}, {self._live(node.args[0])})"

    def _op_top(self, node: Node) -> str:
        return f"groups.top({self._names[id(node.args[0])]}, {self._live(node.args[0])}, {node.attr[0]})"

    def _op_first(self, node: Node) -> str:
        a = node.args[0]
        return (
            f"groups.first_true({self._names[id(a)]}, {self._live(a)}, {a.length}, {node.length}, {width(node.length)})"
        )

    def _index(self, node: Node, i: int) -> str:
        """Argument i as int32 [G]."""
        a = node.args[i]
        if a.scope == "group":
            return self._names[id(a)]
        return f"tl.full([{self.groups}], {literal(a.value) if a.op == 'const' else self._names[id(a)]}, tl.int32)"

    def _op_at(self, node: Node) -> str:
        found = f"groups.at({self._names[id(node.args[0])]}, {self._index(node, 1)})"
        return f"{found} != 0" if node.kind == "bool" else found

    def _op_put(self, node: Node) -> str:
        return f"groups.put({self._names[id(node.args[0])]}, {self._index(node, 1)}, {self._arg(node, 2)})"

    def _op_gather(self, node: Node) -> str:
        v, index = node.args
        return f"groups.gather({self._names[id(v)]}, {self._names[id(index)]}, {v.length})"

    def _op_scatter(self, node: Node) -> str:
        index, v = (self._names[id(a)] for a in node.args)
        return f"groups.scatter({index}, {v}, {node.args[0].length}, {width(node.length)})"

    def _op_slice(self, node: Node) -> str:
        v = node.args[0]
        return f"groups.window({self._names[id(v)]}, {node.attr[0]}, {width(node.length)})"

    def _op_concat(self, node: Node) -> str:
        begin, text = 0, f"tl.zeros({self._shape(node)}, tl.{_DTYPES[node.kind]})"
        for a in node.args:
            text = f"groups.paste({text}, {self._names[id(a)]}, {begin}, {a.length})"
            begin += a.length
        return text


_DTYPES = {"f32": "float32", "i32": "int32", "bool": "int1"}
# Types of scales that neither saturate nor lose precision near 0: (type, how, flush).
_SAFE_SCALES = (("bf16", "up", True), ("f32", "up", True))
_MINUS_INF = 'float("-inf")'
_PLUS_INF = 'float("inf")'


def _all_finite(node: Node) -> Node | None:
    """v where the node is any(not isfinite(v)) or all(isfinite(v))."""
    if node.op == "rall" and node.args[0].op == "isfinite":
        return node.args[0].args[0]
    if node.op == "rany" and node.args[0].op == "invert" and node.args[0].args[0].op == "isfinite":
        return node.args[0].args[0].args[0]
    return None


def _peak_of_clean(node: Node) -> tuple[Node, Node] | None:
    """(bad, v) where the node is max(abs(select(bad, 0, v))) and bad says that v is not finite."""
    if node.op != "rmax" or node.args[0].op != "abs":
        return None
    clean = node.args[0].args[0]
    if clean.op != "select" or clean.args[1].op != "const" or clean.args[1].value != 0.0:
        return None
    bad, v = clean.args[0], clean.args[2]
    return (bad, v) if bad.op == "rany" and _all_finite(bad) is v else None


def _plain(node: Node) -> bool:
    """Finite and not negative: the largest magnitude of a group that was cleaned, perhaps times a constant up to 1."""
    if node.op == "mul" and node.args[1].op == "const" and 0.0 < node.args[1].value <= 1.0:
        node = node.args[0]
    return _peak_of_clean(node) is not None


def _within(node: Node) -> tuple[Node, Node, Node] | None:
    """(bad, v, inverse) where a `quantize` needs no clamp: -Q .. Q, nearest, of clean * inverse, with

        clean = select(bad, 0, v)                                   bad: v is not finite
        scale = select(bad, NaN, round_to(max(abs(clean)) * c, bf16 or f32 up, flushed)),  c = float32(1/Q)
        inverse = rcp(select(scale == 0, 1, scale))

    The scale is at least max(abs(clean)) * c but for 2^-24 of it, and so clean * inverse stays within Q (1 + 2^-20), which rounds to Q: the
    product, the constant, the reciprocal (at worst a subnormal of 22 bits) and the last product each err by 2^-22 at most. A scale that was
    flushed is 1, and the values then are below 2^-100; one that saturated (Q = 1 alone) leaves 1.004, which rounds to 1. A group that is not
    finite has the inverse NaN, and NaN clamps to -Q.
    """
    if node.op != "quantize" or len(node.args) != 3 or node.args[0].op != "mul":
        return None
    low, high = node.args[1].value, node.args[2].value
    clean, inverse = node.args[0].args
    if low != -high or not 0 < high < 1 << 18 or clean.op != "select" or inverse.op != "rcp":
        return None
    nonzero = inverse.args[0]
    if (
        nonzero.op != "select"
        or nonzero.args[0].op != "eq"
        or nonzero.args[1].op != "const"
        or nonzero.args[1].value != 1.0
    ):
        return None
    scale = nonzero.args[2]
    zero = nonzero.args[0].args
    if zero[0] is not scale or zero[1].op != "const" or zero[1].value != 0.0 or scale.op != "select":
        return None
    bad, nan, rounded = scale.args
    if nan.op != "const" or not math.isnan(nan.value) or rounded.op != "round_to" or rounded.attr not in _SAFE_SCALES:
        return None
    product = rounded.args[0]
    if product.op != "mul" or product.args[1].op != "const" or product.args[1].value != f32(1.0 / f32(high)):
        return None
    found = _peak_of_clean(product.args[0])
    if found is None or found[0] is not bad or product.args[0].args[0].args[0] is not clean:
        return None
    return bad, found[1], inverse


def _nan_anyway(node: Node) -> bool:
    """select(f != f, NaN, e) where e is NaN whenever f is."""
    cond, nan, e = node.args
    if cond.op != "ne" or cond.args[0] is not cond.args[1] or nan.op != "const" or nan.kind != "f32":
        return False
    return math.isnan(nan.value) and _carries_nan(e, cond.args[0])


def _carries_nan(e: Node, f: Node) -> bool:
    return e is f or (
        e.op in ("add", "sub", "mul", "div") and e.kind == "f32" and any(_carries_nan(a, f) for a in e.args)
    )


def _rounded_already(node: Node) -> bool:
    """Rounding to nearest of what was rounded to the same type, and masked at most."""
    kind, how, flush = node.attr
    inner = node.args[0]
    return inner.op == "round_to" and how == "nearest" and not flush and inner.attr[0] == kind


def fits(node: Node, bits: int, signed: bool) -> bool:
    """Whether an integer node's values are known to fit a field."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    found = _range(node)
    return found is not None and low <= found[0] and found[1] <= high


def _range(node: Node) -> tuple[int, int] | None:
    args = node.args
    match node.op:
        case "const":
            return (node.value, node.value) if node.kind == "i32" else None
        case "quantize":
            return args[1].value, args[2].value
        case "plane":
            return 0, (1 << node.attr[1]) - 1
        case "spread":
            return _range(args[0])
        case "select":
            a, b = _range(args[1]), _range(args[2])
            return (min(a[0], b[0]), max(a[1], b[1])) if a and b else None
        case "and_bits":
            bound = next((a.value for a in args if a.op == "const" and a.value >= 0), None)
            return (0, bound) if bound is not None else None
        case "min2" | "max2" if args[1].op == "const":
            return _clamped(node)
    return None


def _clamped(node: Node) -> tuple[int, int] | None:
    """min2(max2(v, lo), hi)."""
    inner = node.args[0]
    if node.op == "min2" and inner.op == "max2" and inner.args[1].op == "const":
        return inner.args[1].value, node.args[1].value
    return None
