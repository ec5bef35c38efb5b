"""One rank of the tests of torch.distributed's own signatures: bits, places, Works, messages, wrong use."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from functools import partial

import torch
import torch.distributed as dist
from forks import CUDA, fork_world, inputs, start
from worlds import same

import coccl_dsl
import coccl_dsl.torch as coccl
from coccl_dsl import BindError, CollectiveError, simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.dispatch import register
from coccl_dsl.torch import pairs


def raises(kind, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind} with {words!r}")


def want(algorithm: str, xs, compressor: str = "int8", **options) -> list[torch.Tensor]:
    c = load(algorithm)
    return simulate(c, xs, **options, **dict.fromkeys(c.program().codecs, compressor))


def collectives() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([1, 0])  # torch sorts: rank 0 of the group is rank 0
    for dtype in (torch.float32, torch.bfloat16):
        xs = inputs(n, 3000, dtype, 1)
        for async_op in (False, True):
            how = {"async_op": async_op, "group": pair}

            def done(work, async_op=async_op) -> None:
                assert (work is not None) == async_op
                if work is not None:
                    assert work.wait() and work.is_completed() and work.get_future().done()

            for op, text in (
                ("avg", "avg"),
                (dist.ReduceOp.SUM, "sum"),
                (dist.ReduceOp.AVG, "avg"),
                (dist._make_nccl_premul_sum(0.25), "premul(0.25)"),
            ):
                x = xs[rank].clone().reshape(30, 100)
                done(coccl.all_reduce(x, op=op, algorithm="two_shot", compressor="int4", **how))
                assert same(x, want("two_shot", xs, "int4", op=text)[rank])
            shard = torch.empty(1500, dtype=dtype)
            name = "reduce_scatter_direct"
            done(coccl.reduce_scatter_tensor(shard, xs[rank], dist.ReduceOp.AVG, algorithm=name, **how))
            assert same(shard, want(name, xs, op="avg")[rank])
            whole = xs[rank].clone()
            mine = whole[1500 * rank : 1500 * (rank + 1)]
            done(coccl.reduce_scatter_tensor(mine, whole, algorithm=name, **how))
            assert same(mine, want(name, xs)[rank])

            name, gathered = "all_gather_direct", want("all_gather_direct", xs)[rank]
            whole = torch.empty(6000, dtype=dtype)
            done(coccl.all_gather_into_tensor(whole, xs[rank], algorithm=name, **how))
            assert same(whole, gathered)
            whole[3000 * rank : 3000 * (rank + 1)] = xs[rank]
            done(coccl.all_gather_into_tensor(whole, whole[3000 * rank :][:3000], algorithm=name, **how))
            assert same(whole, gathered)

            got = torch.empty(3000, dtype=dtype)
            done(coccl.all_to_all_single(got, xs[rank], **how))
            assert same(got, want("all_to_all_direct", xs)[rank])
            rows = [[1, 4], [0, 2]]  # rank i sends rank j so many rows of 50
            sent = [x[: 50 * sum(r)].reshape(-1, 50) for x, r in zip(xs, rows, strict=True)]
            columns = [r[rank] for r in rows]
            elements = [[50 * c for c in r] for r in rows]
            for options in ({}, {"capacity": 5}, {"capacity": 5, "min_bytes": 300}):
                got = torch.empty(sum(columns), 50, dtype=dtype)
                done(coccl.all_to_all_single(got, sent[rank], columns, rows[rank], **options, **how))
                small = {"min_bytes": options["min_bytes"]} if "min_bytes" in options else {}
                assert same(got, want("all_to_all_direct", sent, splits=elements, **small)[rank])

            x = xs[rank].clone()
            done(coccl.broadcast(x, 1, algorithm="tree_broadcast", **how))
            assert same(x, want("tree_broadcast", xs, root=1)[rank])
            x = xs[rank].clone()
            done(coccl.reduce(x, group_dst=1, algorithm="tree_reduce", **how))
            assert rank == 0 or same(x, want("tree_reduce", xs, root=1)[rank])
    leaf = torch.ones(8, requires_grad=True)
    coccl.all_reduce(leaf)
    assert leaf.requires_grad and leaf.grad_fn is None and abs(leaf[0].item() - 2) < 0.1


def messages() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    other = 1 - rank
    for dtype in (torch.float32, torch.bfloat16):
        xs = inputs(n, 70_001, dtype, 4)
        arrived = [want("send_recv", [xs[r]] * 2, "int4")[1] for r in range(n)]
        # As gloo sends what is large only once it is received, both receive and send at once. NCCL wants a batch for that.
        y = torch.zeros_like(xs[0]).requires_grad_()
        calls = [
            partial(coccl.irecv, y, other, compressor="int4"),
            partial(coccl.isend, xs[rank], other, compressor="int4"),
        ]
        works = [call() for call in (calls[::-1] if CUDA and rank else calls)]
        for work in works:
            assert work.wait()
        assert same(y.detach(), arrived[other])
        if rank == 0:
            coccl.send(xs[0], 1, tag=3, compressor="int4")
            assert coccl.recv(y, 1, compressor="int4") == 1
        else:
            assert coccl.recv(y, group_src=0, tag=3, compressor="int4") == 0
            coccl.send(xs[1], group_dst=0, compressor="int4")
        assert same(y.detach(), arrived[other])
        # Two messages of a kind in flight, numbers that are not compressed, and an empty one, in one batch.
        y, z, k = torch.zeros_like(xs[0]), torch.zeros_like(xs[0]), torch.zeros(3, dtype=torch.int64)
        empty = torch.empty(0, dtype=dtype)
        ops = [
            dist.P2POp(dist.isend, xs[rank], other, tag=1),
            dist.P2POp(dist.irecv, y, other, tag=1),
            dist.P2POp(dist.isend, torch.tensor([7, 8, rank]), other, tag=2),
            dist.P2POp(dist.irecv, k, other, tag=2),
            dist.P2POp(dist.isend, 2 * xs[rank], other, tag=3),
            dist.P2POp(dist.irecv, z, other, tag=3),
        ]
        if not CUDA:
            ops.append(dist.P2POp(dist.isend if rank else dist.irecv, empty, other, tag=4))
        for work in coccl.batch_isend_irecv(ops, compressor="int4"):
            work.wait()
        assert same(y, arrived[other]) and k.tolist() == [7, 8, other]
        assert same(z, want("send_recv", [2 * xs[other]] * 2, "int4")[1])
    from coccl_dsl.runtime.record import _records
    from coccl_dsl.torch.works import alive

    assert len(alive) == 0
    kept = [call for r in _records[dist.distributed_c10d._get_default_group()].values() for call in r.calls]
    assert sum(what.startswith("send_recv") for *_, what in kept) >= 2 * 8, "messages are calls, too"


def wrong_use() -> None:
    rank = dist.get_rank()
    x = torch.ones(8, 8)
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT, dist.ReduceOp.BAND):
        raises(ValueError, "is not available", lambda op=op: coccl.all_reduce(x, op=op))
    raises(ValueError, "ReduceOp.MAX", lambda: coccl.reduce(x, 0, dist.ReduceOp.MAX))
    raises(ValueError, "op='max'", lambda: coccl.all_reduce(x, op="max"))
    raises(ValueError, "tensor is not contiguous", lambda: coccl.all_reduce(x.t()[:4]))
    raises(ValueError, "output is not contiguous", lambda: coccl.reduce_scatter_tensor(x.t()[:4], x))
    raises(ValueError, "a tensor to receive into is not contiguous", lambda: coccl.batch_isend_irecv([dist.P2POp(dist.irecv, x.t()[:4], 1 - rank)]))  # fmt: skip
    raises(TypeError, "float64", lambda: coccl.all_reduce(x.double()))
    raises(TypeError, "int32", lambda: coccl.isend(x.int(), 1 - rank))
    raises(TypeError, "list", lambda: coccl.all_reduce([1.0]))
    raises(TypeError, "the op is bound for", lambda: coccl.reduce_scatter_tensor(torch.empty(4, 8).bfloat16(), x))
    raises(ValueError, "out has 8 elements, the result 32", lambda: coccl.reduce_scatter_tensor(x[0], x))
    made = torch.ones(8, requires_grad=True) * 2
    raises(ValueError, "coccl_dsl.all_reduce gives a new tensor", lambda: coccl.all_reduce(made))
    with torch.no_grad():
        coccl.all_reduce(made)
    raises(ValueError, "one of the two", lambda: coccl.broadcast(x))
    raises(ValueError, "one of the two", lambda: coccl.reduce(x, 0, group_dst=1))
    raises(ValueError, "group_src=5", lambda: coccl.broadcast(x, group_src=5))
    raises(ValueError, "sends to itself", lambda: coccl.isend(x, rank))
    raises(ValueError, "at least one", lambda: coccl.batch_isend_irecv([]))
    raises(ValueError, "dimension 0 of x, 3", lambda: coccl.all_to_all_single(torch.empty(3, 2), torch.empty(3, 2)))
    raises(ValueError, "add up to 7", lambda: coccl.all_to_all_single(x, x, [4, 4], [3, 4]))
    raises(ValueError, "is more than capacity=3", lambda: coccl.all_to_all_single(x, x, [4, 4], [4, 4], capacity=3))
    for call in (
        lambda: coccl.all_reduce(x, compressor="error_feedback(int4)"),
        lambda: coccl.all_gather_into_tensor(torch.empty(16, 8), x, compressor="weight_delta4"),
        lambda: coccl.isend(x, 1 - rank, compressor="error_feedback(int4)"),
    ):
        raises(BindError, "keeps a state", call)
    alone = dist.new_group([0])
    if rank == 1:
        raises(BindError, "not a member", lambda: coccl.all_reduce(x, group=alone))
        raises(BindError, "not a member", lambda: coccl.isend(x, group_dst=0, group=alone))
    else:
        coccl.all_reduce(x, op="avg", group=alone)
        assert torch.equal(x, torch.ones(8, 8))


def first_calls_in_inference_mode() -> None:
    """What is bound there also serves training."""
    for compressor in ("int8(group=64)", "int4(group=64, round=stochastic)"):
        for mode in (torch.inference_mode(), torch.inference_mode(False), torch.inference_mode()):
            with mode:
                coccl.all_reduce(torch.ones(900), compressor=compressor)
                assert coccl_dsl.all_reduce(torch.ones(900), compressor=compressor).numel() == 900
    with torch.inference_mode():
        op = coccl_dsl.compile("two_shot", q="error_feedback(int4)").bind(like=torch.ones(900))
    op(torch.ones(900))


def threads_of_two_groups() -> None:
    """Each rank's first calls are in another order, in threads of their own: neither waits for the other."""
    rank, done = dist.get_rank(), []
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    register(coccl_dsl.compile("one_shot"))

    def work(i: int) -> None:
        x = torch.ones(100 + i)
        for _ in range(20):
            coccl.all_reduce(x, op="avg", group=groups[i])
            torch.ops.coccl.one_shot(x, groups[i].group_name)
        done.append(i)

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in ((0, 1) if rank else (1, 0))]
    for t in threads:
        t.start()
        time.sleep(0.1)
    for t in threads:
        t.join(60)
    assert sorted(done) == [0, 1]


