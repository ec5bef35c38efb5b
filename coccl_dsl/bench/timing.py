"""Honest timing: both sides warmed, interleaved, out of place on rotating buffers, device events, max over ranks of the median."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

Call = Callable[[torch.Tensor, torch.Tensor], object]
ROTATE_BYTES = 240 << 20
MAX_SETS = 48


@dataclass
class Timed:
    """One side. us[repeat] is the median of its calls on this rank; after `reduce`, the maximum over ranks."""

    name: str
    runs: list[Callable[[int], object]]
    us: list[float]
    spread: float = 0.0


def buffer_sets(
    input: int, output: int, dtype: torch.dtype, device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(x, y) pairs that together exceed the caches: x normal, y poisoned."""
    one = (input + output) * dtype.itemsize
    count = max(1, min(MAX_SETS, -(-ROTATE_BYTES // max(one, 1))))
    sets = []
    for _ in range(count):
        x = (
            torch.randn(input, device=device, dtype=torch.float32).to(dtype)
            if input < 1 << 28
            else torch.randn(input, device=device, dtype=dtype)
        )
        sets.append((x, torch.full((output,), float("nan"), device=device, dtype=dtype)))
    return sets


def graphed(call: Call, sets: list[tuple[torch.Tensor, torch.Tensor]]) -> list[Callable[[int], object]]:
    """One graph a buffer set, one collective a graph."""
    graphs = []
    for x, y in sets:
        call(x, y)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call(x, y)
        graphs.append(graph)
    return [lambda i: graphs[i % len(graphs)].replay()]


def eager(call: Call, sets: list[tuple[torch.Tensor, torch.Tensor]], fresh: bool) -> list[Callable[[int], object]]:
    """Calls with another pointer each time (`fresh`), or with the same one."""
    return [lambda i: call(*sets[i % len(sets) if fresh else 0])]


def measure(sides: list[Timed], iterations: int, repeats: int, warm: int = 3) -> None:
    """Fill in `us` and `spread` of every side: repeats x iterations, the sides in turn at every iteration."""
    for i in range(warm):
        for side in sides:
            side.runs[0](i)
    torch.cuda.synchronize()
    number = 0
    everything: dict[str, list[float]] = {s.name: [] for s in sides}
    for _ in range(repeats):
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {s.name: [] for s in sides}
        dist.barrier()
        torch.cuda.synchronize()
        for _ in range(iterations):
            for side in sides:
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                side.runs[0](number)
                end.record()
                events[side.name].append((start, end))
            number += 1
        torch.cuda.synchronize()
        for side in sides:
            times = [a.elapsed_time(b) * 1e3 for a, b in events[side.name]]
            everything[side.name] += times
            side.us.append(statistics.median(times))
    table = torch.tensor([s.us for s in sides], device="cuda", dtype=torch.float64)
    dist.all_reduce(table, op=dist.ReduceOp.MAX)
    for side, us in zip(sides, table.tolist(), strict=True):
        side.us = us
        times = sorted(everything[side.name])
        side.spread = times[len(times) * 9 // 10] - times[len(times) // 10]


def link_rate(device: torch.device, size: int = 64 << 20) -> float:
    """GB/s each way of a plain store kernel into the peer's mapped memory, both ranks at once; 0 where no memory can be mapped."""
    try:
        import torch.distributed._symmetric_memory as symm

        block = symm.empty(size, dtype=torch.uint8, device=device)
        handle = symm.rendezvous(block, dist.distributed_c10d._get_default_group())
        peer = (dist.get_rank() + 1) % dist.get_world_size()
        there = handle.get_buffer(peer, (size // 4,), torch.int32)
    except RuntimeError:
        return 0.0
    from .kernels import store

    here = torch.ones(size // 4, dtype=torch.int32, device=device)
    times = []
    for i in range(13):
        dist.barrier()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        store[(size // 4 // 4096,)](here, there, BLOCK=4096)  # pyright: ignore[reportArgumentType]
        end.record()
        torch.cuda.synchronize()
        if i > 2:
            times.append(start.elapsed_time(end) * 1e-3)
    rate = torch.tensor([size / statistics.median(times) / 1e9], device=device)
    dist.all_reduce(rate, op=dist.ReduceOp.MIN)
    return float(rate)


def p2p_rate(device: torch.device, size: int = 64 << 20) -> float:
    """GB/s each way of NCCL's p2p exchange of `size` bytes between neighbours."""
    rank, world = dist.get_rank(), dist.get_world_size()
    a, b = torch.ones(size, dtype=torch.uint8, device=device), torch.empty(size, dtype=torch.uint8, device=device)
    times = []
    for i in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        ops = [dist.P2POp(dist.isend, a, (rank + 1) % world), dist.P2POp(dist.irecv, b, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        end.record()
        torch.cuda.synchronize()
        if i > 2:
            times.append(start.elapsed_time(end) * 1e-3)
    rate = torch.tensor([size / statistics.median(times) / 1e9], device=device)
    dist.all_reduce(rate, op=dist.ReduceOp.MIN)
    return float(rate)


def torch_symm_us(device: torch.device, size: int) -> dict[str, float]:
    """Microseconds of torch's own symmetric-memory all-reduces on `size` bytes of bf16, replayed from a graph; empty where torch has none."""
    try:
        import torch.distributed._symmetric_memory as symm

        t = symm.empty(size // 2, dtype=torch.bfloat16, device=device)
        symm.rendezvous(t, dist.distributed_c10d._get_default_group())
    except (ImportError, RuntimeError):
        return {}
    name = dist.distributed_c10d._get_default_group().group_name
    calls = {
        "one_shot": lambda: torch.ops.symm_mem.one_shot_all_reduce(t, "sum", name),
        "two_shot": lambda: torch.ops.symm_mem.two_shot_all_reduce_(t, "sum", name),
    }
    found = {}
    for what, call in calls.items():
        t.normal_(0, 1e-3)
        side = Timed(what, graphed(lambda x, y, call=call: call(), [(t, t)]), [])
        measure([side], 20, 3)
        found[what] = statistics.median(side.us)
    return found
