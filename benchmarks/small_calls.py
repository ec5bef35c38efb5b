"""Small all-reduces over mapped memory: calls of several kernels against calls of one, launched and in a graph, beside NCCL where there are two GPUs.

    python benchmarks/small_calls.py --json benchmarks/results/small_calls.json      # one or two GPUs, about a minute

Microseconds a call in a run of calls, median of 7 runs. graph: 20 calls in one captured graph. On one GPU the two ranks share it, which wants
NVIDIA's MPS (tests/gpu/all.sh shows how): else they take turns, and times mean nothing. Memory of one GPU is nearer than a peer's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

KIB = (4, 16, 64, 128, 256, 512, 1024)
CASES = (("one_shot", "int8"), ("two_shot", "int8"), ("two_shot", "int4"))
CALLS, TOGETHER, RUNS = 300, 20, 7


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, default=Path("benchmarks/results/small_calls.json"))
    p.add_argument("--part", type=Path, help=argparse.SUPPRESS)
    options = p.parse_args()
    if "RANK" in os.environ:
        return worker(options.part)
    import tempfile

    import torch

    from coccl_dsl.cli.bench import provenance, start_processes

    if not torch.cuda.is_available():
        print("small_calls: needs a GPU", file=sys.stderr)
        return 1
    shared = torch.cuda.device_count() < 2
    os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "rows.json"
        code = start_processes([sys.executable, str(Path(__file__).resolve()), "--part", str(part)], 2)
        if code:
            return code
        rows = json.loads(part.read_text())
    for row in rows:
        times = "   ".join(f"{way} {row[way]['eager']:6.1f} {row[way]['graph']:6.1f}" for way in row["ways"])
        print(f"{row['algorithm']:<9} {row['compressor']:<5} {row['kib']:>5} KiB   us, eager and graph: {times}")
    document = provenance("python benchmarks/small_calls.py " + " ".join(sys.argv[1:]))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps(document | {"ranks_share_a_gpu": shared, "dtype": "bf16", "rows": rows}, indent=1)
    )
    return 0


def worker(part: Path) -> int:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from coccl_dsl import simulate
    from coccl_dsl.pipeline import load

    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    alone = torch.cuda.device_count() > 1
    own = {"device_id": device} if alone else {}
    dist.init_process_group("nccl" if alone else "gloo", timeout=timedelta(seconds=60), **own)
    rows = []
    for name, compressor in CASES:
        c = load(name)
        for kib in KIB:
            xs = [
                torch.randn(kib * 512, device=device, generator=torch.Generator(device).manual_seed(r))
                for r in range(2)
            ]
            xs = [x.bfloat16() for x in xs]
            x, out = xs[rank], torch.empty_like(xs[rank])
            want = simulate(c, xs, q=compressor)[rank]
            row = {"algorithm": name, "compressor": compressor, "kib": kib, "ways": ["several", "one"]}
            for way, one in (("several", False), ("one", True)):
                op = c.bind(like=x, transport="symm", one_launch=one, graphs=False, q=compressor)
                row[way] = times_of(partial(op, x, out=out))
                assert torch.equal(out.view(torch.int16), want.view(torch.int16)), (name, compressor, kib, way)
            if alone:
                row["ways"].append("nccl")
                row["nccl"] = times_of(partial(dist.all_reduce, out))
            rows.append(row)
    every: list[list[dict]] = [[] for _ in range(2)]
    dist.all_gather_object(every, rows)
    if rank == 0:
        for row, other in zip(*every, strict=True):
            for way in row["ways"]:
                row[way] = {k: max(v, other[way][k]) for k, v in row[way].items()}
        part.write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def times_of(call: Callable[[], object]) -> dict[str, float]:
    import torch

    eager = timed(call, CALLS)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(TOGETHER):
            call()
    return {"eager": eager, "graph": timed(graph.replay, CALLS // TOGETHER) / TOGETHER}


def timed(call: Callable[[], object], calls: int) -> float:
    import torch
    import torch.distributed as dist

    for _ in range(10):
        call()
    found = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / calls * 1e6)
    return statistics.median(found)


if __name__ == "__main__":
    raise SystemExit(main())
