"""One Pygments lexer for both languages: it takes every shipped text apart without a remainder, and knows the words of the grammars."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pygments.token import Comment, Error, Keyword, Name, Operator, String, Token

from coccl_dsl.lang.files import shipped
from coccl_dsl.lang.lexer import CocclLexer
from coccl_dsl.wire.codec import TYPES

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    p for kind, suffix in (("algorithms", "coll"), ("compressors", "comp")) for p in shipped(kind).glob(f"*.{suffix}")
]


def tokens(text: str) -> list[tuple]:
    return list(CocclLexer(ensurenl=False, stripnl=False).get_tokens(text))


def kind_of(text: str, word: str, nth: int = 0):
    return [kind for kind, value in tokens(text) if value == word][nth]


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_every_shipped_text_is_taken_apart_without_an_error_and_without_a_loss(path: Path):
    text = path.read_text()
    found = tokens(text)
    assert not [value for kind, value in found if kind in Error]
    assert "".join(value for _, value in found) == text
    assert any(kind in Keyword for kind, _ in found) and any(kind in Name.Class for kind, _ in found)


def test_faulty_texts_do_not_stop_it():
    for path in (ROOT / "tests" / "lang" / "faulty").glob("*.co*"):
        text = path.read_text(encoding="utf-8", errors="replace")
        assert "".join(value for _, value in tokens(text)).split() == text.split()


def test_all_words_of_the_grammars_are_keywords_somewhere_in_the_library():
    words: set[str] = set()
    for name in ("coll", "comp"):
        grammar = re.sub(r"//[^\n]*", "", (ROOT / "grammar" / f"{name}.lark").read_text())
        words |= set(re.findall(r'"([a-z]+)"', grammar))
    marked = {
        value
        for path in [*TEXTS, *(ROOT / "docs").glob("*.md")]
        for kind, value in tokens(path.read_text())
        if kind in Keyword or kind in Operator.Word or kind in Name.Function
    }
    assert not words - marked, words - marked


def test_words_that_are_names_elsewhere_are_keywords_only_in_their_place():
    assert kind_of("size p = log2(n)", "size") in Keyword
    assert kind_of("wire { size : bf16 }", "size") in Name
    assert kind_of("nonfinite code c = 3", "code") in Keyword
    assert kind_of("code = quantize(x, -7, 7)", "code") in Name
    assert kind_of("state e : f32 both first raw", "first") in Keyword
    assert kind_of("first(3, x > 0)", "first") in Name
    assert kind_of("decompress { yield code }", "decompress") in Keyword
    assert kind_of("y += decompress(w)", "decompress") in Name.Function
    assert kind_of("compress(x) {", "compress") in Keyword
    assert kind_of("send compress(q, x) to 0 as w", "compress") in Name.Function


def test_types_strings_comments_and_headers():
    for name in TYPES:
        assert kind_of(f"code : {name}[group]", name) in Keyword.Type
    assert kind_of('use "int8.comp"', '"int8.comp"') in String
    assert kind_of("x = 1 # why", "# why") in Comment
    assert kind_of("collective ring : all_reduce {", "ring") in Name.Class
    assert kind_of("collective ring : all_reduce {", "all_reduce") in Name.Builtin
    assert kind_of("a mod b", "mod") in Operator.Word
    assert kind_of("x", "x") is Token.Name


def test_it_is_an_entry_point_of_pygments():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (value,) = project["entry-points"]["pygments.lexers"].values()
    module, name = value.split(":")
    assert (module, name) == (CocclLexer.__module__, CocclLexer.__name__)
    assert CocclLexer.filenames == ["*.coll", "*.comp"] and CocclLexer.aliases == ["coll", "comp"]
    from importlib.metadata import entry_points

    installed = [e for e in entry_points(group="pygments.lexers") if e.value == value]
    if installed:  # an editable install, as CI makes one
        from pygments.lexers import get_lexer_by_name, get_lexer_for_filename

        assert type(get_lexer_by_name("comp")) is type(get_lexer_for_filename("ring.coll")) is installed[0].load()
