"""Charts show the numbers that they are given; each axis has a unit; they are valid and small SVG."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

from coccl_dsl import pictures
from coccl_dsl.bench.plot import panels_of, plot
from coccl_dsl.bench.rows import Row
from coccl_dsl.pictures.charts import pareto
from coccl_dsl.pictures.errors import errors, relative
from coccl_dsl.pictures.picture import Picture
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.simulate import simulate

ROWS = Path(__file__).parents[2] / "benchmarks" / "results" / "nvlink.json"


def data(n: int, count: int = 4096) -> list[torch.Tensor]:
    return [torch.randn(count, generator=torch.Generator().manual_seed(r)) for r in range(n)]


def rows() -> list[Row]:
    return [Row(**r) for r in json.loads(ROWS.read_text())["rows"]]


def valid(p: Picture) -> Picture:
    root = ET.fromstring(p.svg)
    assert root.tag.endswith("svg") and root.get("class") == "cc-chart" and len(p.svg) < 200_000
    assert "prefers-color-scheme" in p.svg and p.text
    return p


def test_the_heat_map_holds_the_bytes_that_the_schedule_sends():
    s = pictures.schedule("three_shot", {"node": 2, "local": 2})
    lines = valid(pictures.link_bytes(s)).text.splitlines()[2:]
    table = [[int(v.replace(",", "")) for v in line.split()[1:]] for line in lines]
    assert [sum(row) for row in table] == s.sent and all(table[i][i] == 0 for i in range(4))


def test_errors_on_the_way_are_those_of_an_independent_sum():
    xs = data(4)
    found = errors(load("ring"), xs, q="int4")
    assert len(found.hops) == 24 and {h.level for h in found.hops} == set(range(6))
    first = [h for h in found.hops if h.level == 0]
    import coccl_dsl

    q = coccl_dsl.codec("int4(group=128)")
    for h in first:
        part = xs[h.source].reshape(4, -1)[h.chunk]
        assert h.lossy == 1 and h.error == pytest.approx(relative(q.roundtrip(part), part), rel=1e-6)
    got = simulate(load("ring"), xs, q="int4")
    assert isinstance(got, list)
    exact = torch.stack(xs).double().sum(0)
    assert found.end == pytest.approx(relative(got[0], exact), rel=1e-9)
    assert float(found.scaled.square().mean().sqrt()) == pytest.approx(found.end, rel=1e-6)


def test_errors_in_a_basis_and_without_compression():
    xs = data(2)
    rotated = errors(load("two_shot"), xs, q="int8_h32")
    assert 0 < max(h.error for h in rotated.hops) < 0.02
    plain = errors(load("two_shot"), xs, q="raw")
    assert plain.end < 1e-7 and all(h.error < 1e-7 for h in plain.hops)


@pytest.mark.parametrize(
    "kind", ["reduce_scatter_ring", "all_gather_ring", "all_to_all_direct", "tree_broadcast", "tree_reduce"]
)
def test_errors_of_every_kind_are_small_with_eight_bits(kind):
    found = errors(load(kind), data(3, 3 * 1024), q="int8")
    assert found.hops and 0 < found.end < 0.02 and all(h.error < 0.02 for h in found.hops)


def test_charts_of_errors_say_what_they_show():
    xs = data(4)
    hops = valid(pictures.error_per_hop(["ring", "two_shot"], xs, q="int4")).text.splitlines()
    assert hops[1].split()[0] == "ring" and len(hops[1].split()) == 8 and len(hops[2].split()) == 4
    assert float(hops[1].split()[-1]) > float(hops[2].split()[-1])
    assert "ring" in valid(pictures.error_histogram("ring", xs, q="int8")).text
    valid(pictures.error_histogram("ring", xs, q="raw"))


def test_the_pareto_front_is_what_nothing_beats():
    points = [(1.0, 5.0), (2.0, 3.0), (2.0, 4.0), (3.0, 3.0), (4.0, 1.0), (2.0, 3.0)]
    assert pareto(points) == {0, 1, 4, 5}
    text = valid(pictures.error_against_bits(data(1)[0], ["int8", "int4", "int4_h32", "fp8_e5m2", "bf16", "fp16"])).text
    marked = {line.split()[1] for line in text.splitlines()[1:] if line.startswith("  *")}
    assert {"int8", "fp16"} <= marked and not marked & {"fp8_e5m2", "bf16"}


def test_a_compressor_that_is_asked_for_and_cannot_be_drawn_is_no_silent_gap():
    with pytest.raises(ValueError, match="keeps state"):
        pictures.error_against_bits(data(1)[0], ["int8", "weight_delta4"])
    assert "weight_delta4" not in pictures.error_against_bits(data(1, 512)[0]).text


def test_costs_against_ranks_are_the_schedules():
    lines = valid(pictures.cost_against_ranks(["ring", "two_shot"], [2, 5], q="int8")).text.splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["2", "2"], ["5", "5"]]
    assert [line.split()[:2] for line in lines[5:7]] == [["2", "2"], ["5", "2"]]


def test_time_against_size_shows_right_rows_only(tmp_path: Path):
    kept = rows()
    assert panels_of(kept)[0] == ("all_reduce", "bf16", "graph")
    wrong = [replace(kept[0], error="ranks differ"), *kept[1:]]
    assert valid(pictures.time_against_size(wrong, mode="graph", collective="all_reduce")).text.count("int8") == 5
    with pytest.raises(ValueError, match="nothing to draw"):
        pictures.time_against_size(kept, collective="broadcast")
    for suffix in (".svg", ".png"):
        plot([r for r in kept if r.mode == "eager"], tmp_path / f"out{suffix}")
        assert (tmp_path / f"out{suffix}").stat().st_size > 1000


def test_every_axis_has_a_label_with_its_unit():
    """The words of axes are drawn as shapes, so they are taken from the figures."""
    from coccl_dsl.pictures import charts, figures

    seen: list[str] = []
    real = figures.picture

    def spy(made, text):
        for axis in made.axes:
            labels = [axis.get_xlabel(), axis.get_ylabel()]
            seen.extend(labels if axis.get_label() != "<colorbar>" else labels[1:])
        return real(made, text)

    charts.picture, kept = spy, charts.picture
    try:
        xs = data(2, 1024)
        pictures.link_bytes(pictures.schedule("ring", 3))
        pictures.error_per_hop("two_shot", xs)
        pictures.error_histogram("two_shot", xs)
        pictures.error_against_bits(xs[0], ["int8", "int4"])
        pictures.cost_against_ranks(["ring"], [2, 3])
        pictures.time_against_size(rows(), mode="graph")
    finally:
        charts.picture = kept
    assert len(seen) == 21 and all(seen), seen
    units = ("rank", "KiB", "MiB", "us", "rms", "bits", "step", "share")
    assert all(any(u in label for u in units) for label in seen), seen


def test_saving(tmp_path: Path):
    p = pictures.link_bytes(pictures.schedule("ring", 3))
    assert ET.parse(p.save(tmp_path / "new" / "a.svg")).getroot().tag.endswith("svg")
    assert p.save(tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        p.save(tmp_path / "a.pdf")


def test_text_is_drawn_in_a_png_even_where_there_are_no_fonts():
    """A picture with words has more dark pixels than one without."""
    import resvg_py

    from coccl_dsl.pictures.picture import _fonts

    svg = pictures.space_time(pictures.schedule("ring", 2)).svg

    def ink(text: str) -> int:
        options = {"skip_system_fonts": True, "font_files": _fonts(), "sans_serif_family": "DejaVu Sans"}
        return len(resvg_py.svg_to_bytes(svg_string=text, dpi=96, **options))

    assert ink(svg) > 1.5 * ink(svg.replace("<text", "<desc").replace("</text", "</desc"))
