"""What objects look like at the end of a cell, in a terminal and in a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch

import coccl_dsl
from coccl_dsl.cli.show import columns
from coccl_dsl.diagnostics import CompileError
from coccl_dsl.lang.files import library
from coccl_dsl.notebook import compare, results
from coccl_dsl.pipeline import World, load
from coccl_dsl.shown import Explanation

ROOT = Path(__file__).resolve().parents[2]


class Balanced(HTMLParser):
    """Counts open elements; texts and cells as they come."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def shown(thing: Any) -> dict[str, str]:
    return thing._repr_mimebundle_()


@pytest.mark.parametrize("name", library("algorithms"))
def test_a_collective_shows_its_header_buffers_proof_and_costs(name):
    c = load(name)
    page = Balanced(shown(c)["text/html"])
    text = "".join(page.words)
    assert f"{c.name} : {c.kind}" in text and "right for" in text and "every rank and chunk" in text
    for q in c.program().codecs:
        assert f"compressor {q}" in text
    assert not {"script", "style"} & set(page.tags)


def test_a_collective_in_words():
    c = coccl_dsl.compile("three_shot")
    text = str(c)
    assert repr(c) == "Collective(three_shot : all_reduce)" and text == shown(c)["text/plain"] and text.isascii()
    for part in ("inout buf[m, k]", "meshes 2x2, 2x4, 3x2, 4x2", "3 steps, 20 to 88 sends, 3 lossy", "compressor b"):
        assert part in text, text
    assert "requires" in str(coccl_dsl.compile("two_shot"))


def test_a_plan_shows_its_timeline_and_says_its_steps():
    plan = load("ring_q4").plan(World((4,)), 1)
    bundle = shown(plan)
    assert ET.fromstring(bundle["image/svg+xml"]).tag.endswith("svg")
    assert str(plan) == bundle["text/plain"] and "launch input -> q" in str(plan)
    assert repr(plan) == "Plan(ring_q4 : all_reduce, rank 1 of 4, bf16, sum, 11 steps)"


def test_a_compressor_shows_its_wire():
    q = coccl_dsl.codec("int4(group=64)")
    bundle = shown(q)
    assert bundle["image/svg+xml"].count("cc-field") == 4
    assert (
        "4.25 bits a value" in str(q) and "claim abs(x - decompressed)" in str(q) and repr(q).startswith("codec('int4(")
    )


def test_an_error_shows_its_carets():
    with pytest.raises(CompileError) as caught:
        coccl_dsl.compile_text("collective x : all_reduce { ranks r of n }")
    bundle = shown(caught.value)
    assert bundle["text/plain"] == str(caught.value) and "^" in "".join(Balanced(bundle["text/html"]).words)


def test_an_explanation_is_a_string_and_a_table():
    told = Explanation(
        "all_reduce: two_shot, for 1 node of 4 ranks\n  two_shot      12 us expected   taken\nnot bound <yet>"
    )
    assert isinstance(told, str) and shown(told)["text/plain"] == told
    page = Balanced(shown(told)["text/html"])
    assert page.tags.count("tr") == 1 and page.tags.count("td") == 3 and "not bound <yet>" in page.words


def test_a_bound_op_explains_itself_as_a_table():
    x = torch.zeros(4096)
    told = coccl_dsl.compile("two_shot").bind(coccl_dsl.LocalGroup(2), like=x).ops[0].explain()
    assert isinstance(told, Explanation) and "transport: local" in told
    words = "".join(Balanced(shown(told)["text/html"]).words)
    assert "bytes sent" in words and "compressor q" in words


def test_a_comparison_is_what_the_schedules_and_the_sums_say():
    xs = [torch.randn(4096, generator=torch.Generator().manual_seed(r)) for r in range(4)]
    c = compare(["ring", "two_shot"], ["int8", "int4"], data=xs)
    by = {(r.collective, r.compressor): r for r in c.rows}
    assert [by["ring", q].lossy for q in ("int8", "int4")] == [4, 4] and by["two_shot", "int8"].lossy == 2
    assert by["ring", "int4"].error > by["two_shot", "int4"].error > by["two_shot", "int8"].error > 0
    assert by["ring", "int8"].sent == by["two_shot", "int8"].sent
    assert by["two_shot", "int8"].seconds < by["ring", "int8"].seconds
    page = Balanced(shown(c)["text/html"])
    assert page.tags.count("tr") == 5 and "no measurement" in str(c) and repr(c) == str(c)
    with pytest.raises(ValueError, match="4 tensors for 3 ranks"):
        compare(["ring"], ranks=3, data=xs)


def test_on_a_mesh_a_flat_collective_pays_for_crossing_it():
    xs = [torch.randn(1024)] * 4
    here = compare(["two_shot"], data=xs).rows[0]
    (flat, mesh) = compare(["two_shot", "two_level"], data=xs, ranks={"node": 2, "local": 2}).rows
    assert flat.seconds > 2 * here.seconds and flat.sent == here.sent and mesh.ranks == 4


def test_recorded_rows_are_shown_and_a_wrong_one_gets_no_speed(tmp_path: Path):
    file = ROOT / "benchmarks" / "results" / "nvlink.json"
    recorded = results(file)
    kept = recorded.where(collective="all_reduce", mode="graph", dtype="bf16")
    assert len(kept.rows) == 8 and "H200" in str(kept) and "3.50" in str(kept)
    assert Balanced(shown(kept)["text/html"]).tags.count("tr") == 9
    assert kept.chart().svg.startswith("<svg")
    with pytest.raises(ValueError, match="no 'colour'"):
        recorded.where(colour="red")
    document = json.loads(file.read_text())
    document["rows"][0]["error"] = "ranks differ"
    (tmp_path / "w.json").write_text(json.dumps(document))
    line = str(results(tmp_path / "w.json")).splitlines()[1]
    assert "WRONG: ranks differ" in line and "46" not in line.replace("16 MiB", "")
    (tmp_path / "x.json").write_text('{"rows": [{"a": 1}]}')
    with pytest.raises(ValueError, match="no file of coccl-bench"):
        results(tmp_path / "x.json")


def test_plain_tables_line_up():
    assert columns(("x", "n"), [["a", "1"], ["bb", "22"]], (1,)) == "  x    n\n  a    1\n  bb  22"


def test_piped_python_prints_the_same_texts_in_plain_ascii():
    code = (
        "import coccl_dsl\nfrom coccl_dsl import pictures\nfrom coccl_dsl.pipeline import World\n"
        "c = coccl_dsl.compile('two_shot'); s = pictures.schedule(c, 3)\n"
        "print(c, c.plan(World((3,)), 0), pictures.space_time(s), pictures.timeline(s), sep='\\n\\n')\n"
        "import sys; assert not {'torch', 'matplotlib', 'IPython'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.isascii() and "\x1b" not in done.stdout and len(done.stdout.splitlines()) > 40


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, coccl_dsl; heavy = {'torch', 'matplotlib', 'IPython', 'ipywidgets', 'pygments', 'numpy', 'coccl_dsl.notebook'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
