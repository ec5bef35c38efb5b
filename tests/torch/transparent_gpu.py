"""More cases of transparent_cases.py, of what only a GPU has: streams, captures, batches of NCCL's, transports."""

from __future__ import annotations

import gc
import os
import weakref

import torch
import torch.distributed as dist
from lone import one_host
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transparent_cases import ALL, COUNT, DEVICE, case, close, everyones, mine, native, policy, ran, same, total
from transparent_training import alike, mlp

from coccl_dsl.torch import transparent, works

ONLY_GPU = '[[rule]]\non = "*"\ncompressor = "int8"\nmin_bytes = 0\ntransport = "{transport}"\n'


@case("CUDA-graph capture", devices="cuda")
def captured() -> None:
    for transport in ("torch", "symm"):
        with one_host(), policy(ONLY_GPU.format(transport=transport)):
            capture_and_replay(compressed=transport == "torch")


def capture_and_replay(compressed: bool) -> None:
    """Sync and async calls in one graph, replayed with other contents; what was not called before the capture says so. Over mapped memory, which
    other calls use too, captured calls are native."""
    rank, n = mine()
    xs = everyones(COUNT)
    static, copy = torch.zeros(COUNT), torch.zeros(COUNT)

    def run() -> None:
        copy.copy_(static)
        dist.all_reduce(copy)
        work = dist.all_reduce(copy, dist.ReduceOp.AVG, async_op=True)
        assert work is not None
        work.wait()

    for _ in range(3):
        run()
    dist.barrier()  # NCCL makes its communicator in a first native call
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    for scale in (1.0, 2.0):
        static.copy_(xs[rank] * scale)
        graph.replay()
        if compressed:
            close(copy, total(xs) * scale, f"replay with {scale}", 0.04)
        else:
            assert torch.allclose(copy.double(), total(xs) * scale, atol=1e-4), f"replay with {scale}"
    if not compressed:
        assert native("all_reduce", "CUDA-graph capture") == 2 and ran("all_reduce") == 6
        return
    other = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(other, capture_error_mode="thread_local"):
            dist.all_reduce(torch.zeros(64 * COUNT))
    except RuntimeError as e:
        assert "before the capture" in str(e), e
    else:
        raise AssertionError("a first call under capture was let through")
    torch.cuda.synchronize()


@case("streams and freed tensors", devices="cuda")
def streams() -> None:
    """Async calls whose tensors the caller drops at once, with other work between: nothing reads what was freed."""
    rank, n = mine()
    xs = everyones(1 << 20, dtype=torch.bfloat16)
    right = total(xs)
    side = torch.cuda.Stream()
    for turn in range(50):
        with torch.cuda.stream(side if turn % 2 else torch.cuda.current_stream()):
            outs = []
            for _ in range(4):
                x = xs[rank].clone()
                out = torch.empty(n * x.numel(), dtype=x.dtype)
                outs.append((x, dist.all_reduce(x, async_op=True)))
                gathered = dist.all_gather_into_tensor(out, xs[rank].clone(), async_op=True)
                del out
                torch.full((1 << 20,), float("nan"), dtype=torch.bfloat16)
                assert gathered is not None
                gathered.wait()
            for x, work in outs:
                work.wait()
                close(x, right, f"turn {turn}", 0.03)
    torch.cuda.synchronize()
    dist.all_reduce(xs[rank].clone(), async_op=True).wait()  # pyright: ignore
    assert works.lanes.held() <= 2, "tensors of calls that are over are let go"


@case("batches and single messages in both directions", devices="cuda")
def both_directions() -> None:
    rank, n = mine()
    xs = everyones(1 << 20)
    following, before = (rank + 1) % n, (rank - 1) % n
    got = [torch.empty(1 << 20) for _ in range(3)]
    for _ in range(10):
        ops = []
        for k, out in enumerate(got):
            ops.append(dist.P2POp(dist.isend, xs[rank] * (k + 1), following))
            ops.append(dist.P2POp(dist.irecv, out, before))
        small = torch.full((4,), rank, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
        ops += [dist.P2POp(dist.isend, small[0], following), dist.P2POp(dist.irecv, small[1], before)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        for k, out in enumerate(got):
            close(out, xs[before] * (k + 1), f"message {k} of a batch")
        same(small[1], torch.full((4,), before), "integers of a batch")
    for _ in range(10):
        if rank % 2 == 0:
            works_ = [dist.isend(xs[rank], following), dist.irecv(got[0], before)]
        else:
            works_ = [dist.irecv(got[0], before), dist.isend(xs[rank], following)]
        for work in works_:
            assert work is not None
            work.wait()
        close(got[0], xs[before], "a message on its own")


@case("_coalescing_manager with a device", devices="cuda")
def device_coalescing() -> None:
    rank, _ = mine()
    xs = everyones(COUNT)
    a, b = xs[rank].clone(), xs[rank].clone()
    with dist._coalescing_manager(device=torch.device("cuda", torch.cuda.current_device()), async_ops=True) as manager:
        dist.broadcast(a, 1)
        dist.broadcast(b, 0)
    manager.wait()
    same(a, xs[1], "broadcast")
    same(b, xs[0], "broadcast")
    assert native("broadcast", "coalescing") == 2


@case("each transport, in passes too", devices="cuda")
def transports() -> None:
    rank, n = mine()
    for transport in ("torch", "symm"):
        for arena in (1, 64):  # 8 Mi elements do not fit 1 MiB
            text = f"arena_mib = {arena}\n" + ONLY_GPU.format(transport=transport)
            with one_host(), policy(text):
                xs = everyones(8 << 20, dtype=torch.bfloat16)
                x = xs[rank].clone()
                dist.all_reduce(x)
                close(x, total(xs), f"{transport}, {arena} MiB", 0.03)
                y = torch.empty(x.numel() // n, dtype=x.dtype)
                dist.reduce_scatter_tensor(y, xs[rank])
                close(y, total(xs).chunk(n)[rank], f"{transport}, {arena} MiB", 0.03)
                assert transparent._on is not None
                (state,) = [s for s in transparent._on.groups.states.values() if s.ops]
                assert {s.transport for s in state.sessions.values()} == {transport}
                held = [weakref.ref(s._memory if transport == "symm" else s._local) for s in state.sessions.values()]
                del state
            gc.collect()
            assert not any(h() for h in held), "memory of a policy that is off is held"


@case("replicas after many steps", devices="cuda")
def replicas() -> None:
    """COCCL_TEST_STEPS: how many."""
    from torch.distributed.fsdp import fully_shard

    count = int(os.environ.get("COCCL_TEST_STEPS", "200"))

    def sharded() -> nn.Module:
        model = nn.Sequential(mlp(64), mlp(64), nn.Identity())
        for part in model[:2]:
            fully_shard(part)
        return fully_shard(model)

    def train(model: nn.Module) -> list[torch.Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step in range(count):
            g = torch.Generator().manual_seed(step * 10 + dist.get_rank())
            x = torch.randn(16, 64, generator=g, device="cpu").to(DEVICE)
            (model(x) - x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()]

    for make, op in ((lambda: DistributedDataParallel(mlp(64)), "all_reduce"), (sharded, "reduce_scatter")):
        with policy(ALL):
            got = train(make())
            assert ran(op) >= count
            alike(got, op)
