"""Rounding to a wire field's type, its bits, and back: exact integer arithmetic on float32 bit patterns, the same on every torch device.

Torch's own casts are not used for rounding: they overflow to Inf where a field saturates, and their NaNs differ between vectorised and
scalar code.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

TORCH_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

_MAGNITUDE = 0x7FFFFFFF
_SIGN = -0x80000000
_INF = 0x7F800000
_NAN = 0x7FC00000
_SMALLEST_NORMAL = 0x00800000
_LARGEST_POWER = 0x7F000000


@dataclass(frozen=True)
class _Format:
    """A float type: its mantissa bits, smallest normal exponent, largest finite value, whether it has Inf, the code of its canonical NaN.

    e2m1 has no NaN: `nan` is then the code of its largest value, which is what the hardware's saturating conversion gives.
    """

    bits: int
    mantissa: int
    low: int
    largest: float
    has_inf: bool
    nan: int

    @property
    def drop(self) -> int:
        return 23 - self.mantissa

    @property
    def largest_bits(self) -> int:
        return struct.unpack("<i", struct.pack("<f", self.largest))[0]

    @property
    def low_bits(self) -> int:
        """float32 bits of the smallest normal value."""
        return (self.low + 127) << 23

    @property
    def units(self) -> float:
        """What makes a subnormal of this type a whole number."""
        return 2.0 ** (self.mantissa - self.low)


_BF16_MAX = 2.0**127 * (2 - 2.0**-7)
_F32_MAX = 2.0**127 * (2 - 2.0**-23)
_FORMATS = {
    "f32": _Format(32, 23, -126, _F32_MAX, True, _NAN),
    "bf16": _Format(16, 7, -126, _BF16_MAX, True, 0x7FC0),
    "f16": _Format(16, 10, -14, 65504.0, True, 0x7E00),
    "e4m3": _Format(8, 3, -6, 448.0, False, 0x7F),
    "e5m2": _Format(8, 2, -14, 57344.0, True, 0x7F),
    "e2m1": _Format(4, 1, 0, 6.0, False, 0x7),
}


def _float(bits: Tensor) -> Tensor:
    return bits.contiguous().view(torch.float32)


def _bits(v: Tensor) -> Tensor:
    return v.contiguous().view(torch.int32)


def has_no_nan(v: Tensor) -> bool:
    """True only where there is none; asked on CPU alone, where one pass over the values is all that it takes (Inf - Inf is a false alarm)."""
    return v.device.type == "cpu" and not bool(torch.isnan(v.sum()))


def round_to(v: Tensor, type: str, how: str = "nearest", flush: bool = False) -> Tensor:
    """The values that fields of `type` hold for `v`. float32 in and out, any shape, any device.

    type   f32, bf16, f16, e4m3, e5m2, e2m1 or e8m0
    how    nearest (ties to even), up (away from zero) or down (towards -inf)
    flush  what is below 2^-126 after rounding becomes +0.0

    Finite values saturate at the largest finite value, Inf stays (types without Inf saturate it), NaN becomes the canonical NaN 0x7fc00000
    (e2m1, which has none: 6.0). e8m0 holds powers of two: `up` is the smallest at least v, `down` the largest at most v, `nearest` turns at
    1.5 (ties up), and v <= 0 gives the smallest, 2^-127.
    """
    if type == "e8m0":
        return _power_of_two(v, how)
    if type == "f32" and not flush and has_no_nan(v):
        return v
    if type in ("bf16", "f16") and how == "nearest" and not flush and v.device.type == "cpu":
        # Torch's cast, unless something overflows or is not finite.
        cast = v.to(TORCH_DTYPES[type]).to(torch.float32)
        if bool(torch.isfinite(cast.sum())):
            return cast
    f = _FORMATS[type]
    bits = _bits(v)
    magnitude = bits & _MAGNITUDE
    rounded = magnitude
    if f.drop:
        tail = (1 << f.drop) - 1
        if how == "up":
            rounded = (magnitude + tail) & ~tail
        elif how == "down":
            rounded = (magnitude + (tail & bits >> 31)) & ~tail
        else:
            rounded = (magnitude + (tail >> 1) + (magnitude >> f.drop & 1)) & ~tail
    if f.low > -126:
        whole = _float(magnitude) * f.units
        if how == "down":
            whole = torch.where(bits < 0, torch.ceil(whole), torch.floor(whole))
        else:
            whole = torch.ceil(whole) if how == "up" else torch.round(whole)
        whole = whole * (1.0 / f.units)
        rounded = torch.where(magnitude < f.low_bits, _bits(whole), rounded)
    rounded = rounded.clamp_max(f.largest_bits)
    if f.has_inf:
        rounded = torch.where(magnitude == _INF, _INF, rounded)
    rounded = rounded | (bits & _SIGN)
    if flush:
        rounded = torch.where((rounded & _MAGNITUDE) < _SMALLEST_NORMAL, 0, rounded)
    lost = f.largest_bits if type == "e2m1" else _NAN
    return _float(torch.where(magnitude > _INF, lost, rounded))


def _power_of_two(v: Tensor, how: str) -> Tensor:
    bits = _bits(v)
    magnitude = bits & _MAGNITUDE
    if how == "up":
        power = (magnitude + 0x7FFFFF) & ~0x7FFFFF
        least = magnitude <= 0x400000
    elif how == "down":
        power = magnitude & ~0x7FFFFF
        least = magnitude < _SMALLEST_NORMAL
    else:
        power = (magnitude + 0x400000) & ~0x7FFFFF
        least = magnitude < 0x600000
    # Below 2^-126 the exponent field is 0 and no longer counts powers: only 2^-127 and 2^-126 are left to choose from.
    power = torch.where(magnitude < _SMALLEST_NORMAL, _SMALLEST_NORMAL, power).clamp_max(_LARGEST_POWER)
    power = torch.where(least | (bits < 0), 0x400000, power)
    return _float(torch.where(magnitude > _INF, _NAN, power))


def encode(v: Tensor, type: str) -> Tensor:
    """The bits of float fields: `v` float32 holding values of `type` (what `round_to` gives) -> int32, low bits; NaN is canonical.

    For f32 the int32 holds all 32 bits, sign included.
    """
    bits = _bits(v)
    magnitude = bits & _MAGNITUDE
    if type == "e8m0":
        return torch.where(magnitude > _INF, 0xFF, magnitude >> 23)
    f = _FORMATS[type]
    code = magnitude >> f.drop
    if f.low > -126:
        code = code - ((f.low + 126) << f.mantissa)
        code = torch.where(magnitude < f.low_bits, (_float(magnitude) * f.units).to(torch.int32), code)
        if f.has_inf:
            code = torch.where(magnitude == _INF, ((1 << f.bits - 1) - 1) & -(1 << f.mantissa), code)
    code = torch.where(bits < 0, code | (_SIGN if f.bits == 32 else 1 << f.bits - 1), code)
    return torch.where(magnitude > _INF, f.nan, code)


def decode(bits: Tensor, type: str) -> Tensor:
    """The values of float fields: int32 bits (as `encode` gives) -> float32. Any NaN reads as the canonical one."""
    if type == "e8m0":
        power = torch.where(bits == 0, 0x400000, bits << 23)
        return _float(torch.where(bits == 0xFF, _NAN, power))
    f = _FORMATS[type]
    magnitude = bits & ((1 << f.bits - 1) - 1)
    sign = bits << 32 - f.bits & _SIGN
    wide = magnitude << f.drop
    if f.low > -126:
        wide = wide + ((f.low + 126) << 23)
        small = magnitude.to(torch.float32) * (1.0 / f.units)
        wide = torch.where(magnitude < 1 << f.mantissa, _bits(small), wide)
    if f.has_inf:
        top = ((1 << f.bits - 1) - 1) & -(1 << f.mantissa)
        wide = torch.where(magnitude == top, _INF, wide)
        return _float(torch.where(magnitude > top, _NAN, wide | sign))
    wide = wide | sign
    return _float(torch.where(magnitude == f.nan, _NAN, wide) if type == "e4m3" else wide)


def to_dtype(y: Tensor, dtype: str) -> Tensor:
    """`y` (float32) rounded to the user's dtype (f32, bf16, f16) as a tensor of that dtype: nearest even, finite values saturate at the
    largest finite value, Inf stays, NaN becomes the canonical quiet NaN (0x7fc00000, 0x7fc0, 0x7e00)."""
    if dtype != "f32" and y.device.type == "cpu":
        cast = y.to(TORCH_DTYPES[dtype])
        if bool(torch.isfinite(cast.sum(dtype=torch.float32))):
            return cast
    rounded = round_to(y, dtype)
    if dtype == "f32":
        return rounded
    # A cast would be exact here, but for NaN, whose bits it does not promise.
    return encode(rounded, dtype).to(torch.int16).view(TORCH_DTYPES[dtype])
