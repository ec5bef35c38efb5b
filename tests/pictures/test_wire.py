"""The picture of a wire is to scale, for every shipped compressor."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from coccl_dsl.lang.files import library
from coccl_dsl.lang.parse import parse_binding
from coccl_dsl.pictures import wire_layout
from coccl_dsl.pictures.svg import text_width
from coccl_dsl.wire.codec import FRAME, Codec
from coccl_dsl.wire.compile import compile_codec
from coccl_dsl.wire.layout import bits_per_value, frame_runs
from coccl_dsl.wire.scope import Scope, bind
from tests.pictures.drawn import SVG, groups


def codec(text: str, dtype: str = "bf16") -> Codec:
    return compile_codec(bind(parse_binding(text), Scope()), dtype)


def named(name: str) -> Codec:
    return codec("error_feedback(int4)" if name == "error_feedback" else name)


@pytest.mark.parametrize("name", library("compressors"))
def test_every_field_is_drawn_as_wide_as_its_bytes_and_everything_fits(name):
    c = named(name)
    picture = wire_layout(c)
    root = ET.fromstring(picture.svg)
    runs, size = frame_runs(c, FRAME)
    widths: dict[str, list[float]] = {}
    for g in groups(picture.svg, "cc-field"):
        widths.setdefault(g.get("data-field") or "", []).append(float(next(g.iter(f"{SVG}rect")).get("width", 0)))
    assert set(widths) == {r.field for r in runs}
    largest = max(runs, key=lambda r: r.bytes)
    for r in runs:
        assert widths[r.field][0] == pytest.approx(max(1, widths[largest.field][0] * r.bytes / largest.bytes), abs=0.2)
    for t in root.iter(f"{SVG}text"):
        font = float(t.get("font-size", 0))
        long = text_width(t.text or "", font) / (2 if t.get("text-anchor") == "middle" else 1)
        assert font >= 10 and float(t.get("x", 0)) + long <= float(root.get("width", 0)), t.text
    assert f"{bits_per_value(c):g} bits a value" in picture.text and f"{size:,}" in picture.text
    for claim in c.claims:
        assert claim.text in picture.text


def test_the_bits_of_a_group_add_up_to_those_of_a_frame():
    from coccl_dsl.pictures.wire import group_bits

    c = codec("int4(group=64)")
    assert group_bits(c) == [("code", 256), ("scale", 16)]
    assert sum(b for _, b in group_bits(c)) / 64 == bits_per_value(c)
