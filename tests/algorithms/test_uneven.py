"""all_to_all with parts of any lengths, raw or compressed pair by pair: here in one process against `simulate`, on processes in test_functions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import same

from coccl_dsl import BindError, LocalGroup, simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.executor import ExchangeCall

EXCHANGE = load("all_to_all_direct")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def tensors(splits, dtype="f32"):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(sum(row), generator=g).to(DTYPES[dtype]) for row in splits]


def check(splits, q="int8", min_bytes=0, dtype="f32", **options):
    n, xs = len(splits), tensors(splits, dtype)
    most = max(1, max(map(max, splits)))
    op = EXCHANGE.bind(
        LocalGroup(n), like=torch.empty(n * most, dtype=DTYPES[dtype]), q=q, min_bytes=min_bytes, **options
    )
    got = op(xs, splits=splits)
    want = simulate(EXCHANGE, xs, splits=splits, q=q, min_bytes=min_bytes, op=options.get("op", "sum"))
    assert all(same(a, b) for a, b in zip(got, want, strict=True))
    return got, xs


MIXED = [[3, 0, 257, 40], [1, 600, 0, 0], [0, 0, 0, 0], [100, 9, 128, 700]]


@pytest.mark.parametrize("q", ["int8", "int4_h32", "int4(round=stochastic)", "raw", "bf16"])
@pytest.mark.parametrize("min_bytes", [0, 1, 400, 1024, 1 << 30])
def test_lengths_and_thresholds(q, min_bytes):
    for dtype in DTYPES:
        for depth in (1, 3):
            check(MIXED, q, min_bytes, dtype, depth=depth)


def test_pairs_below_the_threshold_are_exact_and_the_others_are_not():
    got, xs = check(MIXED, min_bytes=512)
    starts = [[sum(row[:j]) for j in range(4)] for row in MIXED]
    for to in range(4):
        at = 0
        for source in range(4):
            length = MIXED[source][to]
            part = xs[source][starts[source][to] : starts[source][to] + length]
            exact = torch.equal(got[to][at : at + length], part)
            assert exact == (length * 4 < 512 or source == to), (source, to)
            at += length


def test_both_ends_of_a_pair_agree_on_its_bytes():
    op = EXCHANGE.bind(LocalGroup(4), like=torch.empty(2800), min_bytes=512)
    sent, got = {}, {}
    for rank, one in enumerate(op.ops):
        splits = (tuple(MIXED[rank]), tuple(row[rank] for row in MIXED))
        for step in one._executor.prepare(sum(MIXED[rank]), splits).passes[0][0]:
            for p in step.sends if isinstance(step, ExchangeCall) else ():
                sent[rank, p.peer] = [t.numel() for t in p.tensors]
            for p in step.recvs if isinstance(step, ExchangeCall) else ():
                got[p.peer, rank] = [t.numel() for t in p.tensors]
    assert sent == got
    assert sent[0, 3] == [160] and sent[3, 2] != [512], "40 values go raw, 128 do not"
    assert (2, 0) not in sent and (1, 2) not in sent, "empty parts send nothing"


@pytest.mark.parametrize("splits", [[[0, 0], [0, 0]], [[0, 5], [0, 0]], [[7, 0], [0, 7]], [[0] * 3] * 3])
def test_empty_parts_and_empty_ranks(splits):
    got, _ = check(splits)
    assert [g.numel() for g in got] == [sum(row[r] for row in splits) for r in range(len(splits))]


def test_a_group_of_one_keeps_what_it_has():
    x = torch.randn(77)
    op = EXCHANGE.bind(LocalGroup(1), like=x, min_bytes=100)
    assert torch.equal(op([x])[0], x)


def test_even_calls_obey_the_threshold_too():
    xs = tensors([[50] * 4] * 4)
    op = EXCHANGE.bind(LocalGroup(4), like=torch.empty(4000), min_bytes=400)
    want = simulate(EXCHANGE, xs, q="raw")
    assert all(same(a, b) for a, b in zip(op(xs), want, strict=True))
    large = tensors([[500] * 4] * 4)
    assert all(same(a, b) for a, b in zip(op(large), simulate(EXCHANGE, large), strict=True))


@settings(max_examples=25)
@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 300), min_size=n, max_size=n), min_size=n, max_size=n)
    ),
    st.integers(0, 700),
)
def test_any_splits(splits, min_bytes):
    check(splits, "int4(group=32)", min_bytes, "bf16", op="avg")


def test_what_does_not_fit_is_refused():
    x = torch.empty(400)
    op = EXCHANGE.bind(LocalGroup(2), like=x)
    with pytest.raises(ValueError, match="a chunk of 201 elements .* bound for 200"):
        op([torch.empty(201), torch.empty(0)], splits=[[0, 201], [0, 0]])
    with pytest.raises(ValueError, match="do not fit 5 elements"):
        op([torch.empty(5), torch.empty(0)], splits=[[0, 4], [0, 0]])
    with pytest.raises(BindError, match="keeps a state"):
        EXCHANGE.bind(LocalGroup(2), like=x, q="error_feedback(int8)", min_bytes=64)
    with pytest.raises(BindError, match="is for all_to_all"):
        load("ring").bind(LocalGroup(2), like=x, min_bytes=64)
    with pytest.raises(BindError, match="fuse=False"):
        EXCHANGE.bind(LocalGroup(2), like=x, fuse=False, min_bytes=64)
    with pytest.raises(BindError, match="min_bytes=-1"):
        EXCHANGE.bind(LocalGroup(2), like=x, min_bytes=-1)
    mesh = load("all_to_all_mesh").bind(LocalGroup(4), like=x, mesh={"node": 2, "local": 2})
    with pytest.raises(ValueError, match="even splits only"):
        mesh([torch.empty(sum(row)) for row in MIXED], splits=MIXED)
