"""How far the all-reduces and their kin are from what link and memory allow, stage by stage, and what bounds each kernel.

    python benchmarks/stages.py                         # from benchmarks/results/nvlink.json and codecs.json: no GPU
    python benchmarks/stages.py --ncu benchmarks/results/stages.json      # one GPU with Nsight Compute: the kernels' counters, about a minute

A stage is a launch of the plan. It takes at least as long as its bytes of local memory (read and written) do at the rate of a device copy, and
as its bytes for peers do at the rate at which a plain kernel stores over the link, both measured. Of calls in slices, whose stages overlap, the
bound is the busier of memory and link, and the first and the last slice's way through the other stages. Besides these there are the starts
and signals, for which design/runtime.md allows 15 us a call.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

RESULTS = Path(__file__).parent / "results"
METRICS = {
    "us": "gpu__time_duration.sum",
    "memory": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warps": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
}
KERNELS = [
    (q, d, f) for d in ("bf16", "f32") for q in ("int8", "int4") for f in ("compress", "middle", "decompress_add")
]


@dataclass(frozen=True)
class Stage:
    """One launch of a rank's plan. memory: bytes read and written here; link: bytes stored into peers' memory."""

    text: str
    memory: int
    link: int


def stages(algorithm: str, compressor: str, dtype: str, size: int, world: int = 2) -> list[Stage]:
    """Of rank 0, for a call of `size` bytes (as benchmarks count them: of the whole tensor)."""
    from coccl_dsl.pipeline import World, load
    from coccl_dsl.plan.cut import cut
    from coccl_dsl.plan.ops import Launch
    from coccl_dsl.wire.codec import TYPES
    from coccl_dsl.wire.layout import wire_bytes

    c = load(algorithm)
    names = dict.fromkeys(c.program(dtype).codecs, compressor)
    trace = c.trace(World((world,)), dtype=dtype, compressors=names)
    plan = c.mapped_plans(World((world,)), dtype=dtype, compressors=names, trace=trace)[0]
    item = TYPES[dtype][0] // 8
    count = size // item // (world if c.kind == "all_gather" else 1)
    lengths = cut(plan, count).lengths
    found = []
    for step in plan.steps:
        if not isinstance(step, Launch):
            continue
        memory = sum(2 * item * lengths[plan.buffers.inputs[i]] for i, _ in step.copies)
        link = 0
        for f in step.folds:
            n = lengths[f.extent]
            memory += sum(n * (item if d.role != "scratch" else 4) for d in (*f.dense, *(s.place for s in f.sinks)))
            memory += sum(wire_bytes(plan.codecs[plan.wires[o.wire].codec], n) for o in f.opened)
            if f.wire is not None:
                wire = wire_bytes(plan.codecs[plan.wires[f.wire].codec], n)
                memory, link = memory + wire * f.local, link + wire * len(f.remote)
        found.append(Stage(str(step.signature), memory, link))
    return found


def bound(found: list[Stage], slices: int, copy: float, link: float) -> float:
    """Microseconds. copy, link: GB/s."""
    times = [(s.memory / copy / 1e3, s.link / link / 1e3) for s in found]
    if slices == 1:
        return sum(max(t) for t in times)
    busiest = max(sum(t[i] for t in times) for i in (0, 1))
    beside = sum(max(t) for t in times) - max(max(t) for t in times)
    return busiest + beside / slices


def table(document: dict[str, Any], copy: float) -> str:
    """Markdown, of the rows that were replayed from a graph, but for send_recv's, whose stages are on two ranks."""
    lines = [
        "| row | us | bound us | over it | stages: memory / link, us | ",
        "|---|---|---|---|---|",
    ]
    for r in document["rows"]:
        if r["mode"] != "graph" or r["error"] or r["collective"] == "send_recv":
            continue
        made = stages(r["algorithm"], r["compressor"], r["dtype"], r["size"])
        least = bound(made, r["slices"], copy, document["link_gb_s"])
        shown = ", ".join(f"{s.memory / copy / 1e3:.0f} / {s.link / document['link_gb_s'] / 1e3:.0f}" for s in made)
        name = f"{r['collective']} {r['dtype']} {r['size'] >> 20} MiB {r['compressor']}"
        name += f", {r['slices']} slices" if r["slices"] > 1 else ""
        lines.append(
            f"| {name} | {r['us']:.0f} | {least:.0f} | {r['us'] - least:.0f} us, {r['us'] / least - 1:.0%} | {shown} |"
        )
    return "\n".join(lines)


