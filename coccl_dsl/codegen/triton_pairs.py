"""Helpers that generated Triton kernels import for untouched 16-bit inputs: two neighbours a 32-bit word, as they lie in memory.

Hopper compares both halves of a word at once, so that what is asked of a group's values as they came (its ends, where they stand, the next
ones) costs half as much as on float32, and values are widened only once. int32 words hold bfloat16, uint32 words float16. Where there are no words
(float32, partial tiles, unaligned tensors, older GPUs, the interpreter) `load` gives float32 and every function takes the longer way to the same bits.
"""

# Constants of a Triton function are annotated tl.constexpr, which to a type checker is not the number that it stands for.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from . import triton_groups as groups
from .ptx import first_half, next_ends, next_sizes
from .triton_lib import INTERPRET, as_float, as_int, columns
from .triton_memory import load_flat

_NEXT_BF16 = tl.constexpr(next_ends("bf16"))
_NEXT_F16 = tl.constexpr(next_ends("f16"))
_NEXT_SIZE_BF16 = tl.constexpr(next_sizes("bf16"))
_NEXT_SIZE_F16 = tl.constexpr(next_sizes("f16"))
_FIRST = tl.constexpr(first_half())
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.constexpr_function
def _run(own: int, each: int) -> int:
    """Words in a row that a thread gets, at most four loads of `each`."""
    return max(each, min(own // 2, 4 * each))


@triton.jit
def load(
    pointer,
    left,
    TILE: tl.constexpr,
    FULL: tl.constexpr,
    ALIGNED: tl.constexpr,
    OWN: tl.constexpr = 0,
    SPREAD: tl.constexpr = 0,
):
    """int32 or uint32 [TILE / 2] from whole tiles of 16-bit floats that are aligned, else what memory.load_flat gives.

    OWN is load_flat's. With SPREAD a thread's runs of 16 bytes are not one after the other, but lie as far from each other as they can in
    blocks of so many elements: the wide steps of sums and butterflies over a block then need no other thread. Whole tiles of float32 are
    spread as well, in runs of as many elements.
    """
    SHORT: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth == 16
    if FULL and SHORT and ALIGNED and not INTERPRET and cuda_capability_geq(9, 0):
        WORD: tl.constexpr = tl.int32 if pointer.dtype.element_ty == tl.bfloat16 else tl.uint32
        words = pointer.to(tl.pointer_type(WORD))
        ROW: tl.constexpr = _run(OWN, 4)
        if SPREAD > 2 * ROW:
            return _spread(words, ROW, SPREAD // 2, TILE // 2, 1)
        else:
            thread = tl.arange(0, TILE // 2 // ROW)[:, None, None] * ROW
            run = tl.arange(0, ROW // 4)[None, :, None] * 4
            return tl.reshape(tl.load(words + (thread + run + tl.arange(0, 4)[None, None, :])), (TILE // 2,))
    elif FULL and SPREAD > OWN and pointer.dtype.element_ty == tl.float32 and ALIGNED and not INTERPRET:
        return _spread(pointer, OWN, SPREAD, TILE, 2)
    else:
        return load_flat(pointer, left, TILE, FULL, OWN)


@triton.jit
def _spread(pointer, ROW: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, LOADS: tl.constexpr):
    """TILE words of 32 bits, of which a thread gets ROW out of a block, in runs of so many loads of four."""
    LANES: tl.constexpr = BLOCK // ROW
    RUN: tl.constexpr = 4 * LOADS
    # Threads get neighbours along the first axes, which are not contiguous.
    lane = tl.arange(0, LANES)[:, None, None, None, None] * RUN
    block = tl.arange(0, TILE // BLOCK)[None, :, None, None, None] * BLOCK
    run = tl.arange(0, ROW // RUN)[None, None, :, None, None] * (LANES * RUN)
    part = tl.arange(0, LOADS)[None, None, None, :, None] * 4
    each = tl.load(pointer + (lane + block + run + part + tl.arange(0, 4)[None, None, None, None, :]))
    return tl.reshape(tl.permute(each, (1, 2, 0, 3, 4)), (TILE,))


@triton.jit
def _halves(words):
    """The two values of each word, widened."""
    if words.dtype == tl.int32:
        return as_float(words << 16), as_float(words & -0x10000)
    else:
        low, high = (words & 0xFFFF).to(tl.uint16), (words >> 16).to(tl.uint16)
        return low.to(tl.float16, bitcast=True).to(tl.float32), high.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def values(words):
    """float32[TILE] of what `load` gave."""
    if words.dtype == tl.float32:
        return words
    else:
        low, high = _halves(words)
        return tl.reshape(tl.join(low, high), (2 * words.shape[0],))


@triton.jit
def _two(a, b, BF16: tl.constexpr, F16: tl.constexpr):
    """An instruction on both halves."""
    return tl.inline_asm_elementwise(
        BF16 if a.dtype == tl.int32 else F16, "=r,r,r", [a, b], dtype=a.dtype, is_pure=True, pack=1
    )


@triton.jit
def _size(a, b):
    return _two(a, b, "max.NaN.xorsign.abs.bf16x2 $0, $1, $2;", "max.NaN.xorsign.abs.f16x2 $0, $1, $2;")


@triton.jit
def _high(a, b):
    return _two(a, b, "max.NaN.bf16x2 $0, $1, $2;", "max.NaN.f16x2 $0, $1, $2;")


@triton.jit
def _low(a, b):
    return _two(a, b, "min.NaN.bf16x2 $0, $1, $2;", "min.NaN.f16x2 $0, $1, $2;")


@triton.jit
def peak(words, v):
    """groups.peak of `v`, the values of `words`."""
    if words.dtype == tl.float32:
        return groups.peak(v)
    else:
        low, high = _halves(tl.reduce(tl.reshape(words, (v.shape[0], v.shape[1] // 2)), 1, _size))
        return tl.maximum(tl.abs(low), tl.abs(high), propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def highest(words, v):
    """groups.highest of `v`, the values of `words`."""
    if words.dtype == tl.float32:
        return groups.highest(v)
    else:
        low, high = _halves(tl.reduce(tl.reshape(words, (v.shape[0], v.shape[1] // 2)), 1, _high))
        return tl.maximum(low, high, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def lowest(words, v):
    """groups.lowest of `v`, the values of `words`."""
    if words.dtype == tl.float32:
        return groups.lowest(v)
    else:
        low, high = _halves(tl.reduce(tl.reshape(words, (v.shape[0], v.shape[1] // 2)), 1, _low))
        return tl.minimum(low, high, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _neighbours(words, v):
    """The even and the odd words of each group, [G, P / 4]: a thread has both. All that goes through a group takes its words in this form, so
    that no value changes threads in between."""
    return tl.split(tl.reshape(words, (v.shape[0], v.shape[1] // 4, 2)))


@triton.jit
def _merge(high, next_high, deep, next_deep, high_2, next_high_2, deep_2, next_deep_2):
    return tl.inline_asm_elementwise(
        _NEXT_BF16 if high.dtype == tl.int32 else _NEXT_F16,
        "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r",
        [high, next_high, deep, next_deep, high_2, next_high_2, deep_2, next_deep_2],
        dtype=(high.dtype, high.dtype, high.dtype, high.dtype),
        is_pure=True,
        pack=1,
    )


@triton.jit
def ends(words, v, live, FULL: tl.constexpr):
    """The largest value of each group and the next one, the least and the next one: [G] each. The first and the third are NaN where the group
    has one, the others anything. Of equal values both count; where they are zeros, the next one may have either sign."""
    if words.dtype == tl.float32:
        high = groups.highest(v if FULL else tl.where(live, v, float("-inf")))
        deep = groups.lowest(v if FULL else tl.where(live, v, float("inf")))
        rest = groups.put(v, groups.place(v, high), deep)
        next_high = groups.largest(rest if FULL else tl.where(live, rest, float("-inf")))
        rest = groups.put(v, groups.place(v, deep), high)
        next_deep = groups.least(rest if FULL else tl.where(live, rest, float("inf")))
        return high, next_high, deep, next_deep
    else:
        a, b = _neighbours(words, v)
        large, small = _high(a, b), _low(a, b)
        high, next_high, deep, next_deep = tl.reduce((large, small, small, large), 1, _merge)
        a, b = _halves(high)
        c, d = _halves(next_high)
        next_high = tl.maximum(tl.minimum(a, b), tl.maximum(c, d))
        high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
        a, b = _halves(deep)
        c, d = _halves(next_deep)
        next_deep = tl.minimum(tl.maximum(a, b), tl.minimum(c, d))
        deep = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
        return high, next_high, deep, next_deep


@triton.jit
def _merge_sizes(peak, after, peak_2, after_2):
    return tl.inline_asm_elementwise(
        _NEXT_SIZE_BF16 if peak.dtype == tl.int32 else _NEXT_SIZE_F16,
        "=&r,=&r,r,r,r,r",
        [peak, after, peak_2, after_2],
        dtype=(peak.dtype, peak.dtype),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _merge_bits(peak, after, peak_2, after_2):
    return tl.maximum(peak, peak_2), tl.maximum(after, tl.maximum(after_2, tl.minimum(peak, peak_2)))


@triton.jit
def peaks(words, v, live, FULL: tl.constexpr):
    """The largest magnitude of each group, NaN where the group has one, and the next one, 0 where there is none, anything where the first is
    not finite: [G] each. Of equal magnitudes both count."""
    if words.dtype == tl.float32:
        size = tl.abs(v if FULL else tl.where(live, v, 0.0))
        if not INTERPRET:
            a, b = tl.split(tl.reshape(as_int(size), (v.shape[0], v.shape[1] // 2, 2)))
            peak, after = tl.reduce((tl.maximum(a, b), tl.minimum(a, b)), 1, _merge_bits)
            return as_float(peak), as_float(after)
        peak = groups.peak(size)
        zero = tl.zeros(peak.shape, tl.float32)
        return peak, groups.largest(groups.put(size, groups.place(size, peak), zero))
    else:
        a, b = _neighbours(words, v)
        a, b = a & 0x7FFF7FFF, b & 0x7FFF7FFF
        peak, after = tl.reduce((_high(a, b), _low(a, b)), 1, _merge_sizes)
        a, b = _halves(peak)
        c, d = _halves(after)
        after = tl.maximum(tl.minimum(a, b), tl.maximum(c, d))
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL), after


@triton.jit
def hadamard(words, v, SCALE: tl.constexpr, SIZE: tl.constexpr):
    """groups.hadamard of `v * SCALE`, [G, P], where `v` are the values of `words`. Both factors are applied in the first step, exactly."""
    if words.dtype == tl.float32:
        turned = groups.hadamard(tl.reshape(v * SCALE, (v.shape[0] * v.shape[1],)), SIZE)
    else:
        low, high = _halves(words)
        FACTOR: tl.constexpr = _factor(SCALE, SIZE)
        low = low * FACTOR
        both = tl.join(tl.fma(high, FACTOR, low), tl.fma(high, -FACTOR, low))
        turned = groups.butterflies(tl.reshape(both, (v.shape[0] * v.shape[1],)), SIZE, 1)
    return tl.reshape(turned, v.shape)


@triton.constexpr_function
def _factor(scale: float, size: int) -> float:
    return scale * size**-0.5


@triton.jit
def _any(a, b):
    return a | b


@triton.constexpr_function
def _each(count: int) -> int:
    """Words of a half of 16 at most, out of `count`."""
    return min(8, count)


@triton.jit
def _splat(value, words):
    """[G]: both halves `value`, which is one of the words' values, or NaN."""
    if words.dtype == tl.int32:
        bits = as_int(value)
        return (bits >> 16) & 0xFFFF | (bits & -0x10000)
    else:
        bits = value.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.uint32)
        return bits | (bits << 16)


@triton.jit
def _same(a, b):
    """Halves of ones where the values are equal."""
    same = _two(a, b, "set.eq.u32.bf16x2 $0, $1, $2;", "set.eq.u32.f16x2 $0, $1, $2;")
    return same.to(tl.int32, bitcast=True)


@triton.jit
def _first(even, odd):
    """[G]: the first of 4 P elements whose half is ones, of even and odd words int32 [G, P]; 4 P where none is."""
    G: tl.constexpr = even.shape[0]
    P: tl.constexpr = even.shape[1]
    EACH: tl.constexpr = _each(P)
    PARTS: tl.constexpr = P // EACH
    # A bit for each half of up to 16 words: those of the low halves in the low half of the mask.
    bit = (0x10001 << (2 * tl.arange(0, EACH)))[None, :]
    bits = (tl.reshape(even, (G * PARTS, EACH)) & bit) | (tl.reshape(odd, (G * PARTS, EACH)) & (bit << 1))
    mask = tl.reduce(bits, 1, _any)
    at = tl.inline_asm_elementwise(_FIRST, "=r,r", [mask], dtype=tl.int32, is_pure=True, pack=1)
    at = tl.reshape(tl.where(mask == 0, 4 * P, at), (G, PARTS)) + columns(PARTS) * (4 * EACH)
    return tl.minimum(tl.min(at, 1), 4 * P)


@triton.jit
def place(words, v, value):
    """groups.place of `v`, the values of `words`. `value` is one of them, or NaN."""
    if words.dtype == tl.float32:
        return groups.place(v, value)
    else:
        a, b = _neighbours(words, v)
        wanted = _splat(value, words)[:, None]
        at = _first(_same(a, wanted), _same(b, wanted))
        return tl.where(at == v.shape[1], 0, at)


@triton.jit
def _signs(words):
    """Halves of ones where the values are negative."""
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $1, 0xBB99;", "=r,r", [words], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def extreme(words, v, peak):
    """The place of the first element of the largest magnitude, `peak`, and the element where it is finite: [G] each."""
    if words.dtype == tl.float32:
        return groups.place(tl.abs(v), peak), groups.extreme(v, peak)
    else:
        a, b = _neighbours(words, v)
        wanted = _splat(peak, words)[:, None]
        even, odd = _same(a & 0x7FFF7FFF, wanted), _same(b & 0x7FFF7FFF, wanted)
        at = _first(even, odd)
        negative = _first(even & _signs(a), odd & _signs(b)) == at
        return tl.where(at == v.shape[1], 0, at), as_float(as_int(peak) | tl.where(negative, -0x80000000, 0))


@triton.jit
def _not_below(bits, size):
    """int32, all ones where the magnitude is at least `size`: a predicate each, as the compiler would have it, is too many to keep."""
    if INTERPRET:
        return tl.where((bits & _MAGNITUDE) >= size, -1, 0)
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 size; and.b32 size, $1, 0x7FFFFFFF; sub.s32 size, size, $2; shr.s32 size, size, 31; not.b32 $0, size; }",
            "=r,r,r",
            [bits, size],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def lone(words, v, peak, above):
    """Where `above`, which says that one element alone has the magnitude `peak`: its place, and the group, as `words` are, with this and the
    first element swapped. Elsewhere 0 and the group as it is."""
    if words.dtype == tl.float32:
        a, b = tl.split(tl.reshape(as_int(v), (v.shape[0], v.shape[1] // 2, 2)))
        wanted = tl.where(above, as_int(peak), _MAGNITUDE)[:, None]
        even, odd = _not_below(a, wanted), _not_below(b, wanted)
        place = columns(v.shape[1] // 2) * 2
        at = tl.where(above, tl.reduce((even & place) | (odd & (place + 1)), 1, _any), 0)
        value = tl.reduce((even & a) | (odd & b), 1, _any)
        starts = place == 0
        first = tl.reduce(tl.where(starts, a, 0), 1, _any)[:, None]
        a, b = (even & first) | (~even & a), (odd & first) | (~odd & b)
        a = tl.where(starts & above[:, None], value[:, None], a)
        return at, as_float(tl.reshape(tl.join(a, b), v.shape))
    else:
        a, b = _neighbours(words, v)
        wanted = _splat(tl.where(above, peak, float("nan")), words)[:, None]
        even, odd = _same(a & 0x7FFF7FFF, wanted), _same(b & 0x7FFF7FFF, wanted)
        a, b = a.to(tl.int32, bitcast=True), b.to(tl.int32, bitcast=True)
        place = columns(v.shape[1] // 4) * 0x40004 + 0x10000
        at = tl.reduce((even & place) | (odd & (place + 0x20002)), 1, _any)
        value = tl.reduce((even & a) | (odd & b), 1, _any)
        value = (value | (value >> 16)) & 0xFFFF
        starts = columns(v.shape[1] // 4) == 0
        first = tl.reduce(tl.where(starts, a & 0xFFFF, 0), 1, _any)
        first = (first | (first << 16))[:, None]
        a, b = (even & first) | (~even & a), (odd & first) | (~odd & b)
        a = tl.where(starts & above[:, None], (a & -0x10000) | value[:, None], a)
        return (at | (at >> 16)) & 0xFFFF, tl.reshape(tl.join(a, b), words.shape).to(words.dtype, bitcast=True)


@triton.jit
def grouped(swapped, v):
    """The values of what `lone` gave, [G, P]."""
    return tl.reshape(values(tl.reshape(swapped, (swapped.numel,))), v.shape)
