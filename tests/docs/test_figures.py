"""README's figures come from the results, and from nowhere else."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def benchmark(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # where its dataclasses look for their annotations
    spec.loader.exec_module(made)
    return made


def results(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_performance_tables_are_made_from_the_results():
    made, page = benchmark("stages"), (ROOT / "docs" / "performance.md").read_text()
    assert made.table(results("nvlink"), results("codecs")["copy_gb_s"]) in page
    assert made.kernels_table(results("stages")) in page


def test_stages_of_a_two_shot_move_what_its_text_says():
    compress, middle, decompress = benchmark("stages").stages("two_shot", "int8", "bf16", 1 << 25)
    half, wire = 1 << 24, (1 << 23) * 65 // 64
    assert (compress.memory, compress.link) == (half, wire)
    assert (middle.memory, middle.link) == (2 * half + wire, wire)
    assert (decompress.memory, decompress.link) == (wire + half, 0)


def test_readme_times_of_small_calls_are_the_results():
    row = next(r for r in results("small_calls")["rows"] if r["algorithm"] == "one_shot" and r["kib"] == 64)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"{row['one']['graph']:.1f} us in a graph and {row['one']['eager']:.0f} us launched" in readme
    assert f"five kernels take {row['several']['graph']:.1f} and {row['several']['eager']:.0f} us" in readme


def test_readme_tables_are_made_from_the_results():
    made = benchmark("readme_table")
    for name, table in (("nvlink", made.table), ("codecs", made.codecs_table)):
        document = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        assert table(document) in (ROOT / "README.md").read_text()
        assert all(document[key] for key in ("command", "commit", "machine", "versions"))


def test_readme_times_of_two_hosts_are_the_results():
    document = json.loads((ROOT / "benchmarks" / "results" / "two_hosts.json").read_text())
    assert all(document[key] for key in ("command", "commit", "machine", "versions"))
    rows = document["rows"]
    readme = (ROOT / "README.md").read_text()
    assert len(rows) == 2
    for row in rows:
        assert f"{row['two_level_s']:.2f} s" in readme and f"{row['torch_s']:.2f} s" in readme


def test_training_page_has_the_losses_of_the_results():
    document = json.loads((ROOT / "benchmarks" / "results" / "training_gradients.json").read_text())
    page = (ROOT / "docs" / "training.md").read_text()
    for name, run in document["runs"].items():
        row = next(
            line
            for line in page.splitlines()
            if line.startswith("| uncompressed" if name == "raw" else f"| `{name}` |")
        )
        assert f"{run['sent_share']:.0%}".replace("%", " %") in row and f"{run['validation_loss']:.4f}" in row
        assert name == "raw" or f"{run['of_off']:+.2%}".replace("%", " %") in row


def percent(share: float, form: str = ".0%") -> str:
    return f"{share:{form}}".replace("%", " %")


def test_training_page_has_the_losses_of_the_policies():
    document, page = results("training_accuracy"), (ROOT / "docs" / "training.md").read_text()
    assert {name for name, row in document["compared"].items() if row["met"]} == {"dp", "bad"}
    for name, run in document["runs"].items():
        losses = ", ".join(f"{r['validation_loss']:.4f}" for r in run["repeats"])
        beside = f"{percent(document['compared'][name]['of_off'], '+.2%')} |" if name != "off" else "|"
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {name} |") and losses in line)
        assert row.endswith(f"| {percent(run['sent_share'])} | {losses} | {beside}")


def test_training_page_has_what_the_largest_model_sent():
    *_, end = results("training_qwen")["lines"]
    page = (ROOT / "docs" / "training.md").read_text()
    assert f"validation loss is {end['validation_loss']:.2f}" in page and len(end["bytes"]) == 2
    for row in end["bytes"]:
        raw, sent = row["raw_bytes"] / 1e6, row["sent_bytes"] / 1e6
        (line,) = (text for text in page.splitlines() if f" {row['op']} " in text and f" {raw:,.2f} " in text)
        assert f"{sent:,.2f}" in line and f"{raw / sent:.2f}x" in line and row["compressor"] in line


def test_training_page_has_the_losses_of_the_tiny_model():
    rows = results("training_tiny")["rows"]
    page = (ROOT / "docs" / "training.md").read_text()
    off = {r["seed"]: r["validation_loss"] for r in rows if r["compressor"] == "raw"}
    shown: dict[str, list[str]] = {}
    for r in rows:
        name = f"`{r['compressor']}`" + (f", `after_step = {r['after_step']}`" if r["after_step"] else "")
        shown.setdefault(name, []).append(f"{r['validation_loss'] / off[r['seed']] - 1:+.2%}".replace("%", " %"))
    del shown["`raw`"]
    assert len(shown) == 8 and all(f"| {name} | {', '.join(found)} |" in page for name, found in shown.items())


def test_readme_host_times_are_the_results():
    document = json.loads((ROOT / "benchmarks" / "results" / "host_time.json").read_text())
    us = {r["how"]: r["us"] for r in document["rows"] if r["transport"] == "symm"}
    readme = (ROOT / "README.md").read_text()
    assert f"{us['eager']:.0f} us launched" in readme and f"{us['replayed']:.1f} us replayed" in readme
    assert f"{us['replayed, new pointers']:.0f} us when each call brings new tensors" in readme


def test_readme_times_over_sockets_are_the_results():
    rows = {(r["compressor"], r["mode"]): r for r in results("socket_one_gpu")["rows"] if r["size"] == 64 << 20}
    readme = " ".join((ROOT / "README.md").read_text().split())
    ms = {c: rows[c, "graph"]["us"] / 1e3 for c in ("int8", "int4")}
    assert f"{ms['int8']:.1f} ms with int8 and {ms['int4']:.1f} ms with int4" in readme
    assert f"NCCL takes {rows['int8', 'graph']['nccl_us'] / 1e3:.0f} ms" in readme
