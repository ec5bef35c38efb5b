"""What users of torch.distributed call, each with a policy in force: the result is right, and the report says what ran.

CASES: name, as in the table of docs/pytorch.md -> a function that raises where something is not right. Four gloo processes; or two or more GPUs,
where COCCL_TEST_DEVICE is cuda.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from coccl_dsl.policy import read_policy_text
from coccl_dsl.torch import traffic, transparent, works

COUNT = 3000
DEVICE = os.environ.get("COCCL_TEST_DEVICE", "cpu")
ALL = """
arena_mib = 4
[[rule]]
on = ["*", "*.broadcast"]
compressor = "int8"
min_bytes = {least}
"""
CASES: dict[str, Callable[[], None]] = {}


def case(name: str, ranks: int = 2, devices: str = "cpu cuda"):
    """ranks: how many it needs."""

    def add(function):
        if DEVICE in devices.split() and int(os.environ.get("WORLD_SIZE", "4")) >= ranks:
            CASES[name] = function
        return function

    return add


@contextmanager
def policy(text: str = ALL, least: int = 0) -> Iterator[None]:
    traffic.reset()
    assert transparent.enable(read_policy_text(text.replace("{least}", str(least))))
    try:
        yield
    finally:
        transparent.disable()


def close(got: torch.Tensor, right: torch.Tensor, what: str, most: float = 0.02) -> None:
    """Compressed: near the exact result, and not it."""
    error = float((got.detach().double() - right.detach().double()).norm() / right.detach().double().norm())
    assert 0 < error < most, f"{what}: relative error {error}"


def same(got: torch.Tensor, right: torch.Tensor, what: str) -> None:
    assert torch.equal(got, right), f"{what} was to be exact"


def ran(op: str, role: str | None = None) -> int:
    return sum(r.calls for r in traffic.report().compressed if r.op == op and role in (None, r.role))


def native(op: str, reason: str) -> int:
    return sum(r.calls for r in traffic.report().native if r.op == op and reason in r.reason)


def mine() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def everyones(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    made = [torch.randn(*shape, generator=g, device="cpu") for _ in range(dist.get_world_size())]
    return [x.to(dtype).to(DEVICE) for x in made]


def total(xs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([x.double() for x in xs]).sum(0)


# ---------------------------------------------------------------- torch.distributed


@case("all_reduce, sync and async")
def all_reduce() -> None:
    rank, n = mine()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        xs = everyones(COUNT, dtype=dtype)
        x = xs[rank].clone()
        dist.all_reduce(x)
        close(x, total(xs), f"sync {dtype}")
        x = xs[rank].clone()
        work = dist.all_reduce(x, async_op=True)
        assert work is not None and work.is_completed()
        work.wait()
        work.wait()
        close(x, total(xs), f"async {dtype}")
        (from_future,) = work.get_future().wait()
        same(from_future, x, "the future's value")
    xs = everyones(50, 60)
    x = xs[rank].clone().t()
    dist.all_reduce(x)
    close(x, total([t.t() for t in xs]), "not contiguous")
    with torch.inference_mode():
        x = xs[rank].clone()
        dist.all_reduce(x)
    close(x, total(xs), "in inference mode")
    leaf = xs[rank].clone().requires_grad_()
    dist.all_reduce(leaf)
    close(leaf, total(xs), "a leaf that wants gradients")
    for count in (COUNT, COUNT - 1, 7 * COUNT):  # other sizes of one op
        xs = everyones(count)
        x = xs[rank].clone()
        dist.all_reduce(x)
        close(x, total(xs), f"{count} elements")


@case("all_reduce of integers, MAX, MIN, PRODUCT, float64")
def not_compressible() -> None:
    rank, n = mine()
    ints = torch.arange(COUNT) + rank
    dist.all_reduce(ints)
    same(ints, torch.arange(COUNT) * n + sum(range(n)), "integers")
    xs = everyones(COUNT)
    for op, right in (
        (dist.ReduceOp.MAX, torch.stack(xs).amax(0)),
        (dist.ReduceOp.MIN, torch.stack(xs).amin(0)),
    ):
        x = xs[rank].clone()
        dist.all_reduce(x, op)
        same(x, right, str(op))
    x = torch.full((COUNT,), 2.0)
    dist.all_reduce(x, dist.ReduceOp.PRODUCT)
    same(x, torch.full((COUNT,), 2.0**n), "PRODUCT")
    x = xs[rank].double()
    dist.all_reduce(x)
    assert torch.allclose(x, total(xs), rtol=1e-14)
    for reason in ("int64", "ReduceOp MAX", "ReduceOp MIN", "ReduceOp PRODUCT", "float64"):
        assert native("all_reduce", reason) == 1, reason
    assert ran("all_reduce") == 0


@case("what no rule can take")
def untouched() -> None:
    """An op that no group's rule is for has no kernel of ours; what is of no rule's size costs a few calls of Python."""
    rank, n = mine()
    xs = everyones(COUNT)

    def looked_at() -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")

    def summed(group: dist.ProcessGroup | None = None) -> torch.Tensor:
        x = xs[rank].clone()
        dist.all_reduce(x, group=group)
        return x

    right = summed()
    with policy('[[rule]]\non = "cp.all_reduce"\nmin_bytes = 0\ncompressor = "int8"\n'):
        assert not looked_at()
        same(summed(), right, "no group has the rule's role")
        group = dist.new_group(list(range(n)), group_desc="cp")
        assert looked_at()
        close(summed(group), total(xs), "a group with the rule's role")
        same(summed(), right, "another group")
        assert native("all_reduce", "no rule") == 1
        dist.destroy_process_group(group)
    assert not looked_at()
    with policy(least=4 * COUNT + 1):
        same(summed(), right, "a small tensor")
        calls: list[str] = []

        def seen(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(str(Path(transparent.__file__).parent)):
                calls.append(frame.f_code.co_name)

        x = xs[rank].clone()
        sys.setprofile(seen)
        dist.all_reduce(x)
        sys.setprofile(None)
        same(x, right, "a small tensor again")
        assert calls == ["allreduce", "passes", "current"], calls
        assert native("all_reduce", "below min_bytes") == 2


@case("all_gather_into_tensor, reduce_scatter_tensor, in place too")
def tensors() -> None:
    rank, n = mine()
    xs, ys = everyones(COUNT), everyones(n * COUNT, seed=1)
    part = slice(rank * COUNT, (rank + 1) * COUNT)
    out = torch.empty(n * COUNT)
    dist.all_gather_into_tensor(out, xs[rank])
    close(out, torch.cat(xs), "all_gather")
    out.zero_()
    out[part] = xs[rank]
    dist.all_gather_into_tensor(out, out[part])
    close(out, torch.cat(xs), "all_gather in place")
    out = torch.empty(COUNT)
    dist.reduce_scatter_tensor(out, ys[rank])
    close(out, total(ys)[part], "reduce_scatter")
    y = ys[rank].clone()
    dist.reduce_scatter_tensor(y[part], y, dist.ReduceOp.AVG)
    close(y[part], total(ys)[part] / n, "reduce_scatter in place, AVG")
    y = ys[rank].clone()
    work = dist.reduce_scatter_tensor(out, y, async_op=True)
    assert work is not None
    work.wait()
    close(out, total(ys)[part], "async")


@case("list forms")
def lists() -> None:
    rank, n = mine()
    xs, ys = everyones(COUNT), everyones(n * COUNT, seed=1)
    outs = [torch.empty(COUNT) for _ in range(n)]
    dist.all_gather(outs, xs[rank])
    close(torch.cat(outs), torch.cat(xs), "all_gather")
    out = torch.empty(COUNT)
    dist.reduce_scatter(out, list(ys[rank].chunk(n)))
    close(out, total(ys)[rank * COUNT : (rank + 1) * COUNT], "reduce_scatter")


@case("broadcast and reduce")
def roots() -> None:
    rank, _ = mine()
    xs = everyones(COUNT)
    x = xs[rank].clone()
    dist.broadcast(x, 1)
    close(x, xs[1], "broadcast")
    seen = [torch.empty(COUNT, dtype=torch.float64) for _ in xs]
    dist.all_gather(seen, x.double())
    for other in seen:
        same(other, x.double(), "what the ranks hold after broadcast")
    x = xs[rank].clone()
    dist.reduce(x, 0)
    if rank == 0:
        close(x, total(xs), "reduce")


@case("all_to_all_single, even and uneven, and all_to_all")
def all_to_all() -> None:
    rank, n = mine()
    rows = [[(3 * i + 5 * j) % 11 * 40 for j in range(n)] for i in range(n)]
    xs = [everyones(sum(rows[i]), 2, seed=i)[0] for i in range(n)]
    splits, wanted = rows[rank], [row[rank] for row in rows]
    right = torch.cat([x.split(rows[i])[rank] for i, x in enumerate(xs)])
    out = torch.empty_like(right)
    dist.all_to_all_single(out, xs[rank], wanted, splits)
    close(out, right, "uneven")
    ys = everyones(n * COUNT)
    out = torch.empty(n * COUNT)
    dist.all_to_all_single(out, ys[rank])
    close(out, torch.cat([y.chunk(n)[rank] for y in ys]), "even")
    # A rank may say even splits and another nothing: they are the same.
    given = [COUNT] * n if rank % 2 else None
    dist.all_to_all_single(out, ys[rank], given, given)
    close(out, torch.cat([y.chunk(n)[rank] for y in ys]), "even, in two ways")
    assert ran("all_to_all") == 3


@case("all_to_all_single where totals lie on both sides of min_bytes", ranks=4)
def uneven_across_min_bytes() -> None:
    """Rank 0 sends much and the others little; each pair decides for itself."""
    rank, n = mine()
    least = 4 * 1000
    with policy(least=least):
        rows = [[(2000 if i == 0 else 10) * (j + 1) for j in range(n)] for i in range(n)]
        rows[1][2] = 1500
        xs = [everyones(sum(rows[i]), seed=i)[0] for i in range(n)]
        out = torch.empty(sum(row[rank] for row in rows))
        dist.all_to_all_single(out, xs[rank], [row[rank] for row in rows], rows[rank])
        ends = [0, *accumulate(row[rank] for row in rows)]
        for i, row in enumerate(rows):
            got, right = out[ends[i] : ends[i + 1]], xs[i].split(row)[rank]
            if i == rank or row[rank] * 4 < least:
                same(got, right, f"the part from {i}")
            else:
                close(got, right, f"the part from {i}")
    with policy(ALL.replace("arena_mib = 4", "arena_mib = 1")):  # parts above what the arena holds for a pair
        row = [40000, 10, 70000, 0]
        x = torch.cat([everyones(c)[0] for c in row])
        sizes = [row[rank]] * n
        out = torch.empty(sum(sizes))
        dist.all_to_all_single(out, x, sizes, row)
        right = torch.cat([x.split(row)[rank]] * n)
        if rank in (0, 2):
            same(out, right, "parts that are too large")
        elif rank == 1:
            close(out, right, "parts beside them")


@case("_coalescing_manager")
def coalesced() -> None:
    rank, n = mine()
    xs, ys = everyones(COUNT), everyones(n * COUNT, seed=1)
    with policy(least=400), dist._coalescing_manager(async_ops=True) as manager:
        a, small, ints = xs[rank].clone(), xs[rank][:50].clone(), xs[rank][:50].clone()
        for t in (a, small, ints):
            dist.all_reduce(t)
    manager.wait()
    close(a, total(xs), "a large one")
    assert torch.allclose(small.double(), total(xs)[:50], atol=1e-5), "a small one beside it"
    with policy():
        outs = [torch.empty(n * COUNT), torch.empty(n * 10)]
        with dist._coalescing_manager():
            dist.all_gather_into_tensor(outs[0], xs[rank])
            dist.all_gather_into_tensor(outs[1], xs[rank][:10])
        close(outs[0], torch.cat(xs), "all_gather")
        out = torch.empty(COUNT)
        with dist._coalescing_manager():
            dist.reduce_scatter_tensor(out, ys[rank])
        close(out, total(ys)[rank * COUNT : (rank + 1) * COUNT], "reduce_scatter")


@case("functional collectives")
def functional() -> None:
    import torch.distributed._functional_collectives as fc

    rank, n = mine()
    xs, ys = everyones(COUNT), everyones(n * COUNT, seed=1)
    part = slice(rank * COUNT, (rank + 1) * COUNT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer names of two of them
        close(fc.all_reduce(xs[rank], "sum", dist.group.WORLD) + 0, total(xs), "all_reduce")
        close(fc.all_gather_tensor(xs[rank], 0, dist.group.WORLD) + 0, torch.cat(xs), "all_gather")
        close(fc.reduce_scatter_tensor(ys[rank], "avg", 0, dist.group.WORLD) + 0, total(ys)[part] / n, "reduce_scatter")
    out = fc.all_to_all_single(ys[rank], [COUNT] * n, [COUNT] * n, dist.group.WORLD)
    close(out + 0, torch.cat([y.chunk(n)[rank] for y in ys]), "all_to_all")
    a, b = fc.all_reduce_coalesced([xs[rank], xs[rank] * 2], "sum", dist.group.WORLD)
    close(a + 0, total(xs), "coalesced")
    close(b + 0, 2 * total(xs), "coalesced")


@case("send, recv, isend, irecv, batch_isend_irecv")
def messages() -> None:
    rank, n = mine()
    xs = everyones(COUNT)
    following, before = (rank + 1) % n, (rank - 1) % n
    got = torch.empty(COUNT)
    ops = [dist.P2POp(dist.isend, xs[rank], following), dist.P2POp(dist.irecv, got, before)]
    numbers = torch.zeros(4, dtype=torch.int64)
    ops += [
        dist.P2POp(dist.isend, torch.full((4,), rank), following),
        dist.P2POp(dist.irecv, numbers, before),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    close(got, xs[before], "batch")
    same(numbers, torch.full((4,), before), "integers in the batch")
    # Several of one kind in flight, received into leaves that want gradients, by plain recv. On NCCL two ranks must not both send first.
    first = DEVICE == "cpu" or rank % 2 == 0
    sent = [dist.isend(xs[rank] * k, following) for k in (1, 2, 3)] if first else []
    for k in (1, 2, 3):
        leaf = torch.empty(COUNT, requires_grad=True)
        dist.recv(leaf, before)
        close(leaf, xs[before] * k, f"message {k}")
    sent += [] if first else [dist.isend(xs[rank] * k, following) for k in (1, 2, 3)]
    for work in sent:
        assert work is not None
        work.wait()
    late, turned = torch.empty(COUNT // 10, 10).t(), xs[rank].reshape(COUNT // 10, 10).t()
    if DEVICE == "cuda" and first:
        dist.send(turned, following)
    work = dist.irecv(late, before)
    assert work is not None
    if DEVICE == "cpu" or not first:
        dist.isend(turned, following)  # nobody waits for it
    work.wait()
    work.wait()
    close(late, xs[before].reshape(COUNT // 10, 10).t(), "not contiguous")
    assert ran("send") == 5 and ran("recv") == 5
    if DEVICE == "cpu":
        assert len(works.alive) == 1
        work = dist.irecv(got, before)
        dist.send(xs[rank], following)
        work.wait()
        assert len(works.alive) == 0, "a send finishes those before it"
        # A message of the user's that is under way, beside collectives of ours on the same group.
        for tag in range(3):
            work = dist.irecv(numbers, before, tag=tag)
            assert work is not None
            x = xs[rank].clone()
            dist.all_reduce(x)
            close(x, total(xs), "a collective beside a message")
            dist.send(torch.full((4,), rank + tag), following, tag=tag)
            work.wait()
            same(numbers, torch.full((4,), before + tag), "a message beside collectives")


@case("recv without a source", devices="cpu")
def any_source() -> None:
    rank, _ = mine()
    if rank == 0:
        try:
            dist.recv(torch.empty(COUNT))
        except RuntimeError as e:
            assert "without a source" in str(e)
        else:
            raise AssertionError("it was let through")
    numbers = torch.zeros(3, dtype=torch.int64)
    if rank == 1:
        dist.send(torch.arange(3), 0)
    elif rank == 0:
        dist.recv(numbers)
        same(numbers, torch.arange(3), "integers")


@case("object collectives, gather, scatter, barrier")
def objects() -> None:
    rank, n = mine()
    told: list[object] = [None] * n
    dist.all_gather_object(told, {"rank": rank})
    assert told == [{"rank": r} for r in range(n)]
    held = [list(range(3000))] if rank == 0 else [None]
    dist.broadcast_object_list(held, 0)
    assert held == [list(range(3000))]
    xs = everyones(COUNT)
    outs = [torch.empty(COUNT) for _ in range(n)] if rank == 0 else None
    dist.gather(xs[rank], outs, 0)
    for out, x in zip(outs or (), xs, strict=False):
        same(out, x, "gather")
    out = torch.empty(COUNT)
    dist.scatter(out, xs if rank == 0 else None, 0)
    same(out, xs[rank], "scatter")
    dist.barrier()
    assert not traffic.report().compressed
    assert native("all_gather", "uint8") and native("broadcast", "uint8")


@case("new_group, new_subgroups, destroy_process_group of a group", ranks=4)
def groups() -> None:
    rank, n = mine()
    xs = everyones(COUNT)
    pair = dist.new_group([0, 2], group_desc="tp")
    if rank in (0, 2):
        x = xs[rank].clone()
        dist.all_reduce(x, group=pair)
        close(x, total([xs[0], xs[2]]), "new_group")
        assert ran("all_reduce", "tp") == 1
    own, _ = dist.new_subgroups(2)
    x = xs[rank].clone()
    dist.all_reduce(x, group=own)
    base = rank // 2 * 2
    close(x, total(xs[base : base + 2]), "new_subgroups")
    alone = [dist.new_group([r]) for r in range(n)][rank]
    x = xs[rank].clone()
    dist.all_reduce(x, group=alone)
    same(x, xs[rank], "a group of one")
    assert native("all_reduce", "group of one") == 1
    if rank in (0, 2):
        dist.destroy_process_group(pair)
    dist.destroy_process_group(own)


@case("DTensor")
def dtensor() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    rank, n = mine()
    mesh = init_device_mesh(DEVICE, (n,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    a, b = torch.randn(32, 64), torch.randn(64, 32)
    left = distribute_tensor(a, mesh, [Shard(1)])
    right = distribute_tensor(b, mesh, [Shard(0)])
    product = left @ right
    assert product.placements == (Partial(),)
    close(product.redistribute(placements=[Replicate()]).to_local(), a @ b, "partial to replicate")
    close(product.redistribute(placements=[Shard(0)]).to_local(), (a @ b).chunk(n)[rank], "partial to shard")
    close(left.redistribute(placements=[Replicate()]).to_local(), a, "shard to replicate")
    same(left.full_tensor(), a, "full_tensor")
    assert native("all_gather", "full_tensor") == 1
    assert ran("all_reduce", "tp") and ran("reduce_scatter", "tp") and ran("all_gather", "tp")


@case("steps before after_step, and their number saved")
def warm_up() -> None:
    rank, _ = mine()
    text = ALL + "after_step = 2\n"
    xs = everyones(COUNT)

    def call() -> bool:
        x = xs[rank].clone()
        dist.all_reduce(x)
        return not torch.allclose(x.double(), total(xs), atol=1e-5)

    with policy(text):
        assert [call() for _ in range(4)] == [False, False, True, True]
        assert native("all_reduce", "before after_step") == 2
    import torch.distributed.checkpoint as dcp

    paths: list[object] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(paths, 0)
    with policy(text):
        assert not call()
        dcp.save({"coccl_dsl": transparent.TransparentState()}, checkpoint_id=str(paths[0]))
    with policy(text):
        dcp.load({"coccl_dsl": transparent.TransparentState()}, checkpoint_id=str(paths[0]))
        assert [call() for _ in range(2)] == [False, True]
    with policy(text.replace("arena_mib", 'steps = "step()"\narena_mib')):
        found = []
        for _ in range(4):
            found += [call(), call()]
            transparent.step()
        assert found == [False] * 4 + [True] * 4


@case("stochastic rounding continues where it was saved")
def saved_numbers() -> None:
    rank, _ = mine()
    text = ALL.replace('"int8"', '"int4(round=stochastic)"')
    xs = everyones(COUNT)

    def call() -> torch.Tensor:
        x = xs[rank].clone()
        dist.all_reduce(x)
        return x

    with policy(text):
        call()
        saved = transparent.TransparentState().state_dict()
        second = call()
    with policy(text):
        assert not torch.equal(call(), second)
    with policy(text):
        transparent.TransparentState().load_state_dict(saved)
        same(call(), second, "the second call")
    with policy(text):
        start = transparent.TransparentState().state_dict()
        first = call()
        transparent.TransparentState().load_state_dict(start)
        same(call(), first, "the first call, of an op that was not bound yet where the state was saved")


@case("debug: errors of every n-th call, calls that differ")
def debugging() -> None:
    rank, n = mine()
    xs = everyones(COUNT)
    with policy(ALL.replace("arena_mib", "debug_every = 2\narena_mib")):
        for _ in range(4):
            dist.all_reduce(xs[rank].clone())
        out = torch.empty(n * COUNT)
        for _ in range(2):
            dist.all_gather_into_tensor(out, xs[rank])
        errors = {r.op: r.error for r in traffic.report().compressed}
        assert all(e is not None and 0 < e < 0.02 for e in errors.values()), errors
    with policy(ALL.replace("arena_mib", "debug = true\narena_mib")):
        dist.all_reduce(xs[rank].clone())
        try:
            dist.all_reduce(xs[rank][: COUNT - (rank == 1)].clone())
        except RuntimeError as e:
            assert "rank 1: all_reduce, ReduceOp SUM, 2999 elements" in str(e), e
        else:
            raise AssertionError("different counts were not found")
        sends = [100] * n
        try:
            out = torch.empty(100 * n + (rank == 1))
            dist.all_to_all_single(out, xs[rank][: 100 * n], [100 + (rank == 1), *sends[1:]], sends)
        except RuntimeError as e:
            assert "rank 0 sends rank 1 100 elements, which expects 101" in str(e), e
        else:
            raise AssertionError("different parts were not found")


@case("a log of the run, for coccl-policy explain")
def logged() -> None:
    from coccl_dsl.cli.policy import read_log

    rank, n = mine()
    paths: list[object] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(paths, 0)
    with policy(f'log = "{paths[0]}/{{rank}}.jsonl"'):
        for _ in range(3):
            dist.all_reduce(torch.zeros(COUNT))
        dist.all_reduce(torch.zeros(5, dtype=torch.int64))
        assert not traffic.report().compressed
    calls = {c.dtype: (c, times, ranks, odd) for c, times, ranks, odd in read_log(Path(f"{paths[0]}/{rank}.jsonl"))}
    (call, times, ranks, odd) = calls["f32"]
    assert (call.op, call.bytes, times, ranks, odd) == ("all_reduce", 4 * COUNT, 3, n, "")
    assert calls["int64"][3] == "int64"


@case("profiles name role and plan")
def profiles() -> None:
    x = everyones(COUNT)[0]
    with torch.profiler.profile() as profile:
        dist.all_reduce(x)
    assert any(e.key.startswith("coccl ") and ".all_reduce one_shot int8" in e.key for e in profile.key_averages())


@case("policies that differ, or that one rank cannot read")
def disagreement() -> None:
    from coccl_dsl.runtime.errors import BindError

    rank, _ = mine()
    text = ALL.replace("{least}", "0")
    last = dist.get_world_size() - 1
    other = text.replace("int8", "int4") if rank == last else text
    paths: list[object] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(paths, 0)
    broken = f"{paths[0]}/{rank}.toml"
    with open(broken, "w") as f:
        f.write(text + ("compresor = 1" if rank == 1 else ""))
    for run, names in (
        (lambda: transparent.enable(read_policy_text(other)), ("policy: rule 1 compressor", f"ranks [{last}]", "int4")),
        (lambda: transparent.enable_from_environment(broken), ("policy: file", "ranks [1]", "compresor")),
    ):
        try:
            run()
        except BindError as e:
            assert all(n in str(e) for n in names), e
        else:
            raise AssertionError("the ranks agreed")
        x = torch.ones(COUNT)
        dist.all_reduce(x)
        same(x, torch.full((COUNT,), float(dist.get_world_size())), "native afterwards")
