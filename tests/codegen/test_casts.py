"""Rounding, bits and values of wire field types, against ml_dtypes, numpy and exhaustive searches."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from coccl_dsl.codegen.casts import decode, encode, round_to, to_dtype

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SMALL = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
LARGEST = {"bf16": 3.3895314e38, "f16": 65504.0, "e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0}
WIDTH = {"bf16": 16, "f16": 16, "e4m3": 8, "e5m2": 8, "e2m1": 4}
NAN = {"f32": 0x7FC00000, "bf16": 0x7FC0, "f16": 0x7E00, "e4m3": 0x7F, "e5m2": 0x7F, "e8m0": 0xFF}


def bits(v: np.ndarray) -> np.ndarray:
    return v.astype(np.float32).view(np.uint32)


def same(got: torch.Tensor, want: np.ndarray) -> None:
    np.testing.assert_array_equal(bits(got.cpu().numpy()), bits(want))


def values(t: str) -> np.ndarray:
    """All values of the type, the midpoints between neighbours, one float32 to each side of both, and random bit patterns."""
    kind = np.uint16 if WIDTH[t] == 16 else np.uint8
    held = np.arange(1 << WIDTH[t]).astype(kind).view(SMALL[t]).astype(np.float32)
    held = np.unique(held[np.isfinite(held)])
    middle = (held[1:].astype(np.float64) + held[:-1]).astype(np.float64) / 2
    points = np.concatenate([held, middle.astype(np.float32)])
    around = [np.nextafter(points, np.float32(s)) for s in (np.inf, -np.inf)]
    random = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([points, *around, random, np.float32([0.0, -0.0, 1e-45, -1e-45, 3.4028235e38])])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("t", SMALL)
def test_nearest_equals_the_reference_and_saturates(t, device):
    v = values(t)
    v = v[np.isfinite(v)]
    with np.errstate(all="ignore"):
        want = v.astype(SMALL[t]).astype(np.float32)
    over = ~np.isfinite(want) | (np.abs(want) > LARGEST[t])
    want = np.where(over, np.copysign(np.float32(LARGEST[t]), v), want)
    same(round_to(torch.from_numpy(v).to(device), t), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("t", SMALL)
def test_up_is_the_next_held_value_away_from_zero(t, device):
    v = values(t)
    v = v[np.isfinite(v)]
    kind = np.uint16 if WIDTH[t] == 16 else np.uint8
    held = np.arange(1 << (WIDTH[t] - 1)).astype(kind).view(SMALL[t]).astype(np.float32)
    held = np.unique(held[np.isfinite(held)])
    at = np.minimum(np.searchsorted(held, np.abs(v)), len(held) - 1)
    same(round_to(torch.from_numpy(v).to(device), t, "up"), np.copysign(held[at], v))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("t", SMALL)
def test_down_is_the_next_held_value_towards_minus_infinity(t, device):
    v = values(t)
    v = v[np.isfinite(v)]
    kind = np.uint16 if WIDTH[t] == 16 else np.uint8
    held = np.arange(1 << WIDTH[t]).astype(kind).view(SMALL[t]).astype(np.float32)
    held = np.unique(held[np.isfinite(held)])
    at = np.maximum(np.searchsorted(held, v, side="right") - 1, 0)
    got = round_to(torch.from_numpy(v).to(device), t, "down").cpu()
    np.testing.assert_array_equal(got.numpy(), held[at])
    assert torch.equal(torch.signbit(got), torch.signbit(torch.from_numpy(v))), "zero keeps its sign"


@pytest.mark.parametrize("t", SMALL)
def test_bits_of_every_value_and_back(t):
    codes = np.arange(1 << WIDTH[t])
    want = codes.astype(np.uint16 if WIDTH[t] == 16 else np.uint8).view(SMALL[t]).astype(np.float32)
    got = decode(torch.from_numpy(codes.astype(np.int32)), t)
    real = ~np.isnan(want)
    same(got[torch.from_numpy(real)], want[real])
    assert (bits(got.numpy()[~real]) == NAN["f32"]).all()
    back = encode(got, t).numpy()
    np.testing.assert_array_equal(back[real], codes[real])
    assert (back[~real] == NAN.get(t, 0)).all()


def test_f32_keeps_every_bit_but_those_of_nan():
    v = values("bf16")
    kept = v[~np.isnan(v)]
    same(round_to(torch.from_numpy(kept), "f32"), kept)
    same(decode(encode(torch.from_numpy(kept), "f32"), "f32"), kept)
    odd = torch.tensor([-1, 0x7F800001, 0x7FFFFFFF], dtype=torch.int32).view(torch.float32)
    assert encode(odd, "f32").tolist() == round_to(odd, "f32").view(torch.int32).tolist() == [0x7FC00000] * 3


@pytest.mark.parametrize("t", ["f32", *SMALL])
def test_inf_stays_or_saturates(t):
    inf = torch.tensor([torch.inf, -torch.inf])
    want = {"e4m3": 448.0, "e2m1": 6.0}.get(t, torch.inf)
    for how in ("nearest", "up", "down"):
        got = round_to(inf, t, how)
        assert got.tolist() == [want, -want]
        assert torch.equal(decode(encode(got, t), t), got)


@pytest.mark.parametrize("t", NAN)
def test_nan_is_canonical(t):
    odd = torch.tensor([-1, 0x7F800001, 0x7FC00000], dtype=torch.int32).view(torch.float32)
    assert round_to(odd, t).view(torch.int32).tolist() == [NAN["f32"]] * 3
    assert encode(round_to(odd, t, "up"), t).tolist() == [NAN[t]] * 3


def test_e2m1_has_no_nan_and_takes_it_to_its_largest():
    assert encode(round_to(torch.tensor([torch.nan, -torch.nan]), "e2m1"), "e2m1").tolist() == [7, 7]


@pytest.mark.parametrize("t", ["f32", "bf16"])
def test_flush_takes_what_is_below_the_smallest_normal_to_zero(t):
    edge = 2.0**-126
    v = torch.tensor([edge, -edge, 2.0**-127, -(2.0**-133), 0.0, -0.0, 1.5])
    want = np.float32([edge, -edge, 0.0, 0.0, 0.0, 0.0, 1.5])
    same(round_to(v, t, "nearest", True), want)
    same(round_to(v, t, "up", True), want)
    assert (round_to(v, t)[2:4] != 0).all()


def test_flush_looks_at_the_rounded_value():
    below = torch.tensor([0x007FFFFF], dtype=torch.int32).view(torch.float32)
    assert float(round_to(below, "bf16", "up", True)) == 2.0**-126


def power(v: float, how: str) -> float:
    """e8m0 by searching all its values."""
    held = [2.0 ** (b - 127) for b in range(255)]
    if v <= held[0]:
        return held[0]
    if v >= held[-1]:
        return held[-1]
    above = next(h for h in held if h >= v)
    return above if how == "up" or above == v or (how == "nearest" and v >= 0.75 * above) else above / 2


def test_e8m0_holds_powers_of_two():
    rng = np.random.default_rng(1)
    v = rng.integers(0, 1 << 32, 3000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    exact = np.float32([2.0**e for e in range(-149, 128)])
    edges = np.concatenate([exact, exact * np.float32(1.5), [np.float32(0), np.float32(-1)]]).astype(np.float32)
    v = np.concatenate([v, edges, np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf))])
    v = v[np.isfinite(v)]
    for how in ("up", "nearest", "down"):
        got = round_to(torch.from_numpy(v), "e8m0", how)
        want = np.float32([power(float(x), how) for x in v])
        same(got, want)
        same(decode(encode(got, "e8m0"), "e8m0"), want)
    assert encode(round_to(torch.tensor([torch.inf, -torch.inf]), "e8m0"), "e8m0").tolist() == [254, 0]
    assert torch.isnan(decode(torch.tensor([0xFF], dtype=torch.int32), "e8m0")).all()


@pytest.mark.parametrize("device", DEVICES)
def test_to_dtype_saturates_finite_values_only(device):
    y = torch.tensor([1e6, -1e6, torch.inf, -torch.inf, 65519.0, 1.0, -0.0, 3e38], device=device)
    got = to_dtype(y, "f16")
    assert got.dtype == torch.float16
    assert got.tolist() == [65504.0, -65504.0, torch.inf, -torch.inf, 65504.0, 1.0, -0.0, 65504.0]
    assert to_dtype(torch.tensor([3.4e38], device=device), "bf16").tolist() == [3.3895313892515355e38]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("count", [1, 64])
def test_to_dtype_gives_one_nan(device, count):
    y = torch.full((count,), -1, dtype=torch.int32, device=device).view(torch.float32)
    assert (to_dtype(y, "f32").view(torch.int32) == 0x7FC00000).all()
    assert (to_dtype(y, "bf16").view(torch.int16) == 0x7FC0).all()
    assert (to_dtype(y, "f16").view(torch.int16) == 0x7E00).all()
