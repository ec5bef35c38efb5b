"""Host time of a call, from Python to return: launched kernel by kernel, replayed from the op's own graph, and through torch.ops.coccl.

    python benchmarks/host_time.py --json benchmarks/results/host_time.json       # one or two GPUs, about a minute

Median of 10,000 calls of an int8 all_reduce of 1 MiB of bf16. The device is waited for after every 16 calls, outside of what is timed, so that
no call waits for room in a queue. On one GPU the two ranks share it (symm over a gloo group, then nccl over sockets): the host does the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

BARS = {"eager": 60.0, "replayed": 15.0}
TOGETHER = 16


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, default=Path("benchmarks/results/host_time.json"))
    p.add_argument("--calls", type=int, default=10_000)
    p.add_argument("--bytes", type=int, default=1 << 20)
    p.add_argument("--transport", choices=("symm", "nccl"), help=argparse.SUPPRESS)
    p.add_argument("--part", type=Path, help=argparse.SUPPRESS)
    options = p.parse_args()
    if "RANK" in os.environ:
        return worker(options)
    import tempfile

    import torch

    from coccl_dsl.cli.bench import provenance, start_processes

    if not torch.cuda.is_available():
        print("host_time: needs a GPU", file=sys.stderr)
        return 1
    shared = torch.cuda.device_count() < 2
    os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for transport in ("symm", "nccl"):
            part = Path(folder) / f"{transport}.json"
            command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
            code = start_processes(
                [*command, "--transport", transport, "--part", str(part)], 2, sockets=shared and transport == "nccl"
            )
            if code:
                return code
            rows += json.loads(part.read_text())
    for row in rows:
        print(f"{row['transport']:<6}{row['how']:<24}{row['us']:>8.1f} us   bar {row['bar'] or '-'}")
    document = provenance("python benchmarks/host_time.py " + " ".join(sys.argv[1:]))
    document |= {"bytes": options.bytes, "calls": options.calls, "ranks_share_a_gpu": shared, "rows": rows}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1))
    return int(any(row["bar"] and row["us"] > row["bar"] for row in rows))  # pyright: ignore[reportOperatorIssue]


def worker(options: argparse.Namespace) -> int:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from coccl_dsl.pipeline import load
    from coccl_dsl.runtime.dispatch import register

    device = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    alone = torch.cuda.device_count() > 1 or options.transport == "nccl"
    dist.init_process_group(
        "nccl" if alone else "gloo", timeout=timedelta(seconds=60), **({"device_id": device} if alone else {})
    )
    count = options.bytes // 2
    xs = [torch.randn(count, device=device).bfloat16() for _ in range(8)]
    ys = [torch.empty_like(x) for x in xs]
    c = load("two_shot")
    eager = c.bind(like=xs[0], transport=options.transport, graphs=False)
    own = c.bind(like=xs[0], transport=options.transport)

    def same(op) -> Callable[[int], object]:
        return lambda i: op(xs[0], out=ys[0])

    def other(op) -> Callable[[int], object]:
        return lambda i: op(xs[i & 7], out=ys[i & 7])

    sides = {
        "eager": other(eager),
        "replayed": same(own),
        "replayed, new pointers": other(own),
    }
    if options.transport == "symm" or torch.cuda.device_count() > 1:
        handle, name = register(c), dist.group.WORLD.group_name
        sides["torch.ops.coccl"] = lambda i: handle(xs[i & 7], name)
    if alone:
        sides["torch.distributed"] = lambda i: dist.all_reduce(ys[i & 7])
    rows = []
    for how, call in sides.items():
        for i in range(40):
            call(i)
        torch.cuda.synchronize()
        dist.barrier()
        rows.append({"transport": options.transport, "how": how, "us": timed(call, options.calls)})
        rows[-1]["bar"] = BARS.get(how.split(",")[0])
    assert own.graphs.replays > options.calls and eager.graphs.replays == 0
    every: list[list[dict]] = [[] for _ in range(2)]
    dist.all_gather_object(every, rows)
    if dist.get_rank() == 0:
        worst = [max(pair, key=lambda r: r["us"]) for pair in zip(*every, strict=True)]
        options.part.write_text(json.dumps(worst))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def timed(call: Callable[[int], object], calls: int) -> float:
    """Median microseconds of the host in a call."""
    import torch

    found = []
    for i in range(calls):
        began = time.perf_counter_ns()
        call(i)
        found.append(time.perf_counter_ns() - began)
        if i % TOGETHER == TOGETHER - 1:
            torch.cuda.synchronize()
    return statistics.median(found) / 1e3


if __name__ == "__main__":
    raise SystemExit(main())
