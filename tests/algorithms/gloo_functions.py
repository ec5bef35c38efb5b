"""One process of the test of the functional API: results, choices, caches, refusals."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import inputs, same

import coccl_dsl
from coccl_dsl import BindError, CollectiveError, simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime import agreement
from coccl_dsl.torch import calls


def raises(kind, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind} with {words!r}")


def chosen(kind: str, x: torch.Tensor, **options) -> str:
    return coccl_dsl.explain(kind, x, **options).split(": ")[1].split(",")[0]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
    low, high = dist.new_group([0, 1]), dist.new_group([2, 3])
    mine = low if rank < 2 else high
    for dtype, compressors in ((torch.float32, ("int8",)), (torch.bfloat16, ("int4", "raw"))):
        for compressor in compressors:
            small, large = inputs(n, 60, dtype, 1), inputs(n, 200_004, dtype, 2)
            for xs in (small, large):
                x = xs[rank]
                for kind, f, options in (
                    ("all_reduce", coccl_dsl.all_reduce, {"op": "avg"}),
                    ("reduce_scatter", coccl_dsl.reduce_scatter, {"op": "premul(0.5)"}),
                    ("all_gather", coccl_dsl.all_gather, {}),
                    ("all_to_all", coccl_dsl.all_to_all, {}),
                    ("broadcast", coccl_dsl.broadcast, {"root": 2}),
                    ("reduce", coccl_dsl.reduce, {"root": 1}),
                ):
                    got = f(x, compressor=compressor, **options)
                    name = chosen(kind, x, compressor=compressor, **options)
                    c = load(name)
                    want = simulate(c, xs, **options, **dict.fromkeys(c.program().codecs, compressor))[rank]
                    if kind != "reduce" or rank == 1:
                        assert same(got, want), (kind, name, compressor, dtype)
                    work = f(x, compressor=compressor, async_op=True, **options)
                    if kind != "reduce" or rank == 1:
                        assert same(work.wait(), want)

    xs = inputs(n, 4000, torch.float32, 3)
    x = xs[rank]
    pair = xs[:2] if rank < 2 else xs[2:]
    two = load("two_shot")
    assert same(coccl_dsl.all_reduce(x, algorithm="two_shot", group=mine), simulate(two, pair)[rank % 2])
    assert same(coccl_dsl.all_reduce(x, algorithm="two_shot"), simulate(two, xs)[rank])
    mesh = {"node": 2, "local": 2}
    level = load("two_level")
    want = simulate(level, xs, mesh=mesh, b="int8")[rank]
    assert same(coccl_dsl.all_reduce(x, algorithm="two_level", mesh=mesh), want), "what ships raw stays raw"
    want = simulate(level, xs, mesh=mesh, a="int8", b="int4")[rank]
    named = {"a": "int8", "b": "int4"}
    assert same(coccl_dsl.all_reduce(x, algorithm="two_level", compressor=named, mesh=mesh), want)
    y = x.clone()
    assert coccl_dsl.all_reduce(y, out=y).data_ptr() == y.data_ptr() and not same(y, x)

    # Two nodes of two ranks: the mesh decides.
    assert chosen("all_reduce", torch.empty(1 << 22), compressor="int4", mesh=mesh) in ("two_level", "three_shot")
    told = coccl_dsl.explain("all_reduce", torch.empty(1 << 22), mesh=mesh)
    assert "2 nodes of 2 ranks" in told and "us expected" in told and "not bound yet" in told

    splits = [[3, 0, 257, 40], [1, 600, 0, 0], [0, 0, 0, 0], [100, 9, 128, 700]]
    sent = [torch.randn(sum(row), generator=torch.Generator().manual_seed(i)) for i, row in enumerate(splits)]
    columns = [row[rank] for row in splits]
    for min_bytes in (0, 512, 1 << 20):
        got = coccl_dsl.all_to_all(
            sent[rank], input_splits=splits[rank], output_splits=columns, capacity=700, min_bytes=min_bytes
        )
        want = simulate(load("all_to_all_direct"), sent, splits=splits, min_bytes=min_bytes)[rank]
        assert same(got, want), min_bytes

    # Only two ranks of four, in groups of any size, in both directions at once; tags keep two ops apart.
    if rank in (1, 3):
        peer = 4 - rank
        give = xs[1] if rank == 1 else 2 * xs[3]
        take = torch.zeros(4000)
        if rank == 1:
            coccl_dsl.send(give, peer, tag=1)
            coccl_dsl.send(2 * give, peer, tag=2)
            assert coccl_dsl.recv(take, peer).data_ptr() == take.data_ptr()
        else:
            first, second = torch.zeros(4000), torch.zeros(4000)
            # As gloo's send completes without its receive for small messages only, the order here is that of the sender.
            coccl_dsl.recv(first, peer, tag=1)
            coccl_dsl.recv(second, peer, tag=2)
            want = simulate(load("send_recv"), [xs[1], xs[1]])[1]
            assert same(first, want) and same(second, simulate(load("send_recv"), [2 * xs[1]] * 2)[1])
            coccl_dsl.send(give, peer)
        if rank == 1:
            assert same(take, simulate(load("send_recv"), [2 * xs[3]] * 2)[1])

    # A call of a kind that is bound agrees on nothing; a new kind does.
    meetings = dict(agreement._sequence)
    for count in (4000, 3999, 2049):
        coccl_dsl.all_reduce(x[:count])
    assert dict(agreement._sequence) == meetings
    coccl_dsl.all_reduce(x[:2048], op="avg")
    assert dict(agreement._sequence) != meetings

    raises(BindError, "not all_reduce", lambda: coccl_dsl.all_reduce(x, algorithm="all_gather_ring"))
    raises(
        BindError, "has no compressor z", lambda: coccl_dsl.all_reduce(x, algorithm="ring", compressor={"z": "int8"})
    )
    raises(BindError, "mesh", lambda: coccl_dsl.all_reduce(x, mesh={"node": 3, "local": 2}))
    raises(TypeError, "int64", lambda: coccl_dsl.all_reduce(torch.zeros(4, dtype=torch.int64)))
    raises(TypeError, "list", lambda: coccl_dsl.all_reduce([1.0]))
    raises(ValueError, "together", lambda: coccl_dsl.all_to_all(x, input_splits=[1] * 4))
    raises(ValueError, "is not one of", lambda: coccl_dsl.explain("gather", x))
    dist.barrier()
    calls.capturing = lambda x: True
    coccl_dsl.all_reduce(x)
    raises(
        CollectiveError,
        "before the capture, call coccl_dsl.all_reduce",
        lambda: coccl_dsl.all_reduce(x, op="premul(3)"),
    )
    raises(CollectiveError, "coccl_dsl.send once", lambda: coccl_dsl.send(x, (rank + 1) % n, "bf16"))
    calls.capturing = lambda x: False

    # A destroyed group leaves nothing behind.
    assert mine in calls._groups
    dist.destroy_process_group(mine)
    coccl_dsl.all_reduce(x, op="premul(2)")
    assert mine not in calls._groups
    dist.barrier()
    dist.destroy_process_group()
    raises(BindError, "not initialised", lambda: coccl_dsl.all_reduce(x))


if __name__ == "__main__":
    main()
