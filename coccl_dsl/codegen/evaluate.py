"""The operations of the compressor IR in torch, for many groups at once: `wire.codec`'s table, with explicit arithmetic only.

An array node is a tensor [frames, groups, length], a group node [frames, groups, 1], a frame node [frames, 1, 1], so that broadcasting does
what `spread` says. Torch operations that may approximate, contract, or leave an order open (rsqrt, addcmul, sum, division by a host number)
are not used. Where the table leaves a case open: -0.0 is smaller than 0.0 in minima and maxima; an index out of range reads 0 and writes
nothing; shifts by less than 0 or more than 31 and integer division by 0 give 0; to_i32 saturates and takes NaN to 0. An array of another
length than the group's is live throughout, and so is a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..wire.builtins import f32
from ..wire.codec import FRAME, Codec, Node
from .casts import has_no_nan, round_to
from .patterns import all_finite

_WORD = 0xFFFFFFFF
_DTYPES = {"f32": torch.float32, "i32": torch.int32, "bool": torch.bool}


@dataclass
class Batch:
    """Frames of one size, and what the leaves of a graph stand for in them.

    x, states  float32 [frames, groups, group], 0.0 where not live
    fields     [frames, groups, length], [frames, groups, 1] or [frames, 1, 1]: float32 or int32
    live       bool [1, groups, group], or None where every element is live
    uniform    stream -> float32 [frames, groups, group]
    """

    codec: Codec
    frames: int
    groups: int
    device: torch.device
    live: Tensor | None = None
    x: Tensor | None = None
    states: dict[str, Tensor] = field(default_factory=dict)
    fields: dict[str, Tensor] = field(default_factory=dict)
    uniform: Callable[[int], Tensor] | None = None
    _done: dict[int, Tensor] = field(default_factory=dict)
    _known: dict[int, bool] = field(default_factory=dict)

    def value(self, root: Node) -> Tensor:
        """The node's value. Raises ValueError by name where the graph reads a state or a draw that was not given."""
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [a for a in self._asks(node) if id(a) not in self._done] if id(node) not in self._done else []
            if missing:
                stack += reversed(missing)
                continue
            if id(node) not in self._done:
                self._done[id(node)] = self._evaluate(node).expand(self._shape(node))
            stack.pop()
        return self._done[id(root)]

    def _asks(self, node: Node) -> tuple[Node, ...]:
        """What the node's value is made of: where a condition is the same for the whole batch, the taken side alone."""
        tested = all_finite(node)
        if tested is not None:
            return (tested,)
        if node.op == "select":
            if id(node.args[0]) not in self._done:
                return node.args[:1]
            known = self._known.get(id(node.args[0]))
            if known is not None:
                return (node.args[1 if known else 2],)
        return node.args

    def _evaluate(self, node: Node) -> Tensor:
        tested = all_finite(node)
        if tested is not None:
            return self._finite(node, tested)
        if node.op == "select" and (known := self._known.get(id(node.args[0]))) is not None:
            return self._done[id(node.args[1 if known else 2])]
        return _OPS[node.op](self, node, [self._done[id(a)] for a in node.args])

    def _finite(self, node: Node, tested: Node) -> Tensor:
        """any(not isfinite(v)) or all(isfinite(v)). On CPU a sum tells that a whole batch is finite, as it nearly always is; then `select`
        takes one side. (A sum that overflows is a false alarm.)"""
        v, all = self._done[id(tested)], node.op == "rall"
        if v.device.type == "cpu" and bool(torch.isfinite(v.sum())):
            self._known[id(node)] = all
            return self.full(all, "bool")
        finite = self.masked(torch.isfinite(v), True, tested.whole).all(-1, keepdim=True)
        return finite if all else ~finite

    def _shape(self, node: Node) -> tuple[int, int, int]:
        if node.scope == "array":
            return self.frames, self.groups, node.length
        return (
            (self.frames, self.groups, 1)
            if node.scope == "group"
            else (1 if node.scope == "const" else self.frames, 1, 1)
        )

    def full(self, value: float | int | bool, kind: str) -> Tensor:
        return torch.full((1, 1, 1), value, dtype=_DTYPES[kind], device=self.device)

    def iota(self, length: int) -> Tensor:
        return torch.arange(length, dtype=torch.int32, device=self.device).view(1, 1, length)

    def masked(self, v: Tensor, neutral: float | int | bool, whole: bool = False) -> Tensor:
        """`v` with `neutral` where it is an element of the group that does not exist; a whole array as it is."""
        if self.live is None or v.shape[-1] != self.codec.group or whole:
            return v
        return torch.where(self.live, v, torch.full((), neutral, dtype=v.dtype, device=v.device))


