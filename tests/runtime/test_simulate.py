"""The reference itself: claims bound its error, NaN and Inf stay in their group, arguments are checked."""

from __future__ import annotations

import pytest
import torch
from worlds import inputs, mesh_for, same

from coccl_dsl import simulate
from coccl_dsl.pipeline import load

CASES = [
    ("two_shot", (3,)),
    ("ring", (4,)),
    ("one_shot", (3,)),
    ("halving_doubling", (5,)),
    ("reduce_scatter_direct", (3,)),
    ("all_gather_direct", (3,)),
    ("all_to_all_direct", (3,)),
    ("tree_broadcast", (4,)),
    ("three_shot", (2, 2)),
    ("sdp4bit", (2, 2)),
]


@pytest.mark.parametrize("name,sizes", CASES)
@pytest.mark.parametrize("compressor", ["int8", "int4", "int4(round=stochastic)", "bf16", "int8_h32", "raw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_error_is_within_the_claims_on_the_path(name, sizes, compressor, dtype):
    c = load(name)
    n = torch.tensor(sizes).prod().item()
    xs = [x * 10 ** (i - 1) for i, x in enumerate(inputs(n, 600 * n, dtype, 5))]
    bound = dict.fromkeys(c.program().codecs, compressor)
    t = simulate(c, xs, mesh=mesh_for(c, sizes), trace=True, **bound)
    if compressor != "raw" and not (compressor == "bf16" and dtype == torch.bfloat16):
        assert t.compressions
    assert all(k.holds and k.bound < float("inf") for k in t.compressions)
    for got, limit, exact in zip(t.outputs, t.bounds, t.exact, strict=True):
        assert bool(((got.reshape(-1).double() - exact).abs() <= limit.double()).all())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name,sizes", [c for c in CASES if c[0] not in ("all_gather_direct", "all_to_all_direct")])
def test_one_bad_element_makes_exactly_its_group_nan_on_every_rank(name, sizes, value):
    c = load(name)
    n = torch.tensor(sizes).prod().item()
    xs = inputs(n, 512 * n, torch.float32)
    clean = simulate(c, xs, mesh=mesh_for(c, sizes), **dict.fromkeys(c.program().codecs, "int8(group=128)"))
    xs[0 if c.kind == "broadcast" else 1][200] = value
    dirty = simulate(c, xs, mesh=mesh_for(c, sizes), **dict.fromkeys(c.program().codecs, "int8(group=128)"))
    for rank, (a, b) in enumerate(zip(clean, dirty, strict=True)):
        bad = torch.isnan(b).nonzero().reshape(-1).tolist()
        if c.kind == "reduce_scatter" and rank:
            assert bad == [] and same(a, b), "another shard"
            continue
        assert bad == list(range(128, 256)), (rank, bad[:3], bad[-3:])
        keep = torch.ones(b.numel(), dtype=torch.bool)
        keep[128:256] = False
        assert same(a[keep], b[keep])


def test_raw_keeps_the_one_bad_element():
    for name in ("two_shot", "ring"):
        xs = inputs(3, 700, torch.bfloat16)
        xs[1][300] = float("nan")
        for y in simulate(load(name), xs, q="raw"):
            assert torch.isnan(y).nonzero().reshape(-1).tolist() == [300]


@pytest.mark.parametrize("compressor", ["int8", "int4", "raw", "int8_h32"])
def test_finite_sums_beyond_float16_saturate(compressor):
    """The sum is float32, so only the rounding at the end could overflow."""
    xs = [torch.full((300,), 65504.0, dtype=torch.float16) for _ in range(3)]
    for y in simulate(load("two_shot"), xs, q=compressor):
        assert bool((y == 65504.0).all())


def test_replicas_hold_the_same_bits():
    for name, sizes in CASES:
        c = load(name)
        if c.kind not in ("all_reduce", "broadcast", "all_gather"):
            continue
        n = torch.tensor(sizes).prod().item()
        outs = simulate(c, inputs(n, 1000, torch.bfloat16), mesh=mesh_for(c, sizes))
        assert all(same(outs[0], o) for o in outs)


def test_stochastic_rounding_depends_on_seed_and_value_alone():
    c, xs = load("two_shot"), inputs(2, 500, torch.float32)
    a = simulate(c, xs, q="int4(round=stochastic)", seed=1)
    assert same(a[0], simulate(c, xs, q="int4(round=stochastic)", seed=1)[0])
    assert not same(a[0], simulate(c, xs, q="int4(round=stochastic)", seed=2)[0])


def test_wrong_arguments_are_named():
    c, x = load("two_shot"), torch.zeros(4)
    with pytest.raises(TypeError, match="int32"):
        simulate(c, [x.int(), x.int()])
    with pytest.raises(ValueError, match="different numbers"):
        simulate(c, [x, torch.zeros(5)])
    with pytest.raises(ValueError, match="max"):
        simulate(c, [x, x], op="max")
    with pytest.raises(ValueError, match="mesh"):
        simulate(load("three_shot"), [x] * 4)
    with pytest.raises(ValueError, match="root"):
        simulate(load("tree_broadcast"), [x, x], root=2)
