"""Two machines of two processes each, on CPU over gloo: two_level (raw inside, 4 bits between) against torch's all_reduce, 64 MiB of float32.

    python benchmarks/two_hosts.py                         # needs network namespaces (root, iproute2)
    python benchmarks/two_hosts.py --rates 200mbit 1gbit --repeats 5 --out benchmarks/results/two_hosts.json

The machines are network namespaces joined by a veth pair of the given rate. Both sides run in the same processes, call by call in turn; a time is
the slowest rank's, and the row is the median of the repeats. CPU seconds are those of all four processes for one call. No time is given for a
result that is not `simulate`'s, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import coccl_dsl  # noqa: E402
from coccl_dsl.bench.hosts import run_nodes, two_hosts, unavailable  # noqa: E402
from coccl_dsl.pipeline import load  # noqa: E402

COUNT = 1 << 24
BARS = {"200mbit": 3.0, "1gbit": 1.0}


def worker(repeats: int, count: int, compressor: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=240))
    rank, n = dist.get_rank(), dist.get_world_size()
    xs = [torch.randn(count, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    c, mesh = load("two_level"), {"node": 2, "local": n // 2}
    op = c.bind(like=xs[rank], mesh=mesh, a="raw", b=compressor)
    got = op(xs[rank])
    right = True
    if rank == 0:
        right = torch.equal(got, coccl_dsl.simulate(c, xs, mesh=mesh, a="raw", b=compressor)[0])
    exact = torch.stack(xs).double().sum(0)
    error = float((got.double() - exact).norm() / exact.norm())
    x = xs[rank]
    del xs, exact, got
    y = x.clone()
    rows: dict[str, list[list[float]]] = {"two_level": [], "torch": []}

    def measure(name: str, call) -> None:
        dist.barrier()
        start, cpu = time.perf_counter(), time.process_time()
        call()
        mine = torch.tensor([time.perf_counter() - start, time.process_time() - cpu], dtype=torch.float64)
        all_ranks = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(all_ranks, mine)
        rows[name].append([max(float(t[0]) for t in all_ranks), sum(float(t[1]) for t in all_ranks)])

    for _ in range(repeats):
        y.copy_(x)
        measure("torch", lambda: dist.all_reduce(y))
        measure("two_level", lambda: op(x, out=y))
    if rank == 0:
        print(json.dumps({"right": right, "relative_error": error, "rows": rows}))
    dist.barrier()
    dist.destroy_process_group()


def measure_rate(rate: str, args: argparse.Namespace) -> dict[str, object]:
    with two_hosts(rate) as hosts:
        given = (
            "--worker",
            "--repeats",
            str(args.repeats),
            "--count",
            str(args.count),
            "--compressor",
            args.compressor,
        )
        out = run_nodes(hosts, Path(__file__).resolve(), *given, timeout=900)
    found = json.loads(out[0].strip().splitlines()[-1])
    if not found["right"]:
        raise SystemExit(f"{rate}: the result is not simulate's; no time is given")
    ours, torchs = found["rows"]["two_level"], found["rows"]["torch"]
    ratio = statistics.median(t[0] / o[0] for o, t in zip(ours, torchs, strict=True))
    return {
        "rate": rate,
        "two_level_s": round(statistics.median(r[0] for r in ours), 4),
        "torch_s": round(statistics.median(r[0] for r in torchs), 4),
        "times_faster": round(ratio, 3),
        "two_level_cpu_s": round(statistics.median(r[1] for r in ours), 4),
        "torch_cpu_s": round(statistics.median(r[1] for r in torchs), 4),
        "relative_error": found["relative_error"],
        "all": found["rows"],
        "bar": BARS.get(rate),
    }


def git_head() -> str:
    root = Path(__file__).resolve().parent
    return (
        subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True).stdout.strip()
        or "unknown"
    )


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rates", nargs="+", default=["200mbit", "1gbit"])
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--count", type=int, default=COUNT, help="float32 elements")
    p.add_argument("--compressor", default="int4(group=128)")
    p.add_argument("--out", type=Path)
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        worker(args.repeats, args.count, args.compressor)
        return 0
    reason = unavailable()
    if reason:
        print(f"skipped: no network namespaces here: {reason}")
        return 0
    load_before = os.getloadavg()[0]
    rows = [measure_rate(rate, args) for rate in args.rates]
    print(
        f"{'rate':>8} {'two_level s':>12} {'torch s':>9} {'faster':>7} {'bar':>5}   CPU seconds, all ranks: two_level, torch"
    )
    for r in rows:
        print(
            f"{r['rate']:>8} {r['two_level_s']:>12} {r['torch_s']:>9} {r['times_faster']:>6}x {r['bar'] or '-':>5}   {r['two_level_cpu_s']}, {r['torch_cpu_s']}"
        )
    if args.out:
        told = {
            "what": f"all_reduce of {args.count} float32 on 2 nodes x 2 processes, gloo; two_level: raw inside, {args.compressor} between",
            "command": "python benchmarks/two_hosts.py " + " ".join(sys.argv[1:]),
            "commit": os.environ.get("COCCL_COMMIT") or git_head(),
            "machine": f"{cpu_name()}, {os.cpu_count()} cores, Linux {platform.release()}",
            "load_before": load_before,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "coccl_dsl": coccl_dsl.__version__,
            },
            "rows": rows,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(told, indent=1) + "\n")
    missed = [r["rate"] for r in rows if r["bar"] and r["times_faster"] < r["bar"]]
    print(f"below the bar: {', '.join(map(str, missed))}" if missed else "all bars are met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
