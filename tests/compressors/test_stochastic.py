"""Stochastic rounding: right on average, reproducible, new in each call, independent over ranks."""

from __future__ import annotations

import pytest
import torch

import coccl_dsl
from coccl_dsl.codegen.eager import compress
from coccl_dsl.pipeline import load
from tests.compressors.data import gaussian
from tests.lang.compressor_texts import codec

TEXTS = ["int8", "int4", "int2", "uint8", "uint4", "int8_h32", "int4_h32"]
COUNT = 1 << 20


@pytest.mark.parametrize("text", TEXTS)
def test_it_is_unbiased(text: str) -> None:
    """z-tests: the mean error of a million values, in all and for values that lie alike between two codes."""
    c = codec(f"{text}(round=stochastic)", "f32")
    x = gaussian(COUNT, False, 1)
    made = compress(c, x, rng=torch.tensor([11, 0]), key=5)
    nearest = compress(codec(text, "f32"), x)
    error = (made.opened - x).double()
    # The two roundings differ by a whole step at most: what is left of it is the value's place between its codes.
    groups = error.view(-1, c.group)
    step = (made.opened - nearest.opened).view(-1, c.group).abs().amax(1, keepdim=True).double()
    away = ((nearest.opened - x).double().view(-1, c.group) / step).abs().clamp(max=0.5)
    variance = step**2 * away * (1 - away)
    assert abs(float(groups.sum() / variance.sum().sqrt())) < 4
    for low in (0.0, 0.1, 0.2, 0.3, 0.4):
        for sign in (-1, 1):
            alike = (away >= low) & (away < low + 0.1) & (((nearest.opened - x).view(-1, c.group) * sign) > 0)
            assert abs(float(groups[alike].sum() / variance[alike].sum().sqrt())) < 4


@pytest.mark.parametrize("value", [0.01, 0.3, 0.5, 0.77])
def test_one_value_a_million_times(value: float) -> None:
    x = torch.full((COUNT,), value)
    x[::128] = 7.0
    opened = compress(codec("int4(round=stochastic)", "f32"), x, rng=torch.tensor([2, 0]), key=9).opened
    drawn = torch.ones(COUNT, dtype=torch.bool)
    drawn[::128] = False
    count = int(drawn.sum())
    z = (float(opened[drawn].double().mean()) - value) / (value * (1 - value) / count) ** 0.5
    assert abs(z) < 4 and set(opened[drawn].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("text", TEXTS)
def test_it_repeats_from_its_seed_and_differs_from_call_to_call(text: str) -> None:
    x = gaussian(10_000, False)
    first, again, other = (coccl_dsl.codec(f"{text}(round=stochastic)", seed=s) for s in (1, 1, 2))
    calls = [first.compress(x).data for _ in range(3)]
    assert all(torch.equal(again.compress(x).data, c) for c in calls)
    assert not torch.equal(calls[0], calls[1]) and not torch.equal(calls[1], calls[2])
    assert not torch.equal(other.compress(x).data, calls[0])


@pytest.mark.parametrize("same", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_error_of_a_sum_grows_as_the_root(same: bool) -> None:
    """Even where all ranks hold the same values, which nearest rounding then gets wrong in the same way on each."""

    def error(n: int, q: str) -> float:
        xs = [gaussian(128 * 64, False, 0 if same else r) for r in range(n)]
        ys = coccl_dsl.simulate(load("reduce_scatter_direct"), xs, seed=4, q=q)
        exact = torch.stack(xs).double().sum(0)
        return float((torch.cat(ys).double() - exact).norm())

    drawn = error(64, "int4(round=stochastic)") / error(8, "int4(round=stochastic)")
    assert drawn == pytest.approx((63 / 7) ** 0.5, rel=0.06)
    if same:
        assert error(64, "int4") / error(8, "int4") == pytest.approx(63 / 7, rel=0.06)
