"""Help for words and signs of other languages: at the right place, and of the language that the file is in."""

from __future__ import annotations

import pytest

from coccl_dsl.diagnostics import CompileError, Source
from coccl_dsl.lang.parse import parse_comp
from coccl_dsl.pipeline import compile_text


def said(text: str, name: str) -> str:
    with pytest.raises(CompileError) as e:
        parse_comp(Source(name, text)) if name.endswith(".comp") else compile_text(text, name)
    return str(e.value)


@pytest.mark.parametrize(
    ("text", "where", "help"),
    [
        ('use "int8.comp"\ncolective t : all_reduce {\n}\n', "a.coll:2:1", "did you mean `collective`?"),
        ('// words\nuse "int8.comp"\n', "a.coll:1:1", "comments start with `#`"),
        ('use "int8.comp\ncollective t : all_reduce {}\n', "a.coll:1:5", "the closing quote is missing"),
        (
            'collective t : all_reduce {\n  ranks r of n\n  compressor q = int8(group="128")\n}\n',
            "a.coll:3:29",
            "without quotes",
        ),
        (
            "collective t : all_reduce {\n  ranks r of n\n  inout buf\n  return buf\n}\n",
            "a.coll:4:3",
            "a collective returns nothing",
        ),
    ],
)
def test_algorithms(text, where, help):
    found = said(text, "a.coll")
    assert where in found and help in found, found


COMP = """compressor t(group: int = 128) {
  wire { code: s8[group] }
  compress(x) { code = quantize(CODE, -127, 127, nearest) }
  decompress { LAST }
}
"""


@pytest.mark.parametrize(
    ("code", "last", "help"),
    [
        ("x", "return code", "`decompress` ends with `yield VALUES`"),
        ("x ** 2", "yield code", "squares `x * x`"),
        ("x", "if code { yield code }", "there is no `if`: select("),
        ("x", "for i in code { yield code }", "there are no loops"),
    ],
)
def test_compressors(code, last, help):
    found = said(COMP.replace("CODE", code).replace("LAST", last), "t.comp")
    assert help in found, found
