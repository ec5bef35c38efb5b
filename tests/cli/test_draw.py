"""coccl-compile --draw: pictures as files."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from coccl_dsl.cli.compile import PICTURES, main


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", [None, *PICTURES])
def test_every_picture_is_drawn_as_svg(capsys, kind):
    assert main(["ring_q4", "--draw", "out/ring.svg", *(["--picture", kind] if kind else [])]) == 0
    assert ET.parse("out/ring.svg").getroot().tag.endswith("svg")
    assert capsys.readouterr().out == "wrote out/ring.svg\n"


def test_a_png_is_a_png():
    assert main(["two_shot", "--draw", "two.png", "--ranks", "3"]) == 0
    assert Path("two.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_world_and_what_is_bound_are_those_of_the_command():
    assert main(["three_shot", "--draw", "a.svg", "--mesh", "node=2,local=3", "--set", "a=raw", "--dtype", "f32"]) == 0
    text = Path("a.svg").read_text()
    assert "6 ranks (node=2, local=3), f32" in text and "a = raw(" in text
    assert (
        main(["ring", "--draw", "t.svg", "--picture", "timeline", "--slices", "3", "--rank", "2", "--count", "5000000"])
        == 0
    )
    text = Path("t.svg").read_text()
    assert "rank 2 of 4" in text and "5,000,000 elements" in text and "3 slices" in text


def test_a_compressor_draws_its_wire_and_a_collective_those_of_all_of_its_own(capsys):
    assert main(["int4", "--draw", "w.svg", "--set", "group=32"]) == 0
    assert "int4(group=32" in Path("w.svg").read_text()
    assert main(["three_shot", "--draw", "w.svg", "--picture", "wire"]) == 0
    assert "int8(" in Path("w-a.svg").read_text() and "int4(" in Path("w-b.svg").read_text()


def test_many_ranks_are_drawn_as_one_and_it_says_so(capsys):
    assert main(["ring", "--draw", "a.svg", "--ranks", "20"]) == 0
    assert "one rank stands for all 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["ring", "--draw", "a.pdf"], 1, "written as .svg or .png"),
        (["int4", "--draw", "a.svg", "--picture", "steps"], 1, "is for a collective"),
        (["ring", "--picture", "links"], 2, "--picture belongs to --draw"),
        (["ring", "--draw", "a.svg", "--slices", "2"], 2, "--slices belongs to --picture timeline"),
        (["ring", "--draw", "a.svg", "--picture", "map"], 2, "invalid choice"),
        (["ring", "--draw", "a.svg", "--explain"], 2, "not allowed with"),
        (["ring", "--draw", "a.svg", "--ranks", "1"], 1, "a group of one"),
        (["gone.coll", "--draw", "a.svg"], 1, "E103"),
    ],
)
def test_what_does_not_fit_is_told_and_nothing_is_written(capsys, arguments, code, told):
    assert main(arguments) == code
    assert told in capsys.readouterr().err and not list(Path().iterdir())


def test_without_matplotlib_links_say_what_to_install(capsys, monkeypatch):
    import sys

    for name in [
        n
        for n in sys.modules
        if n.startswith(("matplotlib", "coccl_dsl.pictures.charts", "coccl_dsl.pictures.figures"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["ring", "--draw", "a.svg", "--picture", "links"]) == 1
    assert "pip install 'coccl-dsl[notebook]'" in capsys.readouterr().err


def test_without_resvg_a_png_says_what_to_install(capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert main(["ring", "--draw", "a.png"]) == 1
    assert "save as .svg" in capsys.readouterr().err
