"""What the GPU tests run in each process. `python -m workers NAME` is started once a rank by `launch`; a wrong bit is an AssertionError."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import coccl_dsl
from coccl_dsl import simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.simulate import SimState

ALGORITHMS = (
    "ring",
    "two_shot",
    "one_shot",
    "halving_doubling",
    "reduce_scatter_direct",
    "all_gather_direct",
    "all_to_all_direct",
    "tree_broadcast",
    "three_shot",
    "sdp4bit",
    "all_gather_mesh",
)
COMPRESSORS = ("int8", "int4", "raw")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def launch(name: str, world: int, *arguments: str, env: dict[str, str] | None = None, timeout: float = 300) -> str:
    """Run worker `name` on `world` processes; returns rank 0's output. Raises AssertionError with the output of a rank that failed."""
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes = []
    for rank in range(world):
        full = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} | (env or {})
        command = [sys.executable, str(Path(__file__)), name, *arguments]
        processes.append(subprocess.Popen(command, env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    end = time.monotonic() + timeout
    outputs: list[str] = []
    for p in processes:
        try:
            out, _ = p.communicate(timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            for q in processes:
                q.kill()
            out = (p.communicate()[0] or "") + "\nTIMED OUT"
        outputs.append(out)
    bad = [r for r, p in enumerate(processes) if p.returncode]
    assert not bad, f"ranks {bad} failed:\n" + "\n".join(outputs[r][-4000:] for r in bad[:2])
    return outputs[0]


def start(backend: str = "nccl", seconds: float = 120) -> torch.device:
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds), **({"device_id": device} if backend == "nccl" else {}))
    return device


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(-1).view(torch.int32 if t.element_size() == 4 else torch.int16)


def inputs(n: int, count: int, dtype: torch.dtype, seed: int, device: torch.device) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=g).to(dtype).to(device) for _ in range(n)]


def mesh_for(c: coccl_dsl.Collective, n: int) -> dict[str, int] | None:
    if not c.axes:
        return None
    return {c.axes[0]: 2, c.axes[1]: n // 2}


def counts_for(kind: str, n: int, group: int = 128) -> list[int]:
    found = [0, 1, group - 1, group + 1, n - 1, n * group + 1, 100003]
    return [c * n for c in found] if kind in ("reduce_scatter", "all_to_all") else found


def equality(transports: list[str], algorithms: list[str], compressors: list[str], dtypes: list[torch.dtype], depths: list[int]) -> None:
    """Every case over every transport equals simulate, bit for bit, for all counts; in place where torch has it."""
    overlapping = int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count()
    device = start("gloo" if overlapping else "nccl")
    rank, n = dist.get_rank(), dist.get_world_size()
    cases = 0
    began = time.perf_counter()
    for name in algorithms:
        c = load(name)
        mesh = mesh_for(c, n)
        if c.axes and n % 2:
            continue
        counts = counts_for(c.kind, n)
        for compressor in compressors:
            names = dict.fromkeys(c.program().codecs, compressor)
            for dtype in dtypes:
                expected = {}
                for i, count in enumerate(counts):
                    xs = inputs(n, count, dtype, i, device)
                    expected[count] = xs[rank], simulate(c, xs, mesh=mesh, **names)[rank]
                like = torch.empty(max(counts), dtype=dtype, device=device)
                for transport in transports:
                    for depth in depths:
                        op = c.bind(like=like, mesh=mesh, transport=transport, depth=depth, **names)
                        for count, (x, want) in expected.items():
                            got = op(x)
                            assert torch.equal(bits(got), bits(want)), (name, compressor, dtype, transport, depth, count, int((bits(got) != bits(want)).sum()))
                            cases += 1
                            if c.kind in ("all_reduce", "broadcast") and count:
                                y = x.clone()
                                op(y, out=y)
                                assert torch.equal(bits(y), bits(want)), ("in place", name, compressor, dtype, transport, depth, count)
                                cases += 1
    if rank == 0:
        print(f"{cases} cases equal simulate bit for bit, {time.perf_counter() - began:.1f} s, transports {transports}, n = {n}")


def stateful() -> None:
    """Error feedback, weight differences and stochastic rounding over several calls."""
    device = start()
    rank, n = dist.get_rank(), dist.get_world_size()
    cases = 0
    for name in ("two_shot", "all_gather_direct", "reduce_scatter_direct"):
        c = load(name)
        for compressor in ("error_feedback(int4)", "int4(round=stochastic)", "weight_delta4"):
            names = dict.fromkeys(c.program().codecs, compressor)
            count = 70000 * n
            for transport in ("symm", "torch"):
                op = c.bind(like=torch.empty(count, device=device, dtype=torch.bfloat16), transport=transport, **names)
                state = SimState()
                for call in range(4):
                    xs = inputs(n, count, torch.bfloat16, call, device)
                    want = simulate(c, xs, state=state, **names)[rank]
                    got = op(xs[rank])
                    assert torch.equal(bits(got), bits(want)), (name, compressor, transport, call)
                    cases += 1
    if rank == 0:
        print(f"{cases} stateful calls equal simulate")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("name")
    p.add_argument("--transports", nargs="+", default=["symm"])
    p.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    p.add_argument("--compressors", nargs="+", default=list(COMPRESSORS))
    p.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    p.add_argument("--depths", nargs="+", type=int, default=[1])
    a = p.parse_args()
    if a.name == "equality":
        equality(a.transports, a.algorithms, a.compressors, [getattr(torch, d) for d in a.dtypes], a.depths)
    elif a.name == "stateful":
        stateful()
    else:
        raise SystemExit(f"no worker {a.name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
