"""The formatter changes white space only, twice is once, and the layout is the documented one."""

from __future__ import annotations

import dataclasses
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coccl_dsl.diagnostics import CompileError, Source, Span
from coccl_dsl.lang.files import shipped
from coccl_dsl.lang.formatter import format_text
from coccl_dsl.lang.parse import parse_coll, parse_comp

RING = """\
# Ring all-reduce, 4 bits on every link.
use "int4.comp"

collective ring_q4 : all_reduce {
  ranks r of n
  inout buf[n]                                  # the tensor, cut into n chunks
  compressor q = int4(group=128)
  wire held[n] : q

  phase reduce_scatter {
    for s in range(n - 1) {
      # a chunk a step
      let c = (r - s) mod n
      send compress(q, buf[c]) to (r + 1) mod n as w
      buf[(c - 1) mod n] += decompress(w)       # what r - 1 just sent
    }
  }
  when r > 0 { held[:] = held[0 : n]   buf[-(-r)] = decompress(held[r]) }
  for p in range(1, n) { send held[:] to (r + p) mod n as held[:] }
  schedule {
    pipeline tune [1, 2, 4, 8]                  # slices in flight
  }
}
"""
MESH = """\
collective gather : all_gather {
  mesh (node: c of m, local: l of k)
  in x
  out y[m, k]
  scratch t[m] in h32
  compressor q = error_feedback(int8(group=128), -1)
  y[:, l] = decompress(compress(q, x))
  send x to local: (l + 1) mod k as y[:, (l - 1) mod k]
  send x to (c, l) as y[c, l]
}

collective other : broadcast(root) {
  ranks r of n
  inout buf
}
"""
COMP = """\
compressor odd(c: compressor = int4(group=64), round: rounding = nearest) {
  basis hadamard(32)
  state error : f32 sender
  wire {
    code  : s4[group]
    scale : bf16        # one a group
    total : f32 frame
    inner : wire(c)
  }
  nonfinite code code = -8
  exact for bf16, f16
  flag overflow when max(abs(x)) > 1e30 or not (scale == 0)
  compress(x) {
    let d = x - error
    scale = up(max(abs(d)) / 7)
    code  = quantize(d / nonzero(scale), -7, 7, round)

    inner = compress(c, -x * -d)
  }
  decompress {
    yield code * scale & 3
  }
  update sender { error = x - decompressed }
  claim abs(x - decompressed) <= 0.5 * scale + tiny when round == nearest
}
"""
TEXTS = {"ring.coll": RING, "mesh.coll": MESH, "odd.comp": COMP}
SHIPPED = sorted([*shipped("algorithms").glob("*.coll"), *shipped("compressors").glob("*.comp")])


def formatted(name: str, text: str) -> str:
    return format_text(Source(name, text))


def tree(name: str, text: str) -> Any:
    parse = parse_comp if name.endswith(".comp") else parse_coll
    return without_spans(parse(Source(name, text)))


def without_spans(node: Any) -> Any:
    if isinstance(node, tuple):
        return tuple(without_spans(n) for n in node if not isinstance(n, Span))
    if dataclasses.is_dataclass(node):
        return (
            type(node),
            *(without_spans(getattr(node, f.name)) for f in dataclasses.fields(node) if "span" not in f.name),
        )
    return node


def comments(text: str) -> list[str]:
    return [c.rstrip() for c in re.findall(r"#[^\n]*", text)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_shipped_files_are_formatted(path: Path):
    text = path.read_text(encoding="utf-8")
    assert formatted(path.name, text) == text


@pytest.mark.parametrize("name", TEXTS)
def test_the_layout_is_a_fixed_point(name: str):
    assert formatted(name, TEXTS[name]) == TEXTS[name]


def pieces(text: str) -> list[str]:
    return re.findall(r'#[^\n]*|"[^"\n]*"|\n|\w+(?:\.\d+)?|\+=|[=!<>]=|<<|>>|[^\s\w]', text)


def respaced(text: str, gaps: list[str]) -> str:
    """`text` with other white space between its tokens: `gaps`, over and over."""
    out, before = "", "\n"
    for piece, gap in zip(pieces(text), cycle(gaps), strict=False):
        if before.startswith("#"):
            gap = ""  # only its own line break may follow a comment
        elif not gap and before[-1] not in "()[]{},\n" and piece[0] not in "()[]{},\n#":
            gap = " "
        out += gap + piece
        before = piece
    return out


def spacings(*gaps: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(gaps), min_size=1, max_size=40)


@pytest.mark.parametrize("name", TEXTS)
@given(spacings("", " ", "   ", "\t"))
def test_spaces_within_lines_do_not_matter(name: str, gaps: list[str]):
    assert formatted(name, respaced(TEXTS[name], gaps)) == TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
@given(spacings("", " ", "  ", "\n", "\n\n\n", " # why\n", "\n# how\n"))
def test_only_white_space_changes_and_twice_is_once(name: str, gaps: list[str]):
    mangled = respaced(TEXTS[name], gaps)
    once = formatted(name, mangled)
    assert tree(name, once) == tree(name, mangled) == tree(name, TEXTS[name])
    assert comments(once) == comments(mangled)
    assert formatted(name, once) == once
    assert not re.search(r"[ \t]\n|\n\n\n|\A\n|\n\n\Z|\t", once) and once.endswith("\n")


def test_a_brace_joins_the_line_before_and_closes_on_its_own():
    text = "collective a:broadcast(root) # why\n\n# how\n{ ranks r of n\n inout b }"
    assert formatted("a.coll", text) == (
        "collective a : broadcast(root) {        # why\n  # how\n  ranks r of n\n  inout b\n}\n"
    )


def test_continued_lines_are_indented_further():
    text = "collective a:all_reduce {\nranks r of n\ninout b[n]\nb[r] = b[r]\n+ b[\nr\n]\n}"
    assert formatted("a.coll", text) == (
        "collective a : all_reduce {\n  ranks r of n\n  inout b[n]\n  b[r] = b[r]\n      + b[\n      r\n  ]\n}\n"
    )


def test_a_very_long_line_does_not_push_the_comments_of_others():
    long = "let a = " + " + ".join(["n"] * 25)
    text = f"collective a : all_reduce {{\n  ranks r of n  # short\n  inout b[n]\n  {long} # long\n}}\n"
    lines = formatted("a.coll", text).splitlines()
    assert lines[1] == "  ranks r of n  # short" and lines[3] == f"  {long}  # long"


def test_a_text_that_does_not_parse_is_refused():
    with pytest.raises(CompileError) as e:
        formatted("a.coll", "collective a : all_reduce {")
    assert e.value.codes == ("E101",)
