"""Helpers that generated Triton kernels import for values of a group or a frame: reductions, butterflies, moving elements, random draws.

Bit for bit the operations of evaluate.py and philox.py; triton_lib.py says how, and what the shapes are.
"""

# Constants of a Triton function are annotated tl.constexpr, which to a type checker is not the number that it stands for.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from .triton_lib import INTERPRET, as_float, as_int, columns

_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.constexpr_function
def _log2(n: int) -> int:
    return n.bit_length() - 1


@triton.constexpr_function
def _root(size: int) -> float:
    return size**-0.5


@triton.jit
def inside(left, G: tl.constexpr, P: tl.constexpr):
    """bool [G, P]: which elements of a tile exist, of which `left` do."""
    return tl.arange(0, G)[:, None] * P + tl.arange(0, P)[None, :] < left


@triton.jit
def live_count(left, G: tl.constexpr, P: tl.constexpr):
    """float32[G]: how many elements of each group exist."""
    return tl.minimum(tl.maximum(left - tl.arange(0, G) * P, 0), P).to(tl.float32)


@triton.jit
def _max_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def peak(v):
    """The largest magnitude of each group, NaN where the group has one: one reduction says both the scale and whether all are finite."""
    if INTERPRET:
        return as_float(tl.max(as_int(v) & _MAGNITUDE, 1))
    else:
        return tl.reduce(tl.abs(v), 1, _max_or_nan)


@triton.jit
def _min_or_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def highest(v):
    """The largest value of each group, NaN where the group has one."""
    if INTERPRET:
        return tl.where(any_of(v != v), float("nan"), largest(v))
    else:
        return tl.reduce(v, 1, _max_or_nan)


@triton.jit
def lowest(v):
    """The least value of each group, NaN where the group has one."""
    if INTERPRET:
        return tl.where(any_of(v != v), float("nan"), least(v))
    else:
        return tl.reduce(v, 1, _min_or_nan)


