"""Helpers that generated Triton kernels import: casts, rounding, arithmetic. triton_groups.py has those over a group, triton_memory.py loads and stores.

Everything here agrees bit for bit with the eager back end (casts.py, evaluate.py, philox.py), compiled for a GPU and under Triton's
interpreter. Where the interpreter's arithmetic is not the hardware's (casts to bfloat16, NaN and -0.0 in minima and maxima), or where it
lacks an operation (inline assembly, fast custom reductions), `INTERPRET` picks another way to the same bits.

Shapes: G groups of a tile, P values a group (a power of two). `left` is how many groups or elements of the tile exist. FULL means that all
of them do; it is known when the kernel is compiled, so that whole tiles pay for no masks.
"""

# Constants of a Triton function are annotated tl.constexpr, which to a type checker is not the number that it stands for.
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportAssignmentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton import knobs
from triton.language.target_info import cuda_capability_geq

from .ptx import clamped_codes, eight_bits, from_eight_bits, odd_values, signs

INTERPRET = tl.constexpr(bool(knobs.runtime.interpret))

_INF = tl.constexpr(0x7F800000)
_NAN = tl.constexpr(0x7FC00000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_MAGIC = tl.constexpr(12582912.0)
_MAGIC_BITS = tl.constexpr(0x4B400000)

# type -> bits, mantissa bits, smallest normal exponent, float32 bits of the largest value, has Inf, code of NaN (casts.py explains them).
_FORMATS: dict[str, tuple[int, int, int, int, bool, int]] = {
    "f32": (32, 23, -126, 0x7F7FFFFF, True, 0x7FC00000),
    "bf16": (16, 7, -126, 0x7F7F0000, True, 0x7FC0),
    "f16": (16, 10, -14, 0x477FE000, True, 0x7E00),
    "e4m3": (8, 3, -6, 0x43E00000, False, 0x7F),
    "e5m2": (8, 2, -14, 0x47600000, True, 0x7F),
    "e2m1": (4, 1, 0, 0x40C00000, False, 0x7),
}


_ROUND_BF16 = tl.constexpr(odd_values("bf16", False))
_ROUND_BF16_PAIRS = tl.constexpr(odd_values("bf16", True))
_ROUND_F16_PAIRS = tl.constexpr(odd_values("f16", True))
_E4M3 = tl.constexpr(eight_bits("e4m3"))
_E5M2 = tl.constexpr(eight_bits("e5m2"))
_FROM_E4M3 = tl.constexpr(from_eight_bits("e4m3"))
_FROM_E5M2 = tl.constexpr(from_eight_bits("e5m2"))
_SIGNS = tl.constexpr(signs())
_CODES_4 = tl.constexpr(clamped_codes(4))
_CODES_8 = tl.constexpr(clamped_codes(8))
_EIGHT = tl.constexpr("=&r,=&r,=&r,=&r,f,f,f,f,f,f,f,f")


@triton.constexpr_function
def _format(type: str, what: int) -> Any:
    return _FORMATS[type][what]


@triton.jit
def as_int(v):
    return v.to(tl.int32, bitcast=True)


@triton.jit
def as_float(v):
    return v.to(tl.float32, bitcast=True)


# ---------------------------------------------------------------- casts


@triton.jit
def _power_of_two(v, UP: tl.constexpr):
    """round_to for e8m0."""
    bits = as_int(v)
    magnitude = bits & _MAGNITUDE
    if UP:
        power = (magnitude + 0x7FFFFF) & -0x800000
        least = magnitude <= 0x400000
    else:
        power = (magnitude + 0x400000) & -0x800000
        least = magnitude < 0x600000
    power = tl.where(magnitude < 0x800000, 0x800000, power)
    power = tl.where(least | (bits < 0), 0x400000, tl.minimum(power, 0x7F000000))
    return as_float(tl.where(magnitude > _INF, _NAN, power))


@triton.jit
def _round_float(v, TYPE: tl.constexpr, UP: tl.constexpr, FLUSH: tl.constexpr, PLAIN: tl.constexpr):
    """round_to for types with a mantissa."""
    MANTISSA: tl.constexpr = _format(TYPE, 1)
    LOW: tl.constexpr = _format(TYPE, 2)
    LARGEST: tl.constexpr = _format(TYPE, 3)
    TAIL: tl.constexpr = (1 << (23 - MANTISSA)) - 1
    bits = as_int(v)
    SIGNED: tl.constexpr = PLAIN == 0 or PLAIN == 3
    magnitude = bits & _MAGNITUDE if SIGNED else bits
    if TAIL == 0:
        rounded = magnitude
    elif UP:
        rounded = (magnitude + TAIL) & ~TAIL
    else:
        rounded = (magnitude + (TAIL >> 1) + ((magnitude >> (23 - MANTISSA)) & 1)) & ~TAIL
    if LOW > -126:
        # Adding this makes the unit of the last place that of the type's subnormal numbers.
        SHIFT: tl.constexpr = 2.0 ** (LOW - MANTISSA + 23)
        size = as_float(magnitude)
        near = (size + SHIFT) - SHIFT
        if UP:
            near = tl.where(near < size, near + 2.0 ** (LOW - MANTISSA), near)
        rounded = tl.where(magnitude < ((LOW + 127) << 23), as_int(near), rounded)
    rounded = tl.minimum(rounded, LARGEST)
    if PLAIN < 2:
        if _format(TYPE, 4):
            rounded = tl.where(magnitude == _INF, _INF, rounded)
    if SIGNED:
        rounded = rounded | (bits ^ magnitude)
    if FLUSH:
        rounded = tl.where((rounded & _MAGNITUDE if SIGNED else rounded) < 0x800000, 0, rounded)
    if PLAIN == 0:
        rounded = tl.where(magnitude > _INF, LARGEST if TYPE == "e2m1" else _NAN, rounded)
    return as_float(rounded)


@triton.jit
def round_to(v, TYPE: tl.constexpr, UP: tl.constexpr, FLUSH: tl.constexpr, PLAIN: tl.constexpr = 0):
    """The values that fields of TYPE hold for `v`: casts.round_to. PLAIN saves work: 1, v is neither negative nor NaN; 2, and it is finite;
    3, v is finite."""
    if TYPE == "e8m0":
        return _power_of_two(v, UP)
    else:
        return _round_float(v, TYPE, UP, FLUSH, PLAIN)


@triton.jit
def round_down(v, TYPE: tl.constexpr, FLUSH: tl.constexpr, FINITE: tl.constexpr = False):
    """casts.round_to towards -inf: what `up` gives where v is negative, and the largest value up to v elsewhere."""
    if FINITE and (TYPE == "bf16" or TYPE == "f32"):
        whole = as_int(v)
        if TYPE == "bf16":
            magnitude = whole & _MAGNITUDE
            lower = (magnitude + ((whole >> 31) & 0xFFFF)) & -0x10000
            whole = tl.minimum(lower, _format(TYPE, 3)) | (whole ^ magnitude)
        if FLUSH:
            whole = tl.where((whole & _MAGNITUDE) < 0x800000, 0, whole)
        return as_float(whole)
    up = round_to(v, TYPE, True, FLUSH)
    bits = as_int(v)
    if TYPE == "e8m0":
        power = tl.minimum(tl.maximum(bits & -0x800000, 0x400000), 0x7F000000)
        return tl.where(bits >= 0, tl.where(bits > _INF, up, as_float(power)), up)
    else:
        MANTISSA: tl.constexpr = _format(TYPE, 1)
        LOW: tl.constexpr = _format(TYPE, 2)
        below = bits & -(1 << (23 - MANTISSA))
        if LOW > -126:
            UNIT: tl.constexpr = 2.0 ** (LOW - MANTISSA)
            small = tl.floor(as_float(tl.minimum(bits, (LOW + 127) << 23)) * (1.0 / UNIT)) * UNIT
            below = tl.where(bits < ((LOW + 127) << 23), as_int(small), below)
        below = tl.minimum(below, _format(TYPE, 3))
        if FLUSH:
            below = tl.where(below < 0x800000, 0, below)
        return tl.where((bits >= 0) & (bits < _INF), as_float(below), up)


@triton.jit
def to_bits16(v, TYPE: tl.constexpr):
    """int16 bits of `v` rounded to bf16 or f16: nearest even, finite values saturate, canonical NaN."""
    if INTERPRET:
        return encode(round_to(v, TYPE, False, False), TYPE).to(tl.int16)
    else:
        BF16: tl.constexpr = _ROUND_BF16_PAIRS if cuda_capability_geq(9, 0) else _ROUND_BF16
        ROUND: tl.constexpr = BF16 if TYPE == "bf16" else _ROUND_F16_PAIRS
        return tl.inline_asm_elementwise(ROUND, _EIGHT, [v], dtype=tl.int16, is_pure=True, pack=8)


@triton.jit
def power_of_two(i):
    """round_to(ldexp(1, i), e8m0, nearest): 2^i within 2^-127 .. 2^127."""
    return as_float(tl.where(i < -126, 0x400000, (tl.minimum(i, 127) + 127) << 23))


@triton.jit
def reciprocal_of_power(v):
    """IEEE 1/v for values of e8m0: NaN or 2^-127 .. 2^127."""
    bits = as_int(v)
    inverse = tl.where(bits == 0x400000, 0x7F000000, 0x7F000000 - bits)
    inverse = tl.where(bits == 0x7F000000, 0x400000, inverse)
    return as_float(tl.where(bits > _INF, _NAN, inverse))


@triton.jit
def _size_of_e2m1(v):
    """The code of a magnitude, above _MAGIC_BITS. Codes step by 0.5 up to 2, by 1 up to 4, then by 2: the least of three roundings, each a
    sum whose last place is 1. NaN becomes 6."""
    size = tl.abs(v)
    fine, middle = as_int(tl.fma(size, 2.0, _MAGIC)), as_int(size + (_MAGIC + 2.0))
    coarse = as_int(tl.fma(size, 0.5, _MAGIC + 4.0))
    return tl.minimum(tl.minimum(fine, middle), tl.minimum(coarse, _MAGIC_BITS + 7))


@triton.constexpr_function
def _eight_sizes() -> int:
    """What _MAGIC_BITS adds to a word of eight e2m1 codes, less."""
    total = -sum(0x4B400000 << (4 * i) for i in range(8)) % (1 << 32)
    return total - (1 << 32) if total >> 31 else total


@triton.jit
def _eight(v):
    """Eight neighbours each, apart."""
    even, odd = tl.split(tl.reshape(v, (v.numel // 8, 2, 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    v0, v4 = tl.split(a)
    v1, v5 = tl.split(b)
    v2, v6 = tl.split(c)
    v3, v7 = tl.split(d)
    return v0, v1, v2, v3, v4, v5, v6, v7


@triton.jit
def nearest_words(v, TYPE: tl.constexpr, PRODUCT: tl.constexpr = False, FULL: tl.constexpr = False):
    """nearest_bits of [G, P] e2m1 values; of whole tiles int32[G * P / 8], as memory.store_codes would pack them, which saves work."""
    COUNT: tl.constexpr = v.shape[0] * v.shape[1] // 8
    if INTERPRET or not FULL or not PRODUCT or v.shape[1] < 8:
        return nearest_bits(v, TYPE, PRODUCT)
    else:
        sizes = tl.reshape(_size_of_e2m1(v), (COUNT, 8)) << (tl.arange(0, 8) * 4)[None, :]
        sign = tl.inline_asm_elementwise(_SIGNS, "=&r,r,r,r,r,r,r,r,r", _eight(v), dtype=tl.int32, is_pure=True, pack=1)
        return (tl.sum(sizes, 1) + _eight_sizes()) | (sign & -0x77777778)


@triton.jit
def nearest_bits(v, TYPE: tl.constexpr, PRODUCT: tl.constexpr = False):
    """encode(round_to(v, TYPE, nearest)) for whole arrays of short floats: int8 of 8-bit types, int32 of e2m1. PRODUCT: v is one, so that its
    NaN has no sign."""
    if TYPE == "e2m1":
        sign = (as_int(v) >> 28) & 8
        # The interpreter's product of a negative value and NaN may be negative.
        return (_size_of_e2m1(v) & 7) | (sign if PRODUCT and not INTERPRET else tl.where(v == v, sign, 0))
    elif INTERPRET or not cuda_capability_geq(8, 9):
        return encode(round_to(v, TYPE, False, False), TYPE).to(tl.int8)
    else:
        ROUND: tl.constexpr = _E4M3 if TYPE == "e4m3" else _E5M2
        return tl.inline_asm_elementwise(ROUND, "=r,f,f,f,f", [v], dtype=tl.int8, is_pure=True, pack=4)


@triton.jit
def nearest(v, TYPE: tl.constexpr):
    """round_to(v, TYPE, nearest) for whole arrays, by the hardware's conversions."""
    if TYPE == "f32":
        return tl.where(v == v, v, float("nan"))
    elif TYPE == "bf16":
        return as_float(to_bits16(v, TYPE).to(tl.int32) << 16)
    elif TYPE == "f16":
        return decode(to_bits16(v, TYPE).to(tl.int32), TYPE)
    else:
        return decode(nearest_bits(v, TYPE), TYPE)


@triton.jit
def encode(v, TYPE: tl.constexpr):
    """The bits (int32, low ones) of values that `round_to` gave: casts.encode."""
    bits = as_int(v)
    magnitude = bits & _MAGNITUDE
    if TYPE == "e8m0":
        return tl.where(magnitude > _INF, 0xFF, magnitude >> 23)
    elif TYPE == "f32":
        return bits
    elif TYPE == "bf16":
        return bits >> 16
    else:
        BITS: tl.constexpr = _format(TYPE, 0)
        MANTISSA: tl.constexpr = _format(TYPE, 1)
        LOW: tl.constexpr = _format(TYPE, 2)
        UNITS: tl.constexpr = 2.0 ** (MANTISSA - LOW)
        code = (magnitude >> (23 - MANTISSA)) - ((LOW + 126) << MANTISSA)
        small = (as_float(tl.minimum(magnitude, (LOW + 127) << 23)) * UNITS).to(tl.int32)
        code = tl.where(magnitude < ((LOW + 127) << 23), small, code)
        if _format(TYPE, 4):
            code = tl.where(magnitude == _INF, ((1 << (BITS - 1)) - 1) & -(1 << MANTISSA), code)
        code = tl.where(bits < 0, code | (1 << (BITS - 1)), code)
        return tl.where(magnitude > _INF, _format(TYPE, 5), code)


@triton.jit
def decode(bits, TYPE: tl.constexpr):
    """The float32 values of fields' bits (int32, or int8 as nearest_bits gives): casts.decode."""
    if bits.dtype == tl.int8:
        if not INTERPRET and cuda_capability_geq(9, 0) and (TYPE == "e4m3" or TYPE == "e5m2"):
            WIDEN: tl.constexpr = _FROM_E4M3 if TYPE == "e4m3" else _FROM_E5M2
            return tl.inline_asm_elementwise(WIDEN, "=f,=f,=f,=f,r", [bits], dtype=tl.float32, is_pure=True, pack=4)
        bits = bits.to(tl.int32) & 0xFF
    if TYPE == "e8m0":
        return as_float(tl.where(bits == 0xFF, _NAN, tl.where(bits == 0, 0x400000, bits << 23)))
    elif TYPE == "f32":
        return as_float(bits)
    elif TYPE == "bf16":
        return as_float(bits << 16)
    elif TYPE == "f16":
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        BITS: tl.constexpr = _format(TYPE, 0)
        MANTISSA: tl.constexpr = _format(TYPE, 1)
        LOW: tl.constexpr = _format(TYPE, 2)
        UNIT: tl.constexpr = 2.0 ** (LOW - MANTISSA)
        magnitude = bits & ((1 << (BITS - 1)) - 1)
        sign = (bits >> (BITS - 1)) << 31
        wide = (magnitude << (23 - MANTISSA)) + ((LOW + 126) << 23)
        wide = tl.where(magnitude < (1 << MANTISSA), as_int(magnitude.to(tl.float32) * UNIT), wide)
        if TYPE == "e4m3":
            return as_float(tl.where(magnitude == 0x7F, _NAN, wide | sign))
        elif TYPE == "e5m2":
            wide = tl.where(magnitude == 0x7C, _INF, wide)
            return as_float(tl.where(magnitude > 0x7C, _NAN, wide | sign))
        else:
            return as_float(wide | sign)


# ---------------------------------------------------------------- numbers


@triton.jit
def reciprocal(v):
    """IEEE 1/v, by the instruction that needs fewer steps than a division."""
    if INTERPRET:
        return tl.div_rn(1.0, v)
    else:
        return tl.inline_asm_elementwise("rcp.rn.f32 $0, $1;", "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def larger(a, b):
    """Maximum of two tensors; a NaN operand loses, 0.0 is above -0.0."""
    if INTERPRET:
        best = tl.where(a > b, as_int(a), tl.where(a == b, as_int(a) & as_int(b), as_int(b)))
        return tl.where(a != a, b, tl.where(b != b, a, as_float(best)))
    else:
        return tl.maximum(a, b)


@triton.jit
def smaller(a, b):
    """Minimum of two tensors; a NaN operand loses, -0.0 is below 0.0."""
    if INTERPRET:
        best = tl.where(a < b, as_int(a), tl.where(a == b, as_int(a) | as_int(b), as_int(b)))
        return tl.where(a != a, b, tl.where(b != b, a, as_float(best)))
    else:
        return tl.minimum(a, b)


@triton.jit
def quantize(v, LO: tl.constexpr, HI: tl.constexpr):
    """`v` clamped (NaN to LO) and rounded to nearest even: the codes as int32 and as float32."""
    if INTERPRET:
        v = tl.where(v > LO, v, LO * 1.0)
        v = tl.where(v < HI, v, HI * 1.0)
    else:
        v = tl.minimum(tl.maximum(v, LO * 1.0), HI * 1.0)
    # Adding 1.5 * 2^23 rounds to a whole number, which then also stands in the low bits.
    return quantize_within(v)


@triton.jit
def quantize_within(v):
    """`quantize` for what needs no clamp."""
    shifted = v + _MAGIC
    return as_int(shifted) - _MAGIC_BITS, shifted - _MAGIC


@triton.jit
def quantize_words(v, HI: tl.constexpr, BITS: tl.constexpr, FULL: tl.constexpr):
    """`quantize` of [G, P] values that are NaN or within -32768 .. HI + 1/2 to 0 .. HI; of whole tiles int32[G * P * BITS / 32], as
    memory.store_codes would pack them: codes are clamped and shifted two at a time."""
    EACH: tl.constexpr = 32 // BITS
    COUNT: tl.constexpr = v.shape[0] * v.shape[1] // EACH
    if INTERPRET or not FULL or v.shape[1] < EACH or not cuda_capability_geq(9, 0):
        return quantize(v, 0, HI)[0]
    else:
        bits = as_int(v + _MAGIC)
        if BITS == 8:
            even, odd = tl.split(tl.reshape(bits, (COUNT, 2, 2)))
            v0, v2 = tl.split(even)
            v1, v3 = tl.split(odd)
            each = [v0, v1, v2, v3]
            return tl.inline_asm_elementwise(_CODES_8, "=&r,r,r,r,r", each, dtype=tl.int32, is_pure=True, pack=1)
        else:
            return tl.inline_asm_elementwise(
                _CODES_4, "=&r,r,r,r,r,r,r,r,r", _eight(bits), dtype=tl.int32, is_pure=True, pack=1
            )


@triton.jit
def quantize_random(v, u, LO: tl.constexpr, HI: tl.constexpr):
    """`v` clamped and rounded down, or up where u < v - floor(v): what `quantize` gives."""
    if INTERPRET:
        v = tl.where(v > LO, v, LO * 1.0)
        v = tl.where(v < HI, v, HI * 1.0)
    else:
        v = tl.minimum(tl.maximum(v, LO * 1.0), HI * 1.0)
    low = (v + _MAGIC) - _MAGIC
    low = tl.where(low > v, low - 1.0, low)
    code = tl.where(u < v - low, low + 1.0, low)
    return as_int(code + _MAGIC) - _MAGIC_BITS, code


@triton.jit
def round_even(v):
    """To the nearest whole number, ties to even, the sign kept: exact for every magnitude."""
    bits = as_int(v)
    size = as_float(bits & _MAGNITUDE)
    whole = (size + 8388608.0) - 8388608.0
    whole = as_float(as_int(whole) | (bits & -0x80000000))
    return tl.where(size < 8388608.0, whole, v)


@triton.jit
def sign(v):
    one = v * 0 + 1
    return tl.where(v > 0, one, tl.where(v < 0, -one, one - one))


@triton.jit
def sign_f32(v):
    return tl.where(v > 0.0, 1.0, tl.where(v < 0.0, -1.0, 0.0))


@triton.jit
def to_int(v):
    """Truncated to int32; saturates, NaN gives 0."""
    inside = tl.where((v >= -2147483648.0) & (v < 2147483648.0), v, 0.0).to(tl.int32)
    return tl.where(v >= 2147483648.0, 0x7FFFFFFF, tl.where(v < -2147483648.0, -0x80000000, inside))


@triton.jit
def exponent(v):
    return ((as_int(v) >> 23) & 0xFF) - 127


@triton.jit
def ldexp(v, i):
    i = tl.minimum(tl.maximum(i, -252), 252)
    half = i >> 1
    return v * as_float((half + 127) << 23) * as_float((i - half + 127) << 23)


@triton.jit
def shift_left(v, by):
    """0 for shifts outside 0 .. 31."""
    inside = (by >= 0) & (by < 32)
    return tl.where(inside, v << tl.where(inside, by, 0), 0)


@triton.jit
def shift_right(v, by):
    """Logical; 0 for shifts outside 0 .. 31."""
    inside = (by >= 0) & (by < 32)
    shifted = v.to(tl.uint32, bitcast=True) >> tl.where(inside, by, 0).to(tl.uint32)
    return tl.where(inside, shifted.to(tl.int32, bitcast=True), 0)


@triton.jit
def plane(v, SHIFT: tl.constexpr, BITS: tl.constexpr):
    """(v >> SHIFT) & (2^BITS - 1), the shift logical."""
    return (v.to(tl.uint32, bitcast=True) >> SHIFT).to(tl.int32, bitcast=True) & ((1 << BITS) - 1)


@triton.jit
def wrap(v, BITS: tl.constexpr, SIGNED: tl.constexpr):
    """The low BITS of `v`, as the field that keeps them reads."""
    if SIGNED:
        return (v << (32 - BITS)) >> (32 - BITS)
    else:
        return v & ((1 << BITS) - 1)


@triton.jit
def floor_div(a, b):
    """Floor division, in 64 bits so that -2^31 / -1 wraps; 0 where b is 0."""
    a, by = a.to(tl.int64), tl.where(b == 0, 1, b).to(tl.int64)
    quotient = a // by
    quotient = tl.where((a % by != 0) & ((a < 0) != (by < 0)), quotient - 1, quotient)
    return tl.where(b == 0, 0, quotient.to(tl.int32))


@triton.jit
def floor_mod(a, b):
    return tl.where(b == 0, 0, a - floor_div(a, b) * b)


@triton.jit
def columns(P: tl.constexpr):
    return tl.arange(0, P)[None, :]


@triton.jit
def round_up(n, SIZE: tl.constexpr):
    return (n + (SIZE - 1)) // SIZE * SIZE
