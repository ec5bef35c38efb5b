"""What every compressor promises: its claims, its bytes, what becomes of NaN and Inf, and its error on the two reference distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coccl_dsl
from coccl_dsl.codegen.casts import TORCH_DTYPES
from coccl_dsl.codegen.eager import CLAIMED, bounds, compress, open_wire, rotate
from coccl_dsl.wire.codec import FRAME, Codec
from coccl_dsl.wire.layout import bits_per_value, wire_bytes
from tests.compressors.data import DTYPES, KINDS, gaussian, relative_error, sample
from tests.compressors.library import EVERY, SHIPPED, Shipped
from tests.lang.compressor_texts import codec

IDS = [q.text for q in EVERY]
STATELESS = [q for q in EVERY if "error_feedback" not in q.text and "delta" not in q.text]
RNG = torch.tensor([3, 1])
VERSION = torch.ones(1, dtype=torch.int32)


def states_of(c: Codec, count: int, values: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    n = count + -count % max(c.basis, 1)
    made = torch.zeros(n)
    if values is not None:
        made[:count] = values
    return {s.name: made.to(TORCH_DTYPES[s.dtype]) for s in c.states}


def round_trip(c: Codec, x: torch.Tensor) -> torch.Tensor:
    """What a receiver of `x` holds, in float32, from states of 0."""
    v = rotate(x, c.basis) if c.basis else x
    states = states_of(c, x.numel())
    wire = compress(c, v, states=states, rng=RNG, version=VERSION).wire
    y = open_wire(c, wire, x.numel(), states=states, version=VERSION).values
    return rotate(y, c.basis)[: x.numel()] if c.basis else y


# ---------------------------------------------------------------- claims


def check_claims(q: Shipped, dtype: str, x: torch.Tensor, states: torch.Tensor | None = None) -> None:
    c = codec(q.text, dtype)
    v = rotate(x, c.basis) if c.basis else x
    for claim in bounds(c, v, states=states_of(c, x.numel(), states), rng=RNG, key=7):
        assert claim.holds, f"{q.text}, {dtype}: {claim.text}"


@pytest.mark.parametrize("q", EVERY, ids=IDS)
def test_there_is_a_claim(q: Shipped) -> None:
    for dtype in q.dtypes:
        c = codec(q.text, dtype)
        assert c.claims or c.name.startswith("raw"), "only raw makes none: it is exact for every dtype"


@pytest.mark.parametrize("q", EVERY, ids=IDS)
def test_claims_hold_on_every_kind_of_data(q: Shipped) -> None:
    for dtype in q.dtypes:
        for i, kind in enumerate(KINDS):
            check_claims(q, dtype, sample(kind, (1, 3000, 4100)[i % 3], dtype, i))
        mixed = torch.cat([sample(k, 37, dtype, 9) for k in KINDS for _ in range(4)])
        check_claims(q, dtype, mixed)
        check_claims(q, dtype, mixed.flip(0), states=sample("random", mixed.numel(), dtype, 4) * 0.1)


@pytest.mark.parametrize("q", EVERY, ids=IDS)
@settings(max_examples=25)
@given(st.data())
def test_claims_hold(q: Shipped, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(q.dtypes))
    width, limit = (16, 65504.0) if dtype == "f16" else (32, CLAIMED)
    value = st.floats(-limit, limit, width=width) if width == 16 else st.floats(-CLAIMED, CLAIMED)
    some = data.draw(st.lists(value, min_size=1, max_size=40))
    repeats = data.draw(st.integers(1, 30))
    noise = data.draw(st.sampled_from([0.0, 1e-3, 1.0]))
    x = torch.tensor(some, dtype=torch.float64).repeat(repeats)
    x = x * (1 - noise * torch.rand(x.numel(), generator=torch.Generator().manual_seed(repeats), dtype=torch.float64))
    x = x.float().clamp(-CLAIMED * 0.99, CLAIMED * 0.99).to(DTYPES[dtype]).float()
    check_claims(q, dtype, x)


# ---------------------------------------------------------------- bytes


@pytest.mark.parametrize("q", EVERY, ids=IDS)
def test_bits_a_value_are_the_bytes_of_whole_frames(q: Shipped) -> None:
    for dtype in q.dtypes:
        c = codec(q.text, dtype)
        bits = 32 if q.name == "raw" and dtype == "f32" else q.bits
        assert bits_per_value(c) == bits
        x = sample("random", 2 * FRAME, dtype)
        wire = compress(c, x, states=states_of(c, x.numel()), rng=RNG, version=VERSION).wire
        assert wire.numel() * 8 == bits * x.numel() == wire_bytes(c, x.numel()) * 8


# ---------------------------------------------------------------- NaN and Inf


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("q", EVERY, ids=IDS)
def test_nan_and_inf_show_where_they_are(q: Shipped, bad: float) -> None:
    for dtype in q.dtypes:
        c = codec(q.text, dtype)
        count = 5 * c.group
        x = sample("random", count, dtype)
        at = 2 * c.group + c.group // 2
        x[at] = bad
        y = round_trip(c, x)
        clean = x.clone()
        if q.nonfinite == "own":
            clean[at] = 0.0
            assert torch.equal(y[at].isnan(), x[at].isnan()) and (y[at] == bad or bad != bad)
            y[at] = round_trip(c, clean)[at]
            assert torch.equal(y, round_trip(c, clean)), "no other element changes"
        else:
            group = slice(2 * c.group, 3 * c.group)
            clean[group] = 0.0
            assert y[group].isnan().all(), "the whole group says so"
            rest = torch.ones(count, dtype=torch.bool)
            rest[group] = False
            assert torch.equal(y[rest], round_trip(c, clean)[rest]), "no other group changes"


@pytest.mark.parametrize("q", EVERY, ids=IDS)
def test_a_state_is_left_alone_where_the_group_is_not_finite(q: Shipped) -> None:
    for dtype in q.dtypes:
        c = codec(q.text, dtype)
        if not c.stateful:
            continue
        x = sample("random", 3 * c.group, dtype)
        before = states_of(c, x.numel(), sample("random", x.numel(), dtype, 1))
        x[c.group] = float("inf")
        after = compress(c, rotate(x, c.basis) if c.basis else x, states=before, version=VERSION).states
        for name, kept in before.items():
            assert torch.equal(after[name][c.group : 2 * c.group], kept[c.group : 2 * c.group])
            assert not torch.equal(after[name], kept) and after[name].isfinite().all()


@pytest.mark.parametrize(
    "q", [q for q in STATELESS if "f16" in q.dtypes], ids=[q.text for q in STATELESS if "f16" in q.dtypes]
)
def test_a_finite_value_never_becomes_inf_in_f16(q: Shipped) -> None:
    c = coccl_dsl.codec(q.text, torch.float16)
    edges = torch.tensor([65504.0, -65504.0, 65472.0, 0.0, 6e-8, -6e-8, 1.0]).half()
    for seed in range(20):
        g = torch.Generator().manual_seed(seed)
        x = edges[torch.randint(0, 2 + seed % 6, (3000,), generator=g)]
        assert c.roundtrip(x).isfinite().all()


@pytest.mark.parametrize("count", [1, 511, 512, 513, 4000])
def test_lossless_is_lossless_or_says_so(count: int) -> None:
    c = codec("lossless_bf16")
    for kind in KINDS:
        x = sample(kind, count, "bf16", count)
        made = compress(c, x)
        lost = made.opened.isnan()
        assert torch.equal(made.opened[~lost], x[~lost])
        groups = torch.nn.functional.pad(lost, (0, -count % 512), value=False).view(-1, 512).any(1)
        assert int(made.flags["overflow"]) == int(groups.sum())
        assert kind in ("wide", "random", "outlier", "tiny", "sparse") or not lost.any()
    x = torch.linspace(-3, 3, 512).bfloat16().float()
    assert not compress(c, x).opened.isnan().any()
    x[:8] = (
        torch.tensor([float("inf"), float("nan"), 1e-38, 1e-20, -1e-30, float("-inf"), 1e-40, 0.0]).bfloat16().float()
    )
    assert torch.equal(compress(c, x).opened.nan_to_num(7.0, 8.0, 9.0), x.nan_to_num(7.0, 8.0, 9.0))


# ---------------------------------------------------------------- errors

# codecs.md 2.17: relative root-mean-square error, Gaussian and Gaussian with one value in a thousand x 30.
MEASURED = {
    "minmax_u8": (0.0094, 0.103),
    "int8": (0.0065, 0.018),
    "int8(group=2048)": (0.0083, 0.060),
    "fp8_e4m3": (0.0257, 0.019),
    "fp8_e5m2": (0.051, 0.038),
    "int4": (0.117, 0.207),
    "int4(round=stochastic)": (0.166, 0.370),
    "int4(group=32)": (0.097, 0.118),
    "int4(group=2048)": (0.150, 0.599),
    "int4_h32": (0.118, 0.110),
    "uint4": (0.078, 0.099),
    "mxfp4": (0.114, 0.146),
    "nvfp4": (0.095, 0.089),
    "spike3": (0.129, 0.094),
    "spike2": (0.302, 0.221),
    "int2(group=32)": (0.658, 0.487),
    "sign1": (0.603, 0.802),
    "topk": (0.957, 0.697),
}


@pytest.mark.parametrize("text", MEASURED)
def test_error_on_the_reference_distributions(text: str) -> None:
    for outliers, want in enumerate(MEASURED[text]):
        x = gaussian(1 << 20, bool(outliers))
        assert relative_error(x, round_trip(codec(text, "f32"), x)) == pytest.approx(want, rel=0.03)


def test_every_shipped_compressor_is_here() -> None:
    assert len({q.text for q in SHIPPED}) == len(SHIPPED)


def test_zfp8_beside_zfp_itself() -> None:
    """By error at 8 bits a value: fixed planes lose nothing on noise, where zfp's embedded coding has nothing to find, and up to 8 times on
    smooth data, where it has."""
    zfpy = pytest.importorskip("zfpy")
    noise = np.random.default_rng(0).standard_normal(1 << 15).astype(np.float32)
    smooth = (np.sin(np.linspace(0, 100, 1 << 15)) + np.linspace(0, 1, 1 << 15)).astype(np.float32)

    def error(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.sqrt(((x - y) ** 2).mean() / (x**2).mean()))

    for x, times in ((noise, 1.0), (smooth, 8.0)):
        theirs = error(x, zfpy.decompress_numpy(zfpy.compress_numpy(x, rate=8)))
        ours = error(x, coccl_dsl.codec("zfp8").roundtrip(torch.from_numpy(x)).numpy())
        assert 0 < ours <= times * theirs