def kernels_table(document: dict[str, Any]) -> str:
    """Markdown, of what Nsight Compute counted."""
    lines = [
        "| kernel | us | memory busy | issue slots busy | warps resident | registers |",
        "|---|---|---|---|---|---|",
    ]
    for r in document["kernels"]:
        lines.append(
            f"| {r['compressor']} {r['dtype']} {r['form']} | {r['us']:.0f} | {r['memory']:.0f} % | {r['issue']:.0f} % | {r['warps']:.0f} % "
            f"| {r['registers']:.0f} |"
        )
    return "\n".join(lines)


def launch_all(mib: int) -> None:
    """What Nsight Compute looks at: each kernel once, between the marks of the profiler."""
    import torch

    from coccl_dsl.bench.codecs import MIDDLE, Launch, made, sent_wire, values
    from coccl_dsl.codegen.triton_backend import TritonBackend

    device, backend = torch.device("cuda", 0), TritonBackend()
    for compressor, dtype, form in KERNELS:
        c = made(compressor, dtype)
        count = (mib << 20) * 8 // {"bf16": 16, "f32": 32}[dtype] // (2 if form == MIDDLE else 1)
        one = Launch(c, form, backend, values(count, dtype, device, 1))
        if form != "compress":
            one.wire.copy_(sent_wire(c, one.x, backend))
        one.run()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        one.run()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def counted(mib: int) -> list[dict[str, Any]]:
    """Raises RuntimeError where there is no ncu, or it fails."""
    tool = shutil.which("ncu") or next(iter(sorted(map(str, Path("/opt/nvidia").glob("nsight-compute/*/ncu")))), None)
    if tool is None:
        raise RuntimeError("ncu, of Nsight Compute, is not on the PATH")
    command = [tool, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--print-units", "base"]
    command += [
        "--metrics",
        ",".join(METRICS.values()),
        sys.executable,
        str(Path(__file__).resolve()),
        "--launch",
        str(mib),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ncu: exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    text = done.stdout[done.stdout.index('"ID"') :]
    by_launch: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        by_launch.setdefault(row["ID"], {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    if len(by_launch) != len(KERNELS):
        raise RuntimeError(f"ncu saw {len(by_launch)} kernels, not {len(KERNELS)}")
    rows = []
    for (compressor, dtype, form), found in zip(KERNELS, by_launch.values(), strict=True):
        own = {k: found[name] for k, name in METRICS.items()}
        own["us"] /= 1e3  # nanoseconds
        rows.append({"compressor": compressor, "dtype": dtype, "form": form, **own})
    return rows


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ncu", type=Path, metavar="FILE", help="count on a GPU, and write the counters here")
    p.add_argument("--mib", type=int, default=256, help="size of the tensors that the kernels work on")
    p.add_argument("--launch", type=int, default=0, help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.launch:
        launch_all(options.launch)
        return 0
    if options.ncu:
        from coccl_dsl.cli.bench import provenance

        try:
            rows = counted(options.mib)
        except RuntimeError as e:
            print(f"stages: {e}", file=sys.stderr)
            return 1
        document = provenance("python benchmarks/stages.py " + " ".join(sys.argv[1:]))
        options.ncu.write_text(json.dumps(document | {"mib": options.mib, "kernels": rows}, indent=1))
        print(kernels_table({"kernels": rows}))
        return 0
    print(
        table(
            json.loads((RESULTS / "nvlink.json").read_text()),
            json.loads((RESULTS / "codecs.json").read_text())["copy_gb_s"],
        )
    )
    if (RESULTS / "stages.json").exists():
        print(kernels_table(json.loads((RESULTS / "stages.json").read_text())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
