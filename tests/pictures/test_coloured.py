"""Colour is added to errors and texts; not a character changes."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from coccl_dsl.diagnostics import CompileError
from coccl_dsl.pictures.coloured import ansi, error_pieces, error_text, html, source_pieces
from coccl_dsl.pipeline import compile as compile_collective

# That one is wrong only under op=avg.
FAULTY = sorted(p for p in (Path(__file__).parents[1] / "lang/faulty").glob("*.coll") if p.stem != "average_rounds")


def error_of(path: Path) -> CompileError:
    with pytest.raises(CompileError) as caught:
        compile_collective(path)
    return caught.value


@pytest.mark.parametrize("path", FAULTY[::6], ids=lambda p: p.stem)
def test_an_error_in_colour_is_the_error(path: Path):
    e = error_of(path)
    coloured = ansi(error_pieces(e))
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == str(e)
    assert coloured.count("\x1b[1;31merror[E") == len(e.diagnostics)
    page = html(error_pieces(e))
    assert unescape(re.sub(r"<[^>]*>", "", page)) == str(e)
    assert "".join(e._render_traceback_()) == coloured.replace("\n", "")


def test_carets_are_red_and_sources_are_highlighted():
    e = error_of(next(p for p in FAULTY if p.stem == "missing_contribution"))
    pieces = list(error_pieces(e))
    assert any(role == "caret" and set(text) == {"^"} for text, role in pieces)
    assert any(role == "gutter" and re.fullmatch(r"\s*\d+ \| ", text) for text, role in pieces)
    assert ("send", "keyword") in list(source_pieces("send v to 3 as w"))


def test_a_text_with_markup_stays_text():
    assert html(source_pieces("a <b> & c")).count("<b>") == 0


def test_pipes_and_those_who_want_none_get_no_colour(monkeypatch: pytest.MonkeyPatch):
    e = error_of(FAULTY[0])
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert error_text(e, terminal=False) == str(e)
    assert "\x1b[" in error_text(e, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert error_text(e, terminal=True) == str(e)