@triton.jit
def _ordered(bits):
    """int32 that compare as the floats do, -0.0 below 0.0; its own inverse."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


@triton.jit
def largest(v):
    """Over the last axis; NaN ignored, -inf where there is nothing else."""
    if INTERPRET:
        key = _ordered(as_int(tl.where(v == v, v, float("-inf"))))
        return as_float(_ordered(tl.max(key, len(v.shape) - 1)))
    else:
        best = tl.max(v, len(v.shape) - 1)
        return tl.where(best == best, best, float("-inf"))


@triton.jit
def least(v):
    """Over the last axis; NaN ignored, +inf where there is nothing else."""
    if INTERPRET:
        key = _ordered(as_int(tl.where(v == v, v, float("inf"))))
        return as_float(_ordered(tl.min(key, len(v.shape) - 1)))
    else:
        best = tl.min(v, len(v.shape) - 1)
        return tl.where(best == best, best, float("inf"))


@triton.jit
def _max_of_bits(a, b):
    return tl.maximum(a, b)


@triton.jit
def top_difference(v):
    """The largest value of each group, of which none is NaN: of the bits, three at once. Anything not above 0.0 where there is none above."""
    if INTERPRET:
        return as_float(tl.max(as_int(v), 1))
    else:
        return as_float(tl.reduce(as_int(v), 1, _max_of_bits))


@triton.jit
def any_of(v):
    return tl.max(v.to(tl.int32), 1) != 0


@triton.jit
def all_of(v):
    return tl.min(v.to(tl.int32), 1) != 0


@triton.jit
def tree_sum(v):
    """[G, P] -> [G], the balanced tree v[:P/2] + v[P/2:], repeatedly."""
    G: tl.constexpr = v.shape[0]
    P: tl.constexpr = v.shape[1]
    for i in tl.static_range(_log2(P)):
        halves = tl.reshape(v, (G, 2, P >> (i + 1)))
        if INTERPRET:
            low, high = tl.split(tl.permute(halves, (0, 2, 1)))
            v = low + high
        else:
            v = tl.sum(halves, 1)
    return tl.reshape(v, (G,))


@triton.jit
def frame_sum(v):
    """The tree over one value a group."""
    # One value is left; its bits, because a sum may lose the sign of -0.0.
    return as_float(tl.sum(as_int(tree_sum(v[None, :])), 0))


@triton.jit
def hadamard(v, SIZE: tl.constexpr):
    """Orthonormal transform of consecutive blocks of SIZE of a flat tile: butterflies of stride 1, 2, .. SIZE/2, then one multiply.

    The partner of each value comes from a wrapping sum of the pair's bits, less its own: one shuffle, whatever the layout. A product with 1 or
    -1 is exact, so that one instruction adds or subtracts.
    """
    return butterflies(v, SIZE, 0) * _root(SIZE)


@triton.jit
def butterflies(v, SIZE: tl.constexpr, FIRST: tl.constexpr):
    """Those of strides from 2^FIRST on."""
    N: tl.constexpr = v.shape[0]
    sign = tl.where(tl.arange(0, 2)[None, :, None] == 1, -1.0, 1.0)
    for i in tl.static_range(FIRST, _log2(SIZE)):
        pair = tl.reshape(v, (N >> (i + 1), 2, 1 << i))
        bits = as_int(pair)
        partner = as_float(tl.sum(bits, 1)[:, None, :] - bits)
        v = tl.reshape(tl.fma(pair, sign, partner), (N,))
    return v


@triton.jit
def at(v, index):
    """[G, P], [G] -> [G]: the element at the index, 0 outside. By bits, since adding would lose -0.0 and NaN."""
    found = columns(v.shape[1]) == index[:, None]
    if v.dtype == tl.float32:
        return as_float(tl.sum(tl.where(found, as_int(v), 0), 1))
    else:
        return tl.sum(tl.where(found, v.to(tl.int32), 0), 1)


@triton.jit
def put(v, index, value):
    """[G, P], [G], [G]: the element at the index replaced."""
    return tl.where(columns(v.shape[1]) == index[:, None], value[:, None], v)


@triton.jit
def argmax(v, live, ALL: tl.constexpr):
    """[G] int32: the lowest index of the largest live element, NaN ignored; 0 where there is none. ALL: every element is live."""
    P: tl.constexpr = v.shape[1]
    best = largest(v if ALL else tl.where(live, v, float("nan")))
    hit = v == best[:, None]
    first = tl.min(tl.where(hit if ALL else hit & live, columns(P), P), 1)
    return tl.where(first == P, 0, first)


@triton.jit
def place(v, value):
    """[G] int32: the lowest index of an element equal to `value`; 0 where there is none."""
    P: tl.constexpr = v.shape[1]
    first = tl.min(tl.where(v == value[:, None], columns(P), P), 1)
    return tl.where(first == P, 0, first)


@triton.jit
def extreme(v, peak):
    """[G]: the first element of the largest magnitude, `peak` of finite values; its place and sign are found by one minimum."""
    P: tl.constexpr = v.shape[1]
    key = columns(P) * 2 + (as_int(v).to(tl.uint32, bitcast=True) >> 31).to(tl.int32, bitcast=True)
    first = tl.min(tl.where(tl.abs(v) == peak[:, None], key, 2 * P), 1)
    return as_float(as_int(peak) | (first << 31))


@triton.jit
def top(v, live, K: tl.constexpr, ALL: tl.constexpr):
    """[G, P] bool: the K largest live elements, ties to the lowest index, NaN never."""
    P: tl.constexpr = v.shape[1]
    NONE: tl.constexpr = -0x80000000
    key = tl.where(v == v if ALL else live & (v == v), _ordered(as_int(v + 0.0)), NONE)
    taken = tl.zeros(v.shape, tl.int32)
    for _ in range(K):
        best = tl.max(key, 1)
        first = tl.min(tl.where(key == best[:, None], columns(P), P), 1)
        chosen = (columns(P) == first[:, None]) & (best != NONE)[:, None]
        taken = tl.where(chosen, 1, taken)
        key = tl.where(chosen, NONE, key)
    return taken != 0


@triton.jit
def first_true(cond, live, LENGTH: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr):
    """[G, WIDTH] int32: the indices of the first K true live elements, LENGTH where there are fewer."""
    P: tl.constexpr = cond.shape[1]
    open = tl.where(cond & live, columns(P), LENGTH)
    found = tl.full((cond.shape[0], WIDTH), LENGTH, tl.int32)
    for k in range(K):
        index = tl.min(open, 1)
        found = tl.where(columns(WIDTH) == k, index[:, None], found)
        open = tl.where(open == index[:, None], LENGTH, open)
    return found


@triton.jit
def gather(v, index, LENGTH: tl.constexpr):
    """Elements at each index, 0 outside."""
    inside = (index >= 0) & (index < LENGTH)
    found = tl.gather(v, tl.where(inside, index, 0), 1)
    return tl.where(inside, found, tl.zeros(found.shape, found.dtype))


@triton.jit
def scatter(index, v, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """[G, WIDTH]: zeros, with the COUNT values at their indices; a later duplicate wins, indices outside write nothing."""
    out = tl.zeros((v.shape[0], WIDTH), v.dtype)
    for k in range(COUNT):
        place = tl.full((v.shape[0],), k, tl.int32)
        out = tl.where(columns(WIDTH) == at(index, place)[:, None], at(v, place)[:, None], out)
    return out


@triton.jit
def window(v, START: tl.constexpr, WIDTH: tl.constexpr):
    """[G, WIDTH]: the columns of `v` from START on, 0 beyond its end."""
    index = columns(WIDTH) + START + tl.zeros((v.shape[0], WIDTH), tl.int32)
    return gather(v, index, v.shape[1])


@triton.jit
def paste(out, v, START: tl.constexpr, LENGTH: tl.constexpr):
    """`out` with LENGTH columns of `v` from START on."""
    column = columns(out.shape[1])
    index = column - START + tl.zeros(out.shape, tl.int32)
    return tl.where((column >= START) & (column < START + LENGTH), gather(v, index, LENGTH), out)


# ---------------------------------------------------------------- random draws


@triton.jit
def uniform(rng, key, first, STREAM: tl.constexpr, TILE: tl.constexpr):
    """float32[TILE] in [0, 1) for the elements first, first + 1, ... of a chunk (first is a multiple of 4): philox.uniform."""
    seed = tl.load(rng)
    quad = (first >> 2).to(tl.uint32) + tl.arange(0, TILE // 4).to(tl.uint32)
    still = quad * 0
    k0 = still + seed.to(tl.uint32)
    k1 = still + ((seed >> 32).to(tl.uint32) ^ ((STREAM * 0x9E3779B9) & 0xFFFFFFFF))
    call = still + tl.load(rng + 1).to(tl.uint32)
    a, b, c, d = tl.philox_impl(quad, call, still + key.to(tl.uint32), still + (key >> 32).to(tl.uint32), k0, k1)
    word = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (TILE,))
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
