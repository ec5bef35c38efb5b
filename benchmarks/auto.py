"""What `algorithm="auto"` costs beside torch's own collective and beside the best way that could have been forced, by size.

    python benchmarks/auto.py --tier socket --json benchmarks/results/auto_socket.json        # one or two GPUs
    python benchmarks/auto.py --tier nvlink                                                   # two GPUs

First calibrates (into a table of this run's own), then times at every power of two, in turns: torch's own, `coccl_dsl.all_reduce(x, compressor,
out=y)`, and the two best ways of the table, forced; eager and from graphs. Bars: auto takes at most max(3 %, 5 us) more than torch's own, and
the geometric mean of its time over that of the best is at most 1.05. On one GPU its two ranks share it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

MORE, MORE_US, MEAN = 1.03, 5.0, 1.05


def main() -> int:
    from coccl_dsl.cli.bench import TIERS, size, start_processes

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tier", choices=list(TIERS), default="socket")
    p.add_argument("-b", "--begin", type=size, default=4096)
    p.add_argument("-e", "--end", type=size, default=1 << 28)
    p.add_argument("--set", dest="compressors", nargs="+", default=["int8", "int4"])
    p.add_argument("--iterations", type=int, default=10)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--json", type=Path, default=None)
    options = p.parse_args()
    options.json = options.json or Path(f"benchmarks/results/auto_{options.tier}.json")
    if "RANK" in os.environ:
        return worker(options)
    import torch

    if not torch.cuda.is_available() or (torch.cuda.device_count() < 2 and options.tier != "socket"):
        print(f"auto: --tier {options.tier} needs more GPUs than there are here", file=sys.stderr)
        return 1
    os.environ.update(TIERS[options.tier])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COCCL_TABLE_OF_RUN"] = str(Path(folder) / "table.json")
        return start_processes(
            [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]], 2, sockets=options.tier == "socket"
        )


def worker(options: argparse.Namespace) -> int:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from coccl_dsl.bench.calibrate import calibrate
    from coccl_dsl.cli.bench import provenance

    device = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=120))
    sizes = []
    at = options.begin
    while at <= options.end:
        sizes.append(at)
        at *= 2
    table = calibrate(device, ["all_reduce"], options.compressors, sizes)
    path = Path(os.environ["COCCL_TABLE_OF_RUN"])
    if dist.get_rank() == 0:
        path.write_text(table.text())
    dist.barrier()
    os.environ["COCCL_TABLE"] = str(path)
    rows: list[dict[str, Any]] = []
    for compressor in options.compressors:
        for size in sizes:
            for row in measured(size, compressor, options, device):
                rows.append(row)
                if dist.get_rank() == 0:
                    print(
                        f"{row['compressor']:<6}{size:>11} {row['mode']:<6} native {row['native_us']:>10.1f}  auto {row['auto_us']:>10.1f}"
                        f"  best {row['best_us']:>10.1f}  {'' if row['met'] else 'SLOWER '}{row['chose']}",
                        flush=True,
                    )
    mean = math.exp(statistics.fmean(math.log(r["auto_us"] / r["best_us"]) for r in rows))
    slower = [r for r in rows if not r["met"]]
    if dist.get_rank() == 0:
        print(
            f"{len(slower)} of {len(rows)} rows slower than torch's own by more than max(3 %, 5 us); geometric mean over the best {mean:.3f}"
        )
        document = provenance("python benchmarks/auto.py " + " ".join(sys.argv[1:]))
        document |= {"tier": options.tier, "ranks_share_a_gpu": torch.cuda.device_count() < 2}
        document |= {"geometric_mean": mean, "slower": len(slower), "rows": rows, "table": json.loads(table.text())}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1))
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(slower) or mean > MEAN)


def measured(size: int, compressor: str, options: argparse.Namespace, device) -> list[dict[str, Any]]:
    """Rows of one size, eager and graph."""
    import torch
    import torch.distributed as dist

    import coccl_dsl
    from coccl_dsl.bench.cases import native
    from coccl_dsl.bench.timing import Timed, buffer_sets, eager, graphed, measure
    from coccl_dsl.pipeline import load
    from coccl_dsl.plan.calibration import NATIVE
    from coccl_dsl.torch.calls import Asked, pick

    sets = buffer_sets(size // 2, size // 2, torch.bfloat16, device)[:4]
    x = sets[0][0]
    group = dist.distributed_c10d._get_default_group()
    choice = pick("all_reduce", x, group, Asked("sum", compressor), native=True)[1]
    assert choice is not None and choice.verdict is not None
    sides: dict[str, Any] = {
        "native": native("all_reduce", group.rank()),
        "auto": lambda x, y: coccl_dsl.all_reduce(x, compressor=compressor, out=y),
    }
    for way in [way for way, _, _ in choice.verdict.ways if way.name != NATIVE][:2]:
        c = load(way.name)
        op = c.bind(like=x, transport=way.transport, depth=way.slices, **dict.fromkeys(c.program().codecs, compressor))
        sides[str(way)] = lambda x, y, op=op: op(x, out=y)
    rows = []
    for mode in ("eager", "graph"):
        timed = [
            Timed(k, graphed(call, sets) if mode == "graph" else eager(call, sets, True), [])
            for k, call in sides.items()
        ]
        measure(timed, options.iterations, options.repeats)
        us = {t.name: statistics.median(t.us) for t in timed}
        best = min(v for k, v in us.items() if k != "auto")
        more = us["auto"] - us["native"]
        rows.append(
            {
                "size": size,
                "compressor": compressor,
                "mode": mode,
                "chose": str(choice.verdict.best),
                "native_us": us["native"],
                "auto_us": us["auto"],
                "best_us": best,
                "all_us": us,
                "met": more <= max((MORE - 1) * us["native"], MORE_US),
            }
        )
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
