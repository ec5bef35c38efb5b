"""Independent references of the shipped compressors in numpy, written from the formulas of the field, one group at a time.

Each function takes float32[groups, group] (whole groups; a short last one is passed in a batch of its own, cut to the elements it has, and
padded by the function where its formula pads) and gives (fields, values): the fields as the wire holds them, and what decompress yields.
Arithmetic is float32 as the language says: v / s is v * rcp(s), and scales are rounded away from zero (`up`).
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from scipy.linalg import hadamard

F = np.float32
BF16, E4M3, E5M2, E2M1 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
LARGEST = {BF16: 3.3895314e38, np.float16: 65504.0, E4M3: 448.0, E5M2: 57344.0, E2M1: 6.0, np.float32: 3.4028235e38}

Fields = dict[str, np.ndarray]


def cast(v: np.ndarray, kind: type) -> np.ndarray:
    """Nearest even, saturating, as float32."""
    largest = F(LARGEST[kind])
    with np.errstate(over="ignore"):
        return np.clip(v, -largest, largest).astype(kind).astype(F)


def toward(v: np.ndarray, kind: type, goal: np.ndarray) -> np.ndarray:
    """Rounded in the direction of `goal` (+-inf): the nearest value, or its neighbour where that is on the wrong side."""
    if kind is np.float32:
        return flushed(v)
    near = cast(v, kind)
    beyond = np.where(goal > 0, near < v, near > v)
    bits = near.astype(kind).view(np.uint16).astype(np.int32)
    away = np.where((goal > 0) == (near >= 0), bits + 1, bits - 1)
    crossed = np.where((near == 0) & beyond, np.where(goal > 0, 1, 0x8001), away)
    moved = crossed.astype(np.uint16).view(kind).astype(F)
    return (
        flushed(cast(np.where(beyond, moved, near), kind))
        if kind is BF16
        else cast(np.where(beyond, moved, near), kind)
    )


def flushed(v: np.ndarray) -> np.ndarray:
    return np.where(np.abs(v) < F(2.0**-126), F(0), v).astype(F)


def up(v: np.ndarray, kind: type = BF16) -> np.ndarray:
    return toward(v, kind, np.where(v < 0, -np.inf, np.inf))


def down(v: np.ndarray, kind: type = BF16) -> np.ndarray:
    return toward(v, kind, np.full(v.shape, -np.inf))


def over(v: np.ndarray, s: np.ndarray) -> np.ndarray:
    """v / s with s one number a group: times its reciprocal; a scale of 0 counts as 1."""
    return v * (F(1) / np.where(s == 0, F(1), s))


def by(v: np.ndarray, n: float) -> np.ndarray:
    return v * (F(1) / F(n))


def rint(v: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.rint(np.clip(v, F(low), F(high))).astype(np.int32)


def amax(x: np.ndarray) -> np.ndarray:
    return np.abs(x).max(1, keepdims=True)


def power(e: np.ndarray) -> np.ndarray:
    """2^e as an e8m0 field holds it."""
    return np.exp2(np.clip(e, -127, 127).astype(np.float64)).astype(F)


def floor_log2(v: np.ndarray) -> np.ndarray:
    exponent = np.frexp(v)[1] - 1
    return np.where(v < F(2.0**-126), -127, exponent)


def tree(v: np.ndarray) -> np.ndarray:
    """The balanced sum: halves are added."""
    while v.shape[1] > 1:
        v = v[:, : v.shape[1] // 2] + v[:, v.shape[1] // 2 :]
    return v


def padded(x: np.ndarray, group: int) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, group - x.shape[1])))


def transformed(x: np.ndarray, size: int) -> np.ndarray:
    """Orthonormal Hadamard transform, float32 butterflies; checked against scipy's matrix by test_the_transform."""
    v, stride = x.astype(F), 1
    while stride < size:
        v = v.reshape(x.shape[0], -1, 2, stride)
        v = np.stack([v[:, :, 0] + v[:, :, 1], v[:, :, 0] - v[:, :, 1]], 2)
        stride *= 2
    return v.reshape(x.shape) * F(size**-0.5)


def exact_transform(x: np.ndarray, size: int) -> np.ndarray:
    return (x.reshape(-1, size).astype(np.float64) @ hadamard(size) / size**0.5).reshape(x.shape)


# ---------------------------------------------------------------- the compressors


def cast_to(kind: type) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        v = cast(x, kind)
        return {"value": v}, v

    return run


def symmetric(q: int, kind: type = BF16) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        s = up(by(amax(x), q), kind)
        code = rint(over(x, s), -q, q)
        return {"code": code, "scale": s}, code.astype(F) * s

    return run


