"""Subgroups, two groups at once, async calls, shapes, in-place forms, wrong arguments."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import inputs, same

from coccl_dsl import BindError, simulate
from coccl_dsl.pipeline import load


def raises(kind, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind} with {words!r}")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    mine = low if rank < 2 else high
    c = load("two_shot")
    xs = inputs(n, 5000, torch.bfloat16)
    all_ranks, half = c.bind(like=xs[0]), c.bind(mine, like=xs[0])
    pair = xs[:2] if rank < 2 else xs[2:]
    for _ in range(3):
        work = half(xs[rank], async_op=True)
        assert same(all_ranks(xs[rank]), simulate(c, xs)[rank])
        assert same(work.wait(), simulate(c, pair)[rank % 2])

    x = xs[rank].reshape(50, 100)
    assert all_ranks(x).shape == x.shape
    assert same(all_ranks(x.t()), simulate(c, [t.reshape(50, 100).t().contiguous() for t in xs])[rank]), (
        "not contiguous"
    )
    y = x.clone()
    assert all_ranks(y, out=y).data_ptr() == y.data_ptr() and same(y, simulate(c, xs)[rank])
    scalar = torch.tensor(float(rank), dtype=torch.bfloat16)
    assert all_ranks(scalar).shape == () and abs(float(all_ranks(scalar)) - 6) < 0.2

    gather = load("all_gather_direct")
    g = gather.bind(like=x)
    whole = g(x)
    assert whole.shape == (200, 100) and same(whole, simulate(gather, xs)[rank])
    own = torch.empty(n, 5000, dtype=torch.bfloat16)
    own[rank] = xs[rank]
    g(own[rank], out=own)
    assert same(own, whole), "torch's in-place form: the input is a view of the output"

    scatter = load("reduce_scatter_direct")
    s = scatter.bind(like=x, q="int4")
    big = inputs(n, 8000, torch.bfloat16, 3)
    s = scatter.bind(like=big[0])
    want = simulate(scatter, big)[rank]
    assert same(s(big[rank]), want)
    inout = big[rank].clone()
    s(inout, out=inout.view(n, -1)[rank])
    assert same(inout.view(n, -1)[rank], want), "torch's in-place form: the output is a view of the input"
    assert s(big[rank].view(80, 100)).shape == (20, 100)

    exchange = load("all_to_all_direct")
    e = exchange.bind(like=torch.empty(n * 700))
    splits = [[3, 0, 257, 40], [1, 600, 0, 0], [0, 0, 0, 0], [100, 9, 128, 700]]
    sent = [torch.randn(sum(row), generator=torch.Generator().manual_seed(i)) for i, row in enumerate(splits)]
    got = e(sent[rank], input_splits=splits[rank], output_splits=[row[rank] for row in splits])
    assert same(got, simulate(exchange, sent, splits=splits)[rank])

    for op, factor in (("avg", 0.25), ("premul(0.125)", 0.125)):
        scaled = c.bind(like=xs[0], op=op)(xs[rank])
        assert same(scaled, simulate(c, xs, op=op)[rank])
        exact = torch.stack(xs).double().sum(0) * factor
        assert float((scaled.double() - exact).norm() / exact.norm()) < 0.02

    raises(TypeError, "bound for", lambda: all_ranks(xs[rank].float()))
    raises(ValueError, "capacity", lambda: all_ranks(torch.zeros(6000, dtype=torch.bfloat16)))
    raises(ValueError, "contiguous", lambda: all_ranks(x, out=torch.empty(100, 50, dtype=torch.bfloat16).t()))
    raises(ValueError, "elements", lambda: all_ranks(x, out=torch.empty(3, dtype=torch.bfloat16)))
    buffer = torch.zeros(5001, dtype=torch.bfloat16)
    raises(ValueError, "overlaps", lambda: all_ranks(buffer[:5000], out=buffer[1:]))
    raises(ValueError, "multiple", lambda: s(torch.zeros(9, dtype=torch.bfloat16)))
    raises(TypeError, "int64", lambda: c.bind(like=torch.zeros(4, dtype=torch.int64)))
    raises(BindError, "max", lambda: c.bind(like=x, op="max"))
    raises(BindError, "no argument `compressor`", lambda: c.bind(like=x, compressor="int8"))
    raises(BindError, "mesh", lambda: load("three_shot").bind(like=x))
    raises(BindError, "CUDA", lambda: c.bind(like=x, transport="nccl"))
    assert "transport: torch (gloo)" in all_ranks.explain()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
