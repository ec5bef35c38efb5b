"""Measure this machine for `auto`: torch's own collectives and the shipped algorithms, over every transport there is, by size.

Each way is timed as it is called in training: many calls one after the other, the device waited for at the end, the slowest rank counting. What
differs by less than that is noise to the table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..pipeline import Collective, World, load
from ..plan.calibration import NATIVE, Curve, Table, Way
from ..plan.schedule import gathered_levels
from ..runtime.errors import BindError
from ..runtime.measured import host_text, place_of
from ..torch.choose import CANDIDATES, MAX_LOSSY, node_runs
from ..torch.native import KINDS
from ..wire.layout import bits_per_value
from .cases import native, shape_of
from .timing import Call, graphed

ITEM = 2
# Seconds for one way at one size, and what a single call may take before larger sizes are left out.
BUDGET, TOO_LONG = 0.15, 1.0


@dataclass(frozen=True)
class Candidate:
    """One way, and how to make its call for tensors of a size."""

    way: Way
    collective: Collective | None
    options: dict[str, Any]


def candidates(
    kind: str, nodes: tuple[int, int], compressors: Sequence[str], transports: Sequence[str]
) -> list[Candidate]:
    """torch's own, and every shipped algorithm of few lossy steps with every compressor over every transport."""
    found = [Candidate(Way(NATIVE), None, {})]
    m, k = nodes
    for c in CANDIDATES[kind]:
        if (c.mesh and (m < 2 or k < 2)) or c.lossy(m, k) > MAX_LOSSY:
            continue
        collective = load(c.name)
        gathers = gathered_levels(collective.trace(World(nodes if collective.axes else (m * k,))))
        for compressor in compressors:
            names = dict.fromkeys(collective.program().codecs, compressor)
            codec = next(iter(collective.program("bf16", names).codecs.values()))
            for transport in (t for t in transports if gathers or not t.endswith("+collectives")):
                for slices in (1, 2) if transport.startswith("nccl") else (1,):
                    options: dict[str, Any] = {"transport": transport, "depth": slices, **names}
                    if collective.axes:
                        options["mesh"] = dict(zip(collective.axes, nodes, strict=True))
                    found.append(Candidate(Way(c.name, transport, slices, bits_per_value(codec)), collective, options))
    return found


def transports_of(device: torch.device) -> list[str]:
    """Transports that can be had here. Collective."""
    if device.type != "cuda":
        return ["torch", "torch+collectives"]
    found = []
    for name in ("symm", "symm+torch", "nccl", "nccl+collectives", "torch", "torch+collectives"):
        if name == "symm+torch" and "symm" in found:  # one host
            continue
        try:
            load("two_shot").bind(like=torch.empty(8, device=device, dtype=torch.bfloat16), transport=name)
            found.append(name)
        except BindError:
            pass
    return found


def calibrate(
    device: torch.device,
    kinds: Sequence[str],
    compressors: Sequence[str],
    sizes: Sequence[int],
    progress: Callable[[str], object] = lambda text: None,
) -> Table:
    """Times of bf16 calls of `sizes` bytes. Collective; the result is rank 0's on all ranks."""
    hosts = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, host_text())
    nodes = node_runs(hosts) or (len(hosts), 1)
    transports = transports_of(device)
    modes = ("eager", "graph") if device.type == "cuda" and "nccl" in dist.get_backend() else ("eager",)
    curves = []
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"{kind} is not one of {', '.join(KINDS)}")
        for candidate in candidates(kind, nodes, compressors, transports):
            found: dict[str, list[tuple[int, float]]] = {mode: [] for mode in modes}
            for size in sizes:
                progress(f"{kind}: {candidate.way}, {size} bytes")
                times = _measure(kind, candidate, size, device, modes)
                for mode, us in times.items():
                    found[mode].append((size if candidate.way.name == NATIVE else size // ITEM, us))
                if max(times.values()) > TOO_LONG * 1e6:
                    break
            curves += [Curve(kind, mode, candidate.way, tuple(points)) for mode, points in found.items() if points]
    return Table({place_of(dist.distributed_c10d._get_default_group(), device, hosts): tuple(curves)})


def _measure(
    kind: str, candidate: Candidate, size: int, device: torch.device, modes: Sequence[str]
) -> dict[str, float]:
    world = dist.get_world_size()
    shape = shape_of(kind, size, ITEM, world)
    x = torch.randn(shape.input, device=device).to(torch.bfloat16) * 1e-3
    y = torch.zeros(shape.output, device=device, dtype=torch.bfloat16)
    call: Call = native(kind, dist.get_rank())
    if candidate.collective is not None:
        op = candidate.collective.bind(like=x, **candidate.options)
        call = lambda x, y: op(x, out=y)  # noqa: E731
    found = {}
    for mode in modes:
        # torch's transport waits on the host for NCCL's works, which a capture does without.
        run = graphed(call, [(x, y)])[0] if mode == "graph" else lambda i: call(x, y)
        found[mode] = _timed(run, device)
    return found


def _timed(run: Callable[[int], object], device: torch.device) -> float:
    """Microseconds a call: the median of three runs of many calls, the slowest rank's."""

    def together(calls: int) -> float:
        _wait(device)
        dist.barrier()
        began = time.perf_counter()
        for i in range(calls):
            run(i)
        _wait(device)
        return _slowest((time.perf_counter() - began) / calls, device)

    for i in range(4):  # the op captures a graph of its own on the third
        run(i)
    one = together(1)
    if one > BUDGET:
        return one * 1e6
    calls = max(1, min(200, int(BUDGET / 3 / max(one, 1e-6))))
    return statistics.median(together(calls) for _ in range(3)) * 1e6


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _slowest(seconds: float, device: torch.device) -> float:
    word = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(word, op=dist.ReduceOp.MAX)
    return float(word.item())