_Op = Callable[[Batch, Node, list[Tensor]], Tensor]


# ---------------------------------------------------------------- leaves


def _const(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    return b.full(_wrapped(n.value) if n.kind == "i32" else n.value, n.kind)


def _wrapped(v: int) -> int:
    return (v + (1 << 31) & _WORD) - (1 << 31)


def _x(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    assert b.x is not None, "a receiver has no x"
    return b.x


def _live(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    if b.live is None:
        b._known[id(n)] = True
        return b.full(True, "bool")
    return b.live


def _count(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    return b.full(b.codec.group, "f32") if b.live is None else b.live.sum(-1, keepdim=True).to(torch.float32)


def _uniform(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    if b.uniform is None:
        raise ValueError(
            f"compressor {b.codec.name} rounds stochastically: give `rng`, an int64 tensor of seed and call number"
        )
    return b.uniform(n.attr[0])


def _state(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    if n.attr[0] not in b.states:
        raise ValueError(f"compressor {b.codec.name} keeps state `{n.attr[0]}`: give its values in `states`")
    return b.states[n.attr[0]]


# ---------------------------------------------------------------- numbers


def _float(bits: Tensor) -> Tensor:
    return bits.contiguous().view(torch.float32)


def _bits(v: Tensor) -> Tensor:
    return v.contiguous().view(torch.int32)


def _ordered(v: Tensor) -> Tensor:
    """int32 that compare as the floats do, with -0.0 below 0.0; its own inverse, but for the type."""
    bits = v if v.dtype == torch.int32 else _bits(v)
    return bits ^ (bits >> 31 & 0x7FFFFFFF)


def _narrow(v: Tensor) -> Tensor:
    """int64 -> int32, wrapping."""
    return ((v + (1 << 31) & _WORD) - (1 << 31)).to(torch.int32)


def _two(pick: Callable[[Tensor, Tensor], Tensor]) -> _Op:
    def run(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
        u, v = a
        if n.kind == "i32":
            return pick(u, v)
        best = _float(_ordered(pick(_ordered(u), _ordered(v))))
        return torch.where(torch.isnan(u), v, torch.where(torch.isnan(v), u, best))

    return run


def _divided(pick: Callable[[Tensor, Tensor], Tensor]) -> _Op:
    def run(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
        by = a[1].to(torch.int64)
        v = pick(a[0].to(torch.int64), torch.where(by == 0, 1, by))
        return _narrow(torch.where(by == 0, 0, v))

    return run


def _shifted(left: bool) -> _Op:
    def run(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
        v, by = a[0].to(torch.int64) & _WORD, a[1].to(torch.int64)
        ok = (by >= 0) & (by < 32)
        by = torch.where(ok, by, 0)
        return _narrow(torch.where(ok, v << by if left else v >> by, 0))

    return run


def _plane(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    shift, bits = n.attr
    return ((a[0].to(torch.int64) & _WORD) >> shift & (1 << bits) - 1).to(torch.int32)


def _rcp(v: Tensor) -> Tensor:
    return torch.div(torch.ones_like(v), v)


def _sqrt(v: Tensor) -> Tensor:
    # Torch's float32 square root on the CPU is one bit off for some values; a float64 one, rounded, never is.
    return torch.sqrt(v.to(torch.float64)).to(torch.float32)


def _to_i32(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    wide = torch.where(torch.isnan(a[0]), 0.0, a[0]).to(torch.float64)
    return wide.clamp(-(2.0**31), 2.0**31 - 1).to(torch.int32)


def _exponent(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    return (_bits(a[0]) >> 23 & 0xFF) - 127


def _power(i: Tensor) -> Tensor:
    return _float(i + 127 << 23)


def _ldexp(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    i = a[1].clamp(-252, 252)
    return a[0] * _power(i >> 1) * _power(i - (i >> 1))


def _quantize(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    if has_no_nan(a[0]):
        v = torch.clamp(a[0], float(n.args[1].value), float(n.args[2].value))
    else:
        v = torch.fmin(torch.fmax(a[0], a[1].to(torch.float32)), a[2].to(torch.float32))
    if len(a) == 3:
        return v.round_().to(torch.int32)
    low = torch.floor(v)
    return low.to(torch.int32) + (a[3] < v - low).to(torch.int32)


def _round_to(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    return round_to(a[0], *n.attr)


# ---------------------------------------------------------------- over a group or a frame


def tree_sum(v: Tensor) -> Tensor:
    """The balanced sum of the last axis, kept as an axis of 1: v[:n/2] + v[n/2:], repeatedly; zeros fill up to a power of two."""
    n = v.shape[-1]
    whole = 1 << (n - 1).bit_length()
    if whole != n:
        v = torch.nn.functional.pad(v, (0, whole - n))
    while v.shape[-1] > 1:
        v = v[..., : v.shape[-1] // 2] + v[..., v.shape[-1] // 2 :]
    return v


def _group_sum(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    return tree_sum(b.masked(a[0], 0.0, n.args[0].whole))


def _extreme(v: Tensor, largest: bool) -> Tensor:
    if has_no_nan(v):
        best = v.amax(-1, keepdim=True) if largest else v.amin(-1, keepdim=True)
        if not bool((best == 0.0).any()):  # which of 0.0 and -0.0 it is, bits tell
            return best
    key = _ordered(torch.where(torch.isnan(v), -math.inf if largest else math.inf, v))
    return _float(_ordered(key.amax(-1, keepdim=True) if largest else key.amin(-1, keepdim=True)))


def _group_extreme(b: Batch, n: Node, v: Tensor, largest: bool) -> Tensor:
    neutral = -math.inf if largest else math.inf
    return _extreme(b.masked(v, neutral, n.args[0].whole), largest)


def _frame_extreme(largest: bool) -> _Op:
    def run(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
        per_group = _group_extreme(b, n, a[0], largest) if n.args[0].scope == "array" else a[0]
        return _extreme(per_group.transpose(1, 2), largest)

    return run


def _frame_sum(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    per_group = _group_sum(b, n, a) if n.args[0].scope == "array" else a[0]
    missing = FRAME // b.codec.group - b.groups
    return tree_sum(torch.nn.functional.pad(per_group.transpose(1, 2), (0, missing)))


def _argmax(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    v = a[0]
    best = _group_extreme(b, n, v, True)
    found = b.masked(v == best, False, n.args[0].whole)
    length = v.shape[-1]
    first = torch.where(found, b.iota(length), length).amin(-1, keepdim=True)
    return torch.where(first == length, 0, first).to(torch.int32)


def _top(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    v = a[0]
    real = b.masked(~torch.isnan(v), False, n.args[0].whole)
    # Adding 0.0 makes -0.0 tie with 0.0.
    key = torch.where(real, _ordered(v + 0.0).to(torch.int64), -(1 << 32))
    order = torch.sort(key, dim=-1, descending=True, stable=True).indices[..., : n.attr[0]]
    chosen = torch.zeros_like(key, dtype=torch.bool)
    return chosen.scatter(-1, order, True) & real


def _first(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    cond, k = b.masked(a[0], False, n.args[0].whole), n.attr[0]
    length = cond.shape[-1]
    where = torch.where(cond, b.iota(length), length)
    found = torch.sort(where, dim=-1).values[..., :k]
    return torch.nn.functional.pad(found, (0, k - found.shape[-1]), value=length).to(torch.int32)


# ---------------------------------------------------------------- moving elements


def _inside(index: Tensor, length: int) -> Tensor:
    return (index >= 0) & (index < length)


def _gather(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    v, index = a
    ok = _inside(index, v.shape[-1])
    got = torch.gather(v, -1, torch.where(ok, index, 0).to(torch.int64))
    return torch.where(ok, got, torch.zeros((), dtype=v.dtype, device=v.device))


def _at(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    return _gather(b, n, [a[0], a[1].expand(b.frames, b.groups, 1)])


def _put(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    return torch.where(b.iota(n.length) == a[1], a[2], a[0])


def _scatter(b: Batch, n: Node, a: list[Tensor]) -> Tensor:
    index, v = a
    length = n.attr[0]
    slot = torch.where(_inside(index, length), index, length).to(torch.int64)
    order = b.iota(v.shape[-1]).expand(v.shape)
    writer = torch.full((b.frames, b.groups, length + 1), -1, dtype=torch.int32, device=b.device)
    return _gather(b, n, [v, writer.scatter_reduce(-1, slot, order, "amax")[..., :length]])


def butterflies(v: Tensor, size: int) -> Tensor:
    """Orthonormal Hadamard transform of blocks of `size` along the last axis: strides 1, 2, .. size/2, then one multiply."""
    shape, stride = v.shape, 1
    while stride < size:
        pairs = v.reshape(*shape[:-1], shape[-1] // (2 * stride), 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        v = torch.stack((low + high, low - high), dim=-2)
        stride *= 2
    return v.reshape(shape) * f32(1 / math.sqrt(size))


# ---------------------------------------------------------------- the table


def _plain(fn: Callable[..., Tensor]) -> _Op:
    return lambda b, n, a: fn(*a)


_OPS: dict[str, _Op] = {
    "const": _const,
    "x": _x,
    "live": _live,
    "count": _count,
    "iota": lambda b, n, a: b.iota(n.length),
    "uniform": _uniform,
    "field": lambda b, n, a: b.fields[n.attr[0]],
    "state": _state,
    "add": _plain(torch.add),
    "sub": _plain(torch.sub),
    "mul": _plain(torch.mul),
    "div": _plain(torch.div),
    "rcp": _plain(_rcp),
    "idiv": _divided(torch.floor_divide),
    "imod": _divided(torch.remainder),
    "shl": _shifted(True),
    "shr": _shifted(False),
    "and_bits": _plain(torch.bitwise_and),
    "or_bits": _plain(torch.bitwise_or),
    "xor_bits": _plain(torch.bitwise_xor),
    "neg": _plain(torch.neg),
    "abs": _plain(torch.abs),
    "floor": _plain(torch.floor),
    "sqrt": _plain(_sqrt),
    "rsqrt": lambda b, n, a: _rcp(_sqrt(a[0])),
    "sign": lambda b, n, a: (a[0] > 0).to(a[0].dtype) - (a[0] < 0).to(a[0].dtype),
    "round": _plain(torch.round),
    "min2": _two(torch.minimum),
    "max2": _two(torch.maximum),
    "select": _plain(torch.where),
    "eq": _plain(torch.eq),
    "ne": _plain(torch.ne),
    "lt": _plain(torch.lt),
    "le": _plain(torch.le),
    "gt": _plain(torch.gt),
    "ge": _plain(torch.ge),
    "both": _plain(torch.logical_and),
    "either": _plain(torch.logical_or),
    "invert": _plain(torch.logical_not),
    "isfinite": _plain(torch.isfinite),
    "to_f32": lambda b, n, a: a[0].to(torch.float32),
    "to_i32": _to_i32,
    "bits": _plain(_bits),
    "from_bits": _plain(_float),
    "exponent": _exponent,
    "ldexp": _ldexp,
    "rmax": lambda b, n, a: _group_extreme(b, n, a[0], True),
    "rmin": lambda b, n, a: _group_extreme(b, n, a[0], False),
    "rsum": _group_sum,
    "rany": lambda b, n, a: b.masked(a[0], False, n.args[0].whole).any(-1, keepdim=True),
    "rall": lambda b, n, a: b.masked(a[0], True, n.args[0].whole).all(-1, keepdim=True),
    "argmax": _argmax,
    "at": _at,
    "put": _put,
    "fmax": _frame_extreme(True),
    "fmin": _frame_extreme(False),
    "fsum": _frame_sum,
    "hadamard": lambda b, n, a: butterflies(a[0], n.attr[0]),
    "quantize": _quantize,
    "round_to": _round_to,
    "spread": lambda b, n, a: a[0],
    "whole": lambda b, n, a: a[0],
    "slice": lambda b, n, a: a[0][..., n.attr[0] : n.attr[1]],
    "concat": lambda b, n, a: torch.cat(a, dim=-1),
    "plane": _plane,
    "top": _top,
    "gather": _gather,
    "scatter": _scatter,
    "first": _first,
}