def asymmetric(levels: int, kind: type = BF16) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        low = down(x.min(1, keepdims=True), kind)
        step = up(by(x.max(1, keepdims=True) - low, levels), kind)
        code = rint(over(x - low, step), 0, levels)
        return {"code": code, "low": low, "step": step}, low + code.astype(F) * step

    return run


def minmax(x: np.ndarray, group: int, frame: tuple[float, float] | None = None) -> tuple[Fields, np.ndarray]:
    low, high = (F(v) for v in (frame or (x.min(), x.max())))
    low = flushed(np.array([[low]]))
    step = flushed(by(high - low, 254))
    code = rint(over(x - low, step), 0, 254)
    return {"code": code, "low": low, "step": step}, low + code.astype(F) * step


def extremum(bits: int, kind: type = np.float16) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    half = 1 << bits - 1

    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        e = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)
        d = by(e, -half)
        d = flushed(cast(d, kind)) if kind is BF16 else cast(d, kind)
        q = rint(over(x, d), -half, half - 1)
        biased = q + half
        fields = {"low": biased & 15, "high": biased >> 4} if bits == 6 else {"code": q}
        return {**fields, "scale": d}, q.astype(F) * d

    return run


def small_float(
    kind: type, largest: float, scale: type = BF16
) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        s = up(by(amax(x), largest), scale)
        v = cast(over(x, s), kind)
        return {"value": v, "scale": s}, v * s

    return run


def mx(kind: type, emax: int) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        s = power(floor_log2(amax(x)) - emax)
        v = cast(over(x, s), kind)
        return {"value": v, "scale": s}, v * s

    return run


def nvfp4(x: np.ndarray, group: int, frame: tuple[float, float] | None = None) -> tuple[Fields, np.ndarray]:
    largest = F(max(abs(v) for v in frame)) if frame else np.abs(x).max()
    t = flushed(by(np.array([[largest]], F), 2688))
    inner = cast(over(amax(x), F(6) * np.where(t == 0, F(1), t)), E4M3)
    local = inner * t
    v = cast(over(x, local), E2M1)
    return {"value": v, "scale": inner, "whole": t}, v * local


def swapped(x: np.ndarray, where: np.ndarray) -> np.ndarray:
    y, rows = x.copy(), np.arange(len(x))
    y[rows, where] = x[:, 0]
    y[:, 0] = x[rows, where]
    return y


def tah(levels: int) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        n, x = x.shape[1], padded(x, group)
        order = np.sort(np.abs(x), 1)
        second = order[:, -2] if group > 1 else 0 * order[:, -1]
        pivot = np.where(order[:, -1] > 2 * second, np.abs(x).argmax(1), 0)
        y = transformed(swapped(x, pivot) * F(1 / group), group)
        fields, z = asymmetric(levels)(y, group)
        back = swapped(transformed(z, group) * F(group), pivot)
        return {**fields, "pivot": pivot[:, None]}, back[:, :n]

    return run