def destroyed_groups() -> None:
    """Whatever ran on a group lets go of it, and messages of many sizes shared few ops."""
    rank, group, x = dist.get_rank(), dist.new_group([0, 1]), torch.ones(900)
    register(coccl_dsl.compile("two_shot"))
    coccl.all_reduce(x, group=group)
    coccl_dsl.all_reduce(x, group=group)
    torch.ops.coccl.two_shot(x, group.group_name)
    for count in range(513, 533):
        move = coccl.send if rank == 0 else coccl.recv
        move(x[:count], 1 - rank, group)
    ops = [op for kept in pairs._idle[group].values() for op in kept]
    assert len(ops) == 1
    held = [weakref.ref(o) for o in (group, *ops)]
    dist.destroy_process_group(group)
    del group, ops
    gc.collect()
    assert not any(r() for r in held)


def debug_mode() -> None:
    rank, x = dist.get_rank(), torch.ones(1000)
    os.environ["COCCL_DEBUG"] = "1"
    coccl.all_reduce(x)
    words = "rank 0: all_reduce (sum, int8, auto, root 0), 1000 elements of float32; rank 1: all_reduce (sum, int8, auto, root 0), 999"
    raises(CollectiveError, words, lambda: coccl.all_reduce(x[: 1000 - rank]))
    raises(CollectiveError, "differs between ranks", lambda: coccl.all_reduce(x, op="avg" if rank else "sum"))
    raises(CollectiveError, "rank 1: broadcast", lambda: coccl.broadcast(x, 0) if rank else coccl.reduce(x, 0))
    rows = [[1, 3], [2, 2]][rank]  # rank 0 sends rank 1 three rows, and rank 1 expects two
    takes = [[1, 2], [2, 2]][rank]
    words = "rank 0 sends rank 1 30 elements, which expects 20 of it"
    raises(CollectiveError, words, lambda: coccl.all_to_all_single(torch.empty(sum(takes), 10), torch.ones(4, 10), takes, rows, capacity=4))  # fmt: skip
    os.environ["COCCL_DEBUG"] = "0"
    coccl.all_reduce(x)


def main() -> None:
    start()
    # On GPUs both threads would share one stream, where two orders do wait for each other.
    threads = [] if CUDA else [threads_of_two_groups]
    for case in (
        collectives,
        messages,
        first_calls_in_inference_mode,
        *threads,
        destroyed_groups,
        debug_mode,
        wrong_use,
    ):
        case()
    dist.barrier()
    dist.destroy_process_group()
    raises(BindError, "not initialised", lambda: coccl.all_reduce(torch.ones(3)))


if __name__ == "__main__":
    fork_world(2, main)
