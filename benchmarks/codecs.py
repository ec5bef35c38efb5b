"""Throughput of every compressor on one GPU, as a share of its copy rate, each checked bit for bit against the CPU.

    python benchmarks/codecs.py --json benchmarks/results/codecs.json        # one GPU, about a minute and a half

Kernels are compiled first, by several processes at once. Buffers take turns, so that none of them is in a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

MIB = 1 << 20


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, help="write the rows here")
    p.add_argument("--only", nargs="*", default=[], help="these compressors only")
    p.add_argument("--dtypes", nargs="*", default=["bf16", "f32"])
    p.add_argument("--mib", type=float, default=256, help="size of the tensors")
    p.add_argument("--repeats", type=int, default=21)
    p.add_argument("--sets", type=int, default=2, help="buffers that take turns")
    p.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1), help="that compile at once")
    p.add_argument("--device", default="cuda", help="cpu, with TRITON_INTERPRET=1, to try this program")
    p.add_argument("--compile", type=int, default=-1, help=argparse.SUPPRESS)
    o = p.parse_args()

    import torch

    from coccl_dsl.bench import codecs
    from coccl_dsl.codegen.triton_backend import TritonBackend
    from coccl_dsl.diagnostics import CompileError

    device = torch.device(o.device, 0) if o.device == "cuda" else torch.device(o.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("codecs: needs a GPU", file=sys.stderr)
        return 1
    backend = TritonBackend()
    jobs = []
    for dtype in o.dtypes:
        for text in o.only or codecs.TEXTS:
            try:
                codecs.made(text, dtype)
                jobs.append((text, dtype))
            except CompileError as e:
                if "E501" not in e.codes:
                    raise
    if o.compile >= 0:
        codecs.warm(jobs[o.compile :: o.processes], backend, device)
        return 0
    began = time.perf_counter()
    if device.type == "cuda":
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            *sys.argv[1:],
            "--processes",
            str(o.processes),
            "--compile",
        ]
        children = [subprocess.Popen([*command, str(i)]) for i in range(o.processes)]
        if any(child.wait() for child in children):
            print("codecs: a kernel could not be compiled", file=sys.stderr)
            return 1
        print(f"compiled in {time.perf_counter() - began:.0f} s", flush=True)
    size = int(o.mib * MIB)
    rate = codecs.copy_rate(size, o.sets, o.repeats, device)
    print(f"copy of {o.mib:g} MiB: {rate * 1e-3:.0f} GB/s read and written", flush=True)
    print(f"{'compressor':<22} {'dtype':<5} {'form':<15} {'bits':>7} {'us':>9} {'GB/s':>7} {'share':>7}  bar")
    rows, wrong, below = [], 0, 0
    from coccl_dsl.cli.bench import provenance

    head = provenance(f"python benchmarks/codecs.py {' '.join(sys.argv[1:])}")
    head |= {"mib": o.mib, "copy_gb_s": rate * 1e-3}
    for text, dtype in jobs:
        for row in codecs.measure(text, dtype, size, rate, backend, device, sets=o.sets, repeats=o.repeats):
            rows.append(row)
            missed = row.bar is not None and row.share < row.bar
            wrong, below = wrong + (not row.equal), below + missed
            bar = "" if row.bar is None else f"{row.bar:.0%}{' missed' if missed else ''}"
            note = "" if row.equal else "  WRONG BITS"
            rate_of = row.bytes / row.us * 1e-3
            print(
                f"{text:<22} {dtype:<5} {row.form:<15} {row.bits:7.3f} {row.us:9.1f} {rate_of:7.0f} {row.share:7.1%}  {bar}{note}",
                flush=True,
            )
        if o.json:  # what is known so far, should the time run out
            o.json.parent.mkdir(parents=True, exist_ok=True)
            document = head | {"complete": (text, dtype) == jobs[-1], "rows": [r.json() for r in rows]}
            o.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} rows, {wrong} with wrong bits, {below} below their bar; {time.perf_counter() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