def taco(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
    n, x = x.shape[1], padded(x, group)
    with np.errstate(over="ignore"):
        mean = tree(x * x) * (F(1) / F(n))
    gain = np.clip(F(448) * (F(1) / np.sqrt(mean + F(1e-6)).astype(F)), F(0.001), F(1000))
    y = transformed(x * gain, group)
    s = flushed(by(amax(y), 448) * (F(1) / gain))
    v = cast(over(y, s * gain), E4M3)
    return {"value": v, "scale": s}, (transformed(v, group) * s)[:, :n]


def spike(bits: int) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    levels = (1 << bits) - 1

    def one(x: np.ndarray) -> tuple[Fields, np.ndarray]:
        top, least = int(x.argmax()), int(x.argmin())
        lower, upper = x.copy(), x.copy()
        lower[least], upper[top] = x.max(), x.min()
        low = down(lower.min(keepdims=True))
        step = up(by(upper.max(keepdims=True) - low, levels))
        code = rint(over((x - low)[None], step[None]), 0, levels)
        y = low + code.astype(F) * step
        spikes = flushed(cast(x[[least, top]], BF16))
        y[0, least] = spikes[0]
        y[0, top] = spikes[1]
        fields = {"low": low[None], "step": step[None]}
        fields |= {"low2": code & 3, "high1": code >> 2} if bits == 3 else {"code": code}
        ends = {"top": spikes[1], "least": spikes[0], "top_at": top, "least_at": least}
        return {**fields, **{k: np.array([[v]]) for k, v in ends.items()}}, y

    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        done = [one(row) for row in x]
        return {k: np.concatenate([f[k] for f, _ in done]) for k in done[0][0]}, np.concatenate([y for _, y in done])

    return run


def bfp8(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
    m, e = np.frexp(by(amax(x), 127))
    s = power(np.where(m == 0.5, e - 1, e) - 127 * (m == 0))
    code = rint(over(x, s), -127, 127)
    return {"code": code, "scale": s}, code.astype(F) * s


def zfp8(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
    """zfp's lifting on float32: halvings are exact, so that nothing is floored before the codes."""
    length, x = x.shape[1], padded(x, 4)
    s = power(floor_log2(amax(x)) - 4)
    a, b, c, d = (v.copy() for v in over(x, s).T)
    half = F(0.5)
    a = half * (a + d)
    d = d - a
    c = half * (c + b)
    b = b - c
    a = half * (a + c)
    c = c - a
    d = half * (d + b)
    b = b - d
    d = d + half * b
    b = b - half * d
    code = rint(np.stack([a, b, c, d], 1), -32, 31) + 32
    a, b, c, d = (code - 32).astype(F).T
    b = b + half * d
    d = d - half * b
    b = b + d
    d = F(2) * d - b
    c = c + a
    a = F(2) * a - c
    b = b + c
    c = F(2) * c - b
    d = d + a
    a = F(2) * a - d
    y = np.stack([a, b, c, d], 1) * s
    return {"low": code & 15, "high": code >> 4, "scale": s}, y[:, :length]


def topk(k: int) -> Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]:
    def run(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
        order = np.argsort(-np.abs(x), 1, kind="stable")[:, :k]
        place = np.sort(order, 1)
        value = cast(np.take_along_axis(x, place, 1), BF16)
        y = np.zeros_like(x)
        np.put_along_axis(y, place, value, 1)
        missing = k - place.shape[1]
        return {
            "value": np.pad(value, ((0, 0), (0, missing))),
            "place": np.pad(place, ((0, 0), (0, missing)), constant_values=group),
        }, y

    return run


def sign1(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
    mean = tree(padded(np.abs(x) * F(1 / group), group)) * (F(1) / F(x.shape[1]))
    size = flushed(cast(mean * F(group), BF16))
    return {"sign": (x >= 0).astype(np.int32), "size": size}, np.where(x >= 0, size, -size)


def lossless(x: np.ndarray, group: int) -> tuple[Fields, np.ndarray]:
    word = x.view(np.int32) >> 16 & 0xFFFF
    power = word >> 7 & 255
    base = np.where(power == 255, 0, power).max(1, keepdims=True)
    code = np.where(power == 0, 14, np.where((power <= base) & (power > base - 14), base - power, 15))
    place, escape = np.full((len(x), 8), group), np.zeros((len(x), 8), np.int32)
    for row, missed in enumerate(code == 15):
        at = np.flatnonzero(missed)[:8]
        place[row, : len(at)], escape[row, : len(at)] = at, power[row, at]
    lost = (code == 15).sum(1, keepdims=True) > 8
    mantissa = (word & 127) | (word >> 8 & 128)
    fields = {"mantissa": mantissa, "code": code, "escape": escape, "place": place, "base": np.where(lost, 255, base)}
    return fields, np.where(lost, F(np.nan), x)


REFERENCES: dict[str, Callable[[np.ndarray, int], tuple[Fields, np.ndarray]]] = {
    "bf16": cast_to(BF16),
    "fp16": cast_to(np.float16),
    "int8": symmetric(127),
    "int8(group=32, scale_type=f32)": symmetric(127, np.float32),
    "int4": symmetric(7),
    "int4(group=2048)": symmetric(7),
    "int2": symmetric(1),
    "int8_h32": symmetric(127),
    "int4_h32": symmetric(7),
    "uint8": asymmetric(255),
    "uint8(group=64, scale_type=f32)": asymmetric(255, np.float32),
    "uint4": asymmetric(15),
    "minmax_u8": minmax,
    "signed8": extremum(8),
    "signed8(scale_type=bf16)": extremum(8, BF16),
    "signed6": extremum(6),
    "signed4": extremum(4),
    "fp8_e4m3": small_float(E4M3, 448),
    "fp8_e5m2": small_float(E5M2, 57344),
    "mxfp8": mx(E4M3, 8),
    "mxfp8(element=e5m2)": mx(E5M2, 15),
    "mxfp4": mx(E2M1, 2),
    "nvfp4": nvfp4,
    "tah_quant": tah(15),
    "tah_quant(group=128, code_type=u8)": tah(255),
    "taco_fp8": taco,
    "taco_fp8(group=32)": taco,
    "spike4": spike(4),
    "spike3": spike(3),
    "spike3(group=128)": spike(3),
    "spike2": spike(2),
    "bfp8": bfp8,
    "zfp8": zfp8,
    "topk": topk(6),
    "topk(group=256, k=3)": topk(3),
    "sign1": sign1,
    "lossless_bf16": lossless,
}
# Those whose fields a frame are found from all of it.
OVER_FRAME = ("minmax_u8", "nvfp4")
