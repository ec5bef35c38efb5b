"""The tables of README's "Measured" section, made from benchmarks/results. `python benchmarks/readme_table.py` prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
COMPRESSORS = (
    "int8",
    "int4",
    "uint8",
    "uint4",
    "fp8_e4m3",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "int4_h32",
    "spike4",
    "tah_quant",
)


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
        # Rank 0, which measured, is the sender.
        error = "" if r["collective"] == "send_recv" else f"{r['relative_error']:.4f}"
        lines.append(
            f"| {r['collective']} {r['dtype']} | {r['size'] >> 20} | {r['compressor']} | {r['us']:.0f} | {r['nccl_us']:.0f} "
            f"| {r['ratio']:.2f} | {f32} | {r['ceiling']:.2f} | {error} |"
        )
    return "\n".join(lines)


def codecs_table(document: dict[str, Any]) -> str:
    """Markdown: kernels of one GPU as shares of its copy rate."""
    shares = {(r["compressor"], r["dtype"], r["form"]): f"{r['share']:.0%}" for r in document["rows"]}
    lines = [
        "| kernel | bf16 compress | bf16 decompress-add | f32 compress | f32 decompress-add |",
        "|---|---|---|---|---|",
    ]
    for c in COMPRESSORS:
        cells = [shares[c, dtype, form] for dtype in ("bf16", "f32") for form in ("compress", "decompress_add")]
        lines.append(f"| {c} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads((RESULTS / "nvlink.json").read_text())))
    print(codecs_table(json.loads((RESULTS / "codecs.json").read_text())))
