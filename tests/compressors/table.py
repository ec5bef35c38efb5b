"""Makes the table of docs/compressors.md: `python tests/compressors/table.py` prints it, `--write` puts it into the page.

Bits, claims and errors are computed; throughput is taken from benchmarks/results/codecs.json, where there is one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE, RESULTS = ROOT / "docs" / "compressors.md", ROOT / "benchmarks" / "results" / "codecs.json"
BEGIN, END = "<!-- table: tests/compressors/table.py --write -->", "<!-- end of the table -->"
COUNT = 1 << 18

WHEN = {
    "raw": "no compression; the baseline",
    "bf16": "f32 tensors, at no risk",
    "fp16": "f32 tensors of moderate range, where precision matters",
    "int8": "the first choice for gradients and activations",
    "int4": "gradients; stochastic or error feedback for sums of many",
    "int2": "only with error feedback",
    "uint8": "values not centred on zero",
    "uint4": "activations at about 5 bits",
    "minmax_u8": "data without outliers; no scales to store",
    "signed8": "decoding by half-precision kernels, as QuickReduce",
    "signed6": "the same at 6 bits",
    "signed4": "the same at 4 bits",
    "fp8_e4m3": "magnitudes that differ much within a group",
    "fp8_e5m2": "magnitudes that differ by many powers of two",
    "mxfp8": "OCP's block format, read by hardware",
    "mxfp4": "OCP's block format, read by hardware",
    "nvfp4": "4.5 bits with outliers; NVIDIA's block format",
    "int8_h32": "outliers; sums stay rotated",
    "int4_h32": "outliers in gradients (SDP4Bit)",
    "weight_delta8": "weights that change little from step to step",
    "weight_delta4": "weights that change little from step to step (SDP4Bit)",
    "tah_quant": "activations between pipeline stages",
    "taco_fp8": "activations with outliers",
    "spike4": "exact outliers in activations",
    "spike3": "exact outliers, fewer bits",
    "spike2": "exact outliers, fewest bits",
    "bfp8": "the cheapest scale, exact to multiply",
    "zfp8": "smooth fields, not gradients",
    "topk": "gradients, only with error feedback",
    "sign1": "gradients, only with error feedback",
    "lossless_bf16": "bf16 weights and activations, bit for bit, or flagged",
    "error_feedback": "wraps any other, for gradients over many steps",
}
HEAD = (
    "compressor",
    "bits a value",
    "claim: `abs(x - decompressed) <=`",
    "error, Gaussian",
    "error, outliers",
    "share of copy rate",
    "when",
)


def shares() -> dict[str, str]:
    """compressor -> compress and decompress-add as shares of the copy rate at 256 MiB of bf16."""
    if not RESULTS.is_file():
        return {}
    found: dict[str, dict[str, float]] = {}
    for row in json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]:
        if row["dtype"] == "bf16":
            found.setdefault(row["compressor"].split("(")[0], {})[row["form"]] = row["share"]
    return {k: f"{v['compress']:.0%} / {v['decompress_add']:.0%}" for k, v in found.items() if len(v) > 1}


def errors(text: str) -> tuple[float, float] | None:
    """On the two reference distributions, in float32 but for compressors of bf16 alone; None where it depends on what was sent before."""
    from coccl_dsl.diagnostics import CompileError
    from tests.compressors.data import gaussian, relative_error
    from tests.compressors.test_promises import round_trip
    from tests.lang.compressor_texts import codec

    try:
        c = codec(text, "f32")
    except CompileError:
        c = codec(text, "bf16")
    if c.stateful:
        return None
    found = []
    for outliers in (False, True):
        x = gaussian(COUNT, outliers)
        x = x if c.dtype == "f32" else x.bfloat16().float()
        y = round_trip(c, x)
        # A block that lossless_bf16 flags opens as NaN.
        found.append(relative_error(x[~y.isnan()], y[~y.isnan()]))
    return found[0], found[1]


def rows() -> list[tuple[str, ...]]:
    from coccl_dsl.wire.layout import bits_per_value
    from tests.compressors.library import SHIPPED
    from tests.lang.compressor_texts import codec

    made, fast = [], shares()
    for q in SHIPPED:
        c = codec(q.text, "bf16")
        claim = " and ".join(f"`{k.text.split('<= ', 1)[1]}`" for k in c.claims)
        if q.name == "error_feedback":
            bits, claim = "as the other", "as the other's, of what it is given"
        else:
            bits = f"{bits_per_value(c):.5g}" if q.name != "raw" else "the tensor's"
        both = errors(q.text)
        shown = ("-", "-") if both is None else tuple(f"{e:.3g}" for e in both)
        made.append(
            (
                f"[{q.name}](../compressors/{q.name}.comp)",
                bits,
                claim or "exact",
                *shown,
                fast.get(q.name, ""),
                WHEN[q.name],
            )
        )
    return made


def table() -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows()])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    text = table()
    if "--write" in sys.argv:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    else:
        print(text)
