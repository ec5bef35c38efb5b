"""The space-time diagram says what the checker proved: as many arrows as sends, as many bytes; and it is one valid, legible document."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from coccl_dsl.lang.files import library
from coccl_dsl.pictures import schedule, space_time
from coccl_dsl.pictures.spacetime import MOST_RANKS, WIDTH, bytes_text, ranges
from coccl_dsl.pictures.svg import BOLD, text_width
from coccl_dsl.pipeline import load
from coccl_dsl.plan.ops import Copy, Launch
from tests.pictures.drawn import SVG, groups, world_for


@pytest.mark.parametrize("name", library("algorithms"))
def test_every_send_is_one_arrow_with_its_bytes_and_every_launch_a_box(name):
    s = schedule(name, world_for(name, 6))
    svg = space_time(s).svg
    arrows = groups(svg, "cc-arrow")
    assert len(arrows) == s.trace.sends == len(s.trace.messages)
    drawn = Counter(
        (int(a.get("data-level", -1)), int(a.get("data-source", -1)), int(a.get("data-target", -1))) for a in arrows
    )
    assert drawn == Counter((m.level, m.source, m.target) for m in s.trace.messages)
    sent = Counter()
    for a in arrows:
        sent[int(a.get("data-source", -1))] += int(a.get("data-bytes", -1))
    assert [sent[r] for r in range(s.world)] == s.sent
    launches = sum(isinstance(step, Launch | Copy) for plan in s.plans for step in plan.steps)
    assert len(groups(svg, "cc-fold")) == launches


def test_bytes_are_those_of_the_plans():
    from coccl_dsl.plan.show import sent_bytes

    for name in ("ring_q4", "three_shot", "reduce_scatter_direct", "all_gather_ring", "all_to_all_direct"):
        s = schedule(name, world_for(name, 4), count=100_003)
        assert s.sent == [sent_bytes(p, s.count)[0] for p in s.plans], name


@pytest.mark.parametrize("name", ["ring", "two_shot", "halving_doubling", "tree"])
@pytest.mark.parametrize("n", [2, 8, 9, 16])
def test_a_picture_keeps_its_width_and_the_size_of_its_text(name, n):
    root = ET.fromstring(space_time(schedule(name, n)).svg)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert width <= WIDTH
    for t in root.iter(f"{SVG}text"):
        size, x, y = float(t.get("font-size", 0)), float(t.get("x", 0)), float(t.get("y", 0))
        assert size >= 10
        long = text_width(t.text or "", size) * (BOLD if t.get("font-weight") else 1)
        left = x - long / 2 if t.get("text-anchor") == "middle" else x
        assert left >= 0 and left + long <= width + 1, t.text
        assert size <= y <= height, t.text


def _boxes(root: ET.Element) -> list[tuple[float, float, float, float, str]]:
    found = []
    for t in root.iter(f"{SVG}text"):
        size, x, y = float(t.get("font-size", 0)), float(t.get("x", 0)), float(t.get("y", 0))
        long = text_width(t.text or "", size)
        left = x - long / 2 if t.get("text-anchor") == "middle" else x
        found.append((left, y - 0.75 * size, left + long, y + 0.2 * size, t.text or ""))
    return found


@pytest.mark.parametrize(
    "name", ["ring_q4", "two_shot", "three_shot", "two_level", "tree", "scatter_reduce", "all_to_all_mesh"]
)
@pytest.mark.parametrize("n", [2, 8, 12, 16, 24])
def test_no_text_lies_on_another(name, n):
    if load(name).axes and n < 4:
        n = 4
    boxes = sorted(_boxes(ET.fromstring(space_time(schedule(name, world_for(name, n))).svg)))
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            if b[0] >= a[2]:
                break
            assert a[3] <= b[1] or b[3] <= a[1], (a, b)


def test_sixteen_ranks_are_drawn_within_two_seconds():
    for name in ("ring_q4", "two_shot"):
        start = time.process_time()
        space_time(schedule(name, 16))
        assert time.process_time() - start < 2


def test_beyond_sixteen_one_rank_stands_for_all_and_its_sends_and_receipts_are_all_there():
    n = MOST_RANKS + 4
    s = schedule("two_shot", n)
    arrows = groups(space_time(s).svg, "cc-arrow")
    assert len(arrows) == 4 * (n - 1)
    assert all("0" in (a.get("data-source"), a.get("data-target")) for a in arrows)


def test_some_ranks_can_be_looked_at_alone():
    s = schedule("ring", 8)
    arrows = groups(space_time(s, ranks=[2, 3]).svg, "cc-arrow")
    assert {(a.get("data-source"), a.get("data-target")) for a in arrows} == {("1", "2"), ("2", "3"), ("3", "4")}
    for wrong in ([8], [-1], []):
        with pytest.raises(ValueError, match="ranks 0 .. 7"):
            space_time(s, ranks=wrong)


def test_two_compressors_differ_in_colour_and_in_dashes():
    svg = space_time(schedule("three_shot", {"node": 2, "local": 2})).svg
    paths = {(p.get("class"), p.get("stroke-dasharray")) for a in groups(svg, "cc-arrow") for p in a.iter(f"{SVG}path")}
    assert len({c for c, _ in paths}) == len({d for _, d in paths}) == 2


def test_the_words_hold_every_send():
    s = schedule("ring_q4", 3)
    text = space_time(s).text
    assert text.isascii() and text.count(" -> ") == s.trace.sends
    assert f"{s.message_size(s.trace.messages[0]):,} bytes" in text


def test_worlds_that_do_not_fit_are_refused():
    for name, ranks, told in (
        ("three_shot", 8, "runs on a mesh"),
        ("ring", {"node": 2, "local": 2}, "a number of ranks"),
        ("three_shot", {"node": 2}, "a mesh of node, local"),
        ("ring", 1, "at least 2 ranks"),
    ):
        with pytest.raises(ValueError, match=told):
            schedule(name, ranks)
    with pytest.raises(ValueError, match="root=4"):
        schedule("tree_broadcast", 4, root=4)


def test_small_texts():
    assert ranges([3, 0, 1, 2, 7]) == "0-3, 7" and ranges([]) == ""
    assert [bytes_text(v) for v in (512, 16896, 2**21)] == ["512 B", "16.5 KiB", "2 MiB"]


def test_estimated_widths_are_not_less_than_those_of_the_widest_font():
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    fonts = [FT2Font(str(Path(get_data_path()) / f"fonts/ttf/DejaVuSans{bold}.ttf")) for bold in ("", "-Bold")]
    texts = {
        t.text or ""
        for name in ("ring_q4", "three_shot", "tree")
        for t in ET.fromstring(picture(name)).iter(f"{SVG}text")
    }
    for font, wider in zip(fonts, (1, BOLD), strict=True):
        font.set_size(100, 72)
        for text in texts:
            font.set_text(text)
            real = font.get_width_height()[0] / 64 / 100
            assert wider * text_width(text, 1.0) >= 0.99 * real, text


def picture(name: str) -> str:
    return space_time(schedule(name, world_for(name, 8))).svg


def test_pictures_are_drawn_without_torch_and_matplotlib():
    code = (
        "import sys; sys.modules.update(torch=None, matplotlib=None)\n"
        "from coccl_dsl.pictures import schedule, space_time, timeline\n"
        "s = schedule('ring_q4', 4); space_time(s); timeline(s)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=60)
