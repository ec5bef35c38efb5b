"""Sliders move, and everything follows."""

from __future__ import annotations

from typing import Any

import ipywidgets
import pytest

import coccl_dsl
from coccl_dsl.diagnostics import CompileError


def widgets(box: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def look(w: Any) -> None:
        for child in getattr(w, "children", ()):
            look(child)
        if getattr(w, "description", ""):
            found[w.description] = w

    look(box)
    return found


def told(box: Any) -> tuple[str, str, str]:
    return tuple(w.value for w in box.children[1:])  # type: ignore[return-value]


def test_ranks_slices_compressor_size_and_link_change_what_is_shown():
    box = coccl_dsl.explore("ring_q4")
    w = widgets(box)
    assert set(w) == {"ranks", "slices in flight", "compressor q", "elements a rank", "link, GB/s"}
    seen = [told(box)]
    for name, value in (("ranks", 5), ("compressor q", "int8"), ("elements a rank", 1 << 24), ("link, GB/s", 10.0)):
        w[name].value = value
        seen.append(told(box))
        assert seen[-1][0] != seen[-2][0], name
    assert seen[1][1].count('class="cc-arrow"') == 40 and seen[0][1].count('class="cc-arrow"') == 24
    w["slices in flight"].value = 4
    assert told(box)[2].count("cc-block") > 3 * seen[-1][2].count("cc-block") and told(box)[1] == seen[-1][1]


def test_a_mesh_has_a_slider_an_axis_and_two_links():
    box = coccl_dsl.explore("three_shot")
    w = widgets(box)
    assert {"node (ranks)", "local (ranks)", "between nodes, GB/s", "compressor a", "compressor b"} <= set(w)
    before = told(box)
    w["between nodes, GB/s"].value = 100.0
    assert told(box)[0] != before[0]
    w["local (ranks)"].value = 3
    assert "6 ranks (node=2, local=3)" in told(box)[1]


def test_what_cannot_be_bound_is_told_under_the_sliders_and_passes():
    box = coccl_dsl.explore("two_shot")
    w = widgets(box)
    good = told(box)
    w["compressor q"].value = "error_feedback"
    assert "error[E" in told(box)[0] and told(box)[1] == ""
    w["compressor q"].value = "as written"
    assert told(box) == good


def test_every_shipped_algorithm_can_be_explored():
    from coccl_dsl.lang.files import library

    for name in library("algorithms"):
        assert "<svg" in told(coccl_dsl.explore(name))[1], name


def test_a_page_without_widgets_gets_the_diagram():
    bundle = coccl_dsl.explore("two_shot")._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle and bundle["image/svg+xml"].startswith("<svg")
    assert "0x" not in bundle["text/plain"]


def test_mistakes_are_named():
    with pytest.raises(CompileError):
        coccl_dsl.explore("no_such_thing")
    with pytest.raises(ValueError, match="f64"):
        coccl_dsl.explore("ring", dtype="f64")
    assert isinstance(coccl_dsl.explore("send_recv"), ipywidgets.VBox)
