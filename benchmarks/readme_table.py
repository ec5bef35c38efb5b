"""The table of README's "Measured" section, made from benchmarks/results/nvlink.json. `python benchmarks/readme_table.py` prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "nvlink.json"


def table(document: dict[str, Any]) -> str:
    """Markdown: one line a row that was replayed from a graph, ratios to NCCL on the same dtype and on float32."""
    lines = [
        "| collective | MiB | wire | us | NCCL us | ratio | ratio to f32 NCCL | wire's ceiling | relative error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in document["rows"]:
        if r["mode"] != "graph" or r["error"]:
            continue
        f32 = f"{r['ratio_f32']:.2f}" if r["ratio_f32"] else ""
        lines.append(
            f"| {r['collective']} {r['dtype']} | {r['size'] >> 20} | {r['compressor']} | {r['us']:.0f} | {r['nccl_us']:.0f} "
            f"| {r['ratio']:.2f} | {f32} | {r['ceiling']:.2f} | {r['relative_error']:.4f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(RESULTS.read_text())))
