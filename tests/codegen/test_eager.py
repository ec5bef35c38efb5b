"""The reference evaluation against compressors written out in numpy from their formulas: equal bytes, values and states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coccl_dsl.codegen.eager import bounds, compress, open_wire, rotate
from coccl_dsl.diagnostics import CompileError, Source
from coccl_dsl.lang.parse import parse_binding, parse_comp
from coccl_dsl.wire.codec import FRAME, Codec
from coccl_dsl.wire.compile import compile_codec
from coccl_dsl.wire.layout import live_elements, wire_bytes
from coccl_dsl.wire.scope import Scope, bind

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
COUNTS = [1, 7, 127, 128, 129, 32767, 32768, 32769, 70000]
F = np.float32


def make(text: str, dtype: str = "f32", source: str = "") -> Codec:
    scope = Scope()
    if source:
        scope.add(parse_comp(Source("test.comp", source)).compressors, scope)
    return compile_codec(bind(parse_binding(text), scope), dtype)


def sample(n: int, seed: int = 0, spread: float = 6.0) -> np.ndarray:
    """Normal values whose size changes from stretch to stretch, with exact zeros."""
    rng = np.random.default_rng(seed)
    size = np.repeat(2.0 ** rng.uniform(-spread, spread, -(-n // 50)), 50)[:n]
    x = (rng.standard_normal(n) * size).astype(F)
    x[rng.random(n) < 0.01] = 0
    return x


# ---------------------------------------------------------------- numpy, from the formulas


def up_bf16(v: np.ndarray) -> np.ndarray:
    b = v.astype(F).view(np.uint32).astype(np.uint64)
    r = np.minimum((b + 0xFFFF) & 0xFFFF0000, 0x7F7F0000).astype(np.uint32).view(F)
    return np.where(r < F(2.0**-126), F(0), r)


def to_bf16(v: np.ndarray) -> np.ndarray:
    b = v.astype(F).view(np.uint32).astype(np.uint64)
    return ((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(F)


def grouped(x: np.ndarray, group: int) -> np.ndarray:
    return np.pad(x, (0, -len(x) % group)).reshape(-1, group)


def symmetric(x: np.ndarray, group: int, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """codes [groups, group], scales, reconstruction. A group that is not finite has scale NaN, and so the lowest codes."""
    g = grouped(x, group)
    bad = ~np.isfinite(g).all(1)
    g = np.where(bad[:, None], F(0), g)
    scale = up_bf16(np.abs(g).max(1) * F(1 / top))
    inverse = F(1) / np.where(scale == 0, F(1), scale)
    codes = np.rint(np.clip(g * inverse[:, None], -top, top)).astype(np.int64)
    scale = np.where(bad, F(np.nan), scale)
    codes[bad] = -top
    codes.reshape(-1)[len(x) :] = 0
    return codes, scale, (codes.astype(F) * scale[:, None]).reshape(-1)[: len(x)]


def bf16_bytes(v: np.ndarray) -> np.ndarray:
    code = (v.astype(F).view(np.uint32) >> 16).astype("<u2")
    return np.where(np.isnan(v), 0x7FC0, code).astype("<u2").view(np.uint8)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    flat = (codes.reshape(-1) & ((1 << bits) - 1)).astype(np.uint8)
    return flat if bits == 8 else flat[0::2] | flat[1::2] << 4


def padded(b: np.ndarray) -> np.ndarray:
    return np.pad(b, (0, -len(b) % 16))


def frames(n: int) -> list[slice]:
    return [slice(a, min(a + FRAME, n)) for a in range(0, n, FRAME)]


def symmetric_wire(x: np.ndarray, group: int, top: int, version: int | None = None) -> np.ndarray:
    parts = [np.zeros(0, np.uint8)]
    for f in frames(len(x)):
        codes, scale, _ = symmetric(x[f], group, top)
        parts += [padded(pack(codes, 8 if top == 127 else 4)), padded(bf16_bytes(scale))]
        if version is not None:
            parts.append(padded(np.array([version], "<u4").view(np.uint8)))
    return np.concatenate(parts)


def hadamard(x: np.ndarray, size: int) -> np.ndarray:
    v = grouped(x, size)
    h = 1
    while h < size:
        v = v.reshape(-1, size // (2 * h), 2, h)
        v = np.stack([v[:, :, 0] + v[:, :, 1], v[:, :, 0] - v[:, :, 1]], 2).reshape(-1, size)
        h *= 2
    return (v * F(1 / np.sqrt(size))).reshape(-1)


def equal(got: torch.Tensor, want: np.ndarray) -> None:
    """Equal bits; NaNs only need to be NaN."""
    g, w = got.cpu().numpy(), want.astype(F)
    assert g.shape == w.shape
    ok = np.isnan(w)
    np.testing.assert_array_equal(np.isnan(g), ok)
    np.testing.assert_array_equal(g.view(np.uint32)[~ok], w.view(np.uint32)[~ok])


def dirty(n: int, seed: int = 0) -> np.ndarray:
    """A sample in which one element is Inf and, where there is room, another NaN."""
    x = sample(n, seed)
    x[n // 2] = np.inf
    if n > 4000:
        x[n - 3] = np.nan
    return x


# ---------------------------------------------------------------- bytes and values


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize(("name", "top", "group"), [("int8", 127, 128), ("int4", 7, 128), ("int4", 7, 512)])
def test_integer_codes_equal_the_formulas(name, top, group, n, device):
    codec = make(f"{name}(group={group})")
    for x in (sample(n), dirty(n)):
        v = torch.from_numpy(x).to(device)
        got = compress(codec, v)
        np.testing.assert_array_equal(got.wire.cpu().numpy(), symmetric_wire(x, group, top))
        want = np.concatenate([symmetric(x[f], group, top)[2] for f in frames(n)])
        equal(got.opened, want)
        equal(open_wire(codec, got.wire, n).values, want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", COUNTS)
def test_rotated_codes_equal_the_formulas(n, device):
    codec = make("int8_h32")
    x = sample(n)
    turned = rotate(torch.from_numpy(x).to(device), 32)
    equal(turned, hadamard(x, 32))
    assert turned.numel() == live_elements(codec, n)
    got = compress(codec, turned)
    np.testing.assert_array_equal(got.wire.cpu().numpy(), symmetric_wire(hadamard(x, 32), 128, 127))
    back = rotate(open_wire(codec, got.wire, n).values, 32)[:n].cpu().numpy()
    assert np.abs(back - x).max() <= 0.02 * np.abs(x).max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", COUNTS)
@pytest.mark.parametrize("text", ["bf16", "raw"])
def test_casts_keep_each_elements_own_nan_and_inf(text, n, device):
    x = dirty(n)
    x[0] = -np.inf
    codec = make(text)
    got = compress(codec, torch.from_numpy(x).to(device))
    want = np.where(np.isfinite(x), to_bf16(x), x) if text == "bf16" else x
    equal(got.opened, want)
    equal(open_wire(codec, got.wire, n).values, want)
    each = 2 if text == "bf16" else 4
    raw = [
        bf16_bytes(want[f]) if each == 2 else np.where(np.isnan(want[f]), F(np.nan), want[f]).view(np.uint8)
        for f in frames(n)
    ]
    filled = [padded(np.pad(b, (0, -len(b) % (8 * each)))) for b in raw]
    np.testing.assert_array_equal(got.wire.cpu().numpy(), np.concatenate(filled))


def test_raw_of_half_saturates_finite_values():
    codec = make("raw", "f16")
    x = torch.tensor([1e6, -7e4, torch.inf, -torch.nan, 65504.0, 1e-8, 2049.0])
    got = compress(codec, x)
    assert got.opened[[0, 1, 2, 4, 5, 6]].tolist() == [65504.0, -65504.0, torch.inf, 65504.0, 0.0, 2048.0]
    held = got.wire.view(torch.float16)
    assert held[3].view(torch.int16) == 0x7E00
    assert torch.equal(open_wire(codec, got.wire, 7).values.nan_to_num(5), got.opened.nan_to_num(5))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_poisons_exactly_its_group(bad):
    codec, n = make("int4"), 1000
    x = sample(n)
    clean = compress(codec, torch.from_numpy(x))
    for at in (0, 127, 128, 999):
        y = x.copy()
        y[at] = bad
        opened = open_wire(codec, compress(codec, torch.from_numpy(y)).wire, n).values
        hit = np.arange(n) // 128 == at // 128
        assert torch.isnan(opened).numpy().tolist() == hit.tolist()
        assert torch.equal(opened[~hit], clean.opened[~hit])


def test_a_wire_of_a_chunk_is_the_wires_of_its_pieces():
    codec, x = make("int4(round=stochastic)"), torch.from_numpy(sample(100_000))
    rng = torch.tensor([5, 1])
    whole = compress(codec, x, rng=rng, key=77)
    cuts = [0, 32768, 98304, 100_000]
    parts = [compress(codec, x[a:b], start=a, rng=rng, key=77) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert torch.equal(whole.wire, torch.cat([p.wire for p in parts]))
    assert torch.equal(whole.opened, torch.cat([p.opened for p in parts]))


def test_many_frames_are_batched_without_a_seam():
    codec = make("int8")
    x = torch.from_numpy(sample(130 * FRAME + 5))
    got = compress(codec, x)
    tail = compress(codec, x[127 * FRAME :])
    assert torch.equal(got.wire[-tail.wire.numel() :], tail.wire)
    assert torch.equal(open_wire(codec, got.wire, x.numel()).values, got.opened)


@pytest.mark.parametrize("device", DEVICES)
def test_stochastic_rounding_repeats_and_is_keyed(device):
    codec = make("int8(round=stochastic)")
    x = torch.full((20_000,), 0.3, device=device)
    x[::128] = 127.0
    rng = torch.tensor([3, 9], device=device)
    a = compress(codec, x, rng=rng, key=1)
    assert torch.equal(a.wire, compress(codec, x, rng=rng, key=1).wire)
    assert not torch.equal(a.wire, compress(codec, x, rng=rng, key=2).wire)
    assert not torch.equal(a.wire, compress(codec, x, rng=rng + 1, key=1).wire)
    assert not torch.equal(a.wire, compress(codec, x, start=FRAME, rng=rng, key=1).wire)
    small = a.opened[x < 1]
    assert set(small.tolist()) == {0.0, 1.0}
    assert abs(float(small.mean()) - 0.3) < 0.02
    with pytest.raises(ValueError, match="rng"):
        compress(codec, x)


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", COUNTS)
def test_error_feedback_equals_the_formulas(n, device):
    codec = make("error_feedback(int4)")
    error = np.zeros(n, F)
    state = torch.zeros(n, device=device)
    for call in range(3):
        x = dirty(n, call) if call == 1 else sample(n, call)
        v = x + error
        got = compress(codec, torch.from_numpy(x).to(device), states={"error": state})
        np.testing.assert_array_equal(got.wire.cpu().numpy(), symmetric_wire(v, 128, 7))
        opened = np.concatenate([symmetric(v[f], 128, 7)[2] for f in frames(n)])
        kept = grouped(np.isfinite(opened).astype(F), 128)
        kept[-1, n - (len(kept) - 1) * 128 :] = 1
        ok = np.repeat(kept.all(1), 128)[:n]
        with np.errstate(invalid="ignore"):
            error = np.where(ok, v - opened, error)
        state = got.states["error"]
        assert state.numel() == -(-n // 128) * 128 and not state[n:].any()
        equal(state[:n], error)
        equal(open_wire(codec, got.wire, n).values, opened)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 129, 2048, 32769, 70000])
def test_weight_differences_equal_the_formulas_on_both_sides(n, device):
    codec = make("weight_delta4", "bf16")
    first = codec.first
    assert first is not None
    version = torch.tensor([6], dtype=torch.int32, device=device)
    whole = -(-n // 2048) * 2048
    nothing = {"base": torch.zeros(whole, dtype=torch.bfloat16, device=device)}
    x = sample(n)
    got = compress(first, torch.from_numpy(x).to(device), states=nothing, version=version)
    base = to_bf16(x)
    filled = [
        (
            padded(np.pad(bf16_bytes(base[f]), (0, 2 * (-len(base[f]) % 2048)))),
            padded(np.array([6], "<u4").view(np.uint8)),
        )
        for f in frames(n)
    ]
    np.testing.assert_array_equal(got.wire.cpu().numpy(), np.concatenate([b for pair in filled for b in pair]))
    received = open_wire(first, got.wire, n, states=nothing, version=version)
    equal(received.values, base)
    for call in range(2):
        equal(got.states["base"].float()[:n], base)
        assert torch.equal(got.states["base"], received.states["base"])
        x = (base + sample(n, 7 + call) * F(0.01)).astype(F)
        got = compress(codec, torch.from_numpy(x).to(device), states=got.states, version=version + call)
        np.testing.assert_array_equal(got.wire.cpu().numpy(), symmetric_wire(x - base, 2048, 7, 6 + call))
        change = np.concatenate([symmetric((x - base)[f], 2048, 7)[2] for f in frames(n)])
        opened = base + change
        received = open_wire(codec, got.wire, n, states=received.states, version=version + call)
        equal(received.values, opened)
        equal(got.opened, opened)
        assert received.mismatch is not None and not received.mismatch.any()
        base = to_bf16(opened)


def test_a_frame_of_another_version_opens_as_nan_and_keeps_its_state():
    codec, n = make("weight_delta4"), FRAME + 100
    state = {"base": torch.from_numpy(sample(FRAME + 2048)).to(torch.bfloat16)}
    state["base"][n:] = 0
    one = torch.tensor([1], dtype=torch.int32)
    sent = compress(codec, torch.from_numpy(sample(n, 1)), states=state, version=one)
    wire = sent.wire.clone()
    wire[wire_bytes(codec, FRAME) - 16] = 2
    got = open_wire(codec, wire, n, states=state, version=one)
    assert got.mismatch is not None and got.mismatch.tolist() == [True, False]
    assert torch.isnan(got.values[:FRAME]).all() and torch.equal(got.values[FRAME:], sent.opened[FRAME:])
    assert torch.equal(got.states["base"][:FRAME], state["base"][:FRAME])
    assert torch.equal(got.states["base"][FRAME:], sent.states["base"][FRAME:])


def test_a_first_codec_keeps_the_basis_of_what_it_stands_in_for():
    text = """compressor delta(c: compressor) {
      state base : f32 both first raw
      wire { inner : wire(c) }
      compress(x) { inner = compress(c, x - base) }
      decompress { yield base + decompress(inner) }
      update both { base = decompressed }
    }"""
    codec = make("delta(int8_h32)", source=text)
    assert codec.first is not None and codec.first.basis == codec.basis == 32


def test_a_receiver_cannot_open_with_what_only_the_sender_has():
    text = """compressor leaky(group: int = 8) {
      state own : f32 sender
      wire { v : f32[group] }
      nonfinite pass
      compress(x) { v = x - own }
      decompress { yield v + own }
      update sender { own = decompressed }
    }"""
    with pytest.raises(CompileError, match="E405"):
        make("leaky", source=text)


def test_what_a_codec_needs_is_asked_for_by_name():
    x = torch.zeros(8)
    with pytest.raises(ValueError, match="`error`"):
        compress(make("error_feedback(int4)"), x)
    with pytest.raises(ValueError, match="version"):
        compress(make("weight_delta4"), x, states={"base": torch.zeros(2048, dtype=torch.bfloat16)})
    with pytest.raises(ValueError, match="has 3 values, the piece 8"):
        compress(make("error_feedback(int4)"), x, states={"error": torch.zeros(3)})
    with pytest.raises(ValueError, match="bytes"):
        open_wire(make("int4"), torch.zeros(10, dtype=torch.uint8), 8)
    with pytest.raises(TypeError, match="float32"):
        compress(make("int4"), x.double())


def test_an_empty_piece_has_an_empty_wire():
    for text in ("int4", "int8_h32"):
        got = compress(make(text), torch.zeros(0))
        assert got.wire.shape == got.opened.shape == (0,)
        assert open_wire(make(text), got.wire, 0).values.shape == (0,)


# ---------------------------------------------------------------- frames, flags, claims

TWO_LEVEL = """compressor two_level(group: int = 16) {
  wire { code : e2m1[group]  scale : e4m3  T : f32 frame }
  nonfinite scale
  compress(x) {
    T = max(abs(x)) / 2688
    scale = max(abs(x)) / 6 / nonzero(T)
    code = x / nonzero(scale) / nonzero(T)
  }
  decompress { yield code * scale * T }
}"""


@pytest.mark.parametrize("n", [1, 40, FRAME + 17])
def test_frame_fields_see_their_frame_only(n):
    codec = make("two_level", source=TWO_LEVEL)
    x = sample(n, 3, 2.0)
    got = compress(codec, torch.from_numpy(x))
    equal(open_wire(codec, got.wire, n).values, got.opened.numpy())
    end = 0
    for f in frames(n):
        end += wire_bytes(codec, f.stop - f.start)
        held = got.wire[end - 16 : end - 12].numpy().copy().view("<f4")[0]
        assert held == F(np.abs(x[f]).max()) * F(1 / 2688)
    assert float((got.opened - torch.from_numpy(x)).abs().max()) <= 0.2 * float(np.abs(x).max())


def test_frame_sums_are_the_balanced_tree_over_all_groups_of_a_frame():
    text = """compressor centred(group: int = 64) {
      wire { value : f32[group]  T : f32 frame }
      nonfinite pass
      compress(x) { T = sum(x)  value = x }
      decompress { yield value }
    }"""
    codec = make("centred", source=text)
    for n in (5, 1000, FRAME):
        x = sample(n)
        v = np.pad(x, (0, FRAME - n)).reshape(-1, 64)
        while v.shape[1] > 1:
            v = v[:, : v.shape[1] // 2] + v[:, v.shape[1] // 2 :]
        v = v[:, 0]
        while len(v) > 1:
            v = v[: len(v) // 2] + v[len(v) // 2 :]
        held = compress(codec, torch.from_numpy(x)).wire[-16:-12].numpy().copy().view("<f4")[0]
        assert held.view(np.uint32) == v[0].view(np.uint32)


def test_a_flagged_group_is_counted_and_poisoned():
    text = """compressor guarded(group: int = 32) {
      wire { code : s8[group]  scale : bf16 }
      nonfinite scale
      flag big when max(abs(x)) > 100
      compress(x) { scale = up(max(abs(x)) / 127)  code = quantize(x / nonzero(scale), -127, 127) }
      decompress { yield code * scale }
      claim abs(x - decompressed) <= 0.5 * scale + tiny
    }"""
    codec = make("guarded", source=text)
    x = torch.ones(100)
    x[[40, 50, 99]] = 1000.0
    got = compress(codec, x)
    assert int(got.flags["big"]) == 2
    hit = torch.isin(torch.arange(100) // 32, torch.tensor([1, 3]))
    assert torch.equal(torch.isnan(open_wire(codec, got.wire, 100).values), hit)
    assert torch.equal(torch.isnan(got.opened), hit)
    assert all(c.holds for c in bounds(codec, x))


CLAIMS = ["int8", "int4(group=64)", "int8_h32", "int4_h32", "bf16", "int4(round=stochastic)", "int8(scale_type=f32)"]
CLAIMS += ["error_feedback(int4)", "weight_delta4"]


@pytest.mark.parametrize("text", CLAIMS)
@given(st.integers(1, 400), st.integers(0, 1 << 30), st.floats(-140, 120), st.sampled_from(["normal", "few", "bits"]))
def test_claims_hold(text, n, seed, exponent, shape):
    codec, rng = make(text), np.random.default_rng(seed)
    x = rng.standard_normal(n)
    if shape == "few":
        x = rng.integers(-8, 9, n) / 8
    elif shape == "bits":
        x = x * 2.0 ** rng.integers(-30, 6, n)
    v = torch.from_numpy((x * 2.0**exponent).astype(F))
    states = {s.name: torch.from_numpy(sample(4096, seed) * F(2.0**exponent)) for s in codec.states}
    state = {s.name: states[s.name].to(torch.bfloat16 if s.dtype == "bf16" else torch.float32) for s in codec.states}
    found = bounds(codec, v, states=state, rng=torch.tensor([seed, 1]))
    assert found
    for claim in found:
        assert claim.holds, claim.text
        assert claim.bound is not None and claim.bound.shape == v.shape


def test_a_broken_claim_is_seen():
    text = """compressor wrong(group: int = 8) {
      wire { value : bf16[group] }
      nonfinite pass
      compress(x) { value = x }
      decompress { yield value }
      claim abs(x - decompressed) <= 0.001 * abs(x)
    }"""
    codec = make("wrong", source=text)
    assert [bool(c.holds) for c in bounds(codec, torch.from_numpy(sample(100)))] == [False]
    assert [bool(c.holds) for c in bounds(codec, torch.ones(100))] == [True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("text", ["int8", "int4_h32", "bf16", "int4(round=stochastic)", "two_level"])
def test_cuda_gives_the_cpus_bits(text):
    codec = make(text, source=TWO_LEVEL)
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 21, dtype=np.uint64).astype(np.uint32).view(F)
    for x in (torch.from_numpy(sample(1 << 21, 1, 60.0)), torch.from_numpy(random)):
        here = compress(codec, x, rng=torch.tensor([1, 2]), key=3)
        there = compress(codec, x.cuda(), rng=torch.tensor([1, 2]).cuda(), key=3)
        assert torch.equal(here.wire, there.wire.cpu())
        assert torch.equal(here.opened.nan_to_num(7), there.opened.cpu().nan_to_num(7))
