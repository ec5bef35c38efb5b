"""Random damage to the shipped files: they compile, or say what is wrong, within a time bound; nothing else ever happens."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coccl_dsl import compile_text
from coccl_dsl.diagnostics import CompileError, Source
from coccl_dsl.lang.files import shipped
from tests.lang.compressor_texts import WRAPPED, compile_compressors

ALGORITHMS = {p.name: p.read_text(encoding="utf-8") for p in sorted(shipped("algorithms").glob("*.coll"))}
COMPRESSORS = {p.name: p.read_text(encoding="utf-8") for p in sorted(shipped("compressors").glob("*.comp"))}
SECONDS = 20
SHORT = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))


def tokens(text: str) -> list[str]:
    return re.findall(r"\s+|#[^\n]*|\"[^\"\n]*\"|\w+(?:\.\d+)?|\+=|[=!<>]=|<<|>>|[^\s\w]", text)


@st.composite
def damaged(draw: st.DrawFn, texts: dict[str, str]) -> str:
    """A text with one to three tokens deleted, doubled, swapped or replaced."""
    parts = tokens(draw(st.sampled_from(sorted(texts.values()))))
    words = sorted({t for text in texts.values() for t in tokens(text) if not t.isspace() and t[0] != "#"})
    real = [i for i, t in enumerate(parts) if not t.isspace() and t[0] != "#"]
    for _ in range(draw(st.integers(1, 3))):
        i, j = draw(st.sampled_from(real)), draw(st.sampled_from(real))
        match draw(st.sampled_from(["delete", "double", "swap", "replace", "number"])):
            case "delete":
                parts[i] = " "
            case "double":
                parts[i] = f"{parts[i]} {parts[i]}"
            case "swap":
                parts[i], parts[j] = parts[j], parts[i]
            case "replace":
                parts[i] = draw(st.sampled_from(words))
            case "number":
                parts[i] = str(draw(st.sampled_from([0, 1, 3, 100, 10**6, 10**18, 1 << 62, 10**30])))
    return "".join(parts)


def survives(compiler: Callable[[str], object], text: str) -> None:
    start = time.perf_counter()
    try:
        compiler(text)
    except CompileError as e:
        assert e.diagnostics and all(d.span is not None for d in e.diagnostics), text
        assert len(e.diagnostics) <= 20
        assert str(e)
    assert time.perf_counter() - start < SECONDS, text


def compile_comp(text: str) -> None:
    compile_compressors(Source("<text>", text), wrapped=WRAPPED)


@SHORT
@given(damaged(ALGORITHMS))
def test_damaged_algorithms(text: str):
    survives(compile_text, text)


@SHORT
@given(damaged(COMPRESSORS))
def test_damaged_compressors(text: str):
    survives(compile_comp, text)


@pytest.mark.full
@LONG
@given(damaged(ALGORITHMS))
def test_damaged_algorithms_at_length(text: str):
    survives(compile_text, text)


@pytest.mark.full
@LONG
@given(damaged(COMPRESSORS))
def test_damaged_compressors_at_length(text: str):
    survives(compile_comp, text)


@SHORT
@given(st.text(alphabet='collective a:{}()[]=+-*/<>#"\n0123456789.@é\x00', max_size=80))
def test_noise(text: str):
    survives(compile_text, text)
    survives(compile_comp, text)


@pytest.mark.parametrize("depth", [49, 400])
@pytest.mark.parametrize("pair", ["()", "{}", "[]"])
def test_deep_nesting(depth: int, pair: str):
    before, after = pair
    name = {"(": f"let a = {'(' * depth}r{')' * depth}", "[": f"buf{'[buf' * depth}{']' * depth} = buf"}
    text = name.get(before, f"{'when r == 0 {' * depth}{'}' * depth}")
    survives(compile_text, f"collective a : all_reduce {{ ranks r of n inout buf\n {text}\n }}")


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.joinpath("faulty").glob("*.coll")), ids=lambda p: p.name)
def test_faulty_texts_cut_short(path: Path):
    text = path.read_bytes().decode("utf-8", "replace")[:2000]
    for end in range(0, len(text), max(1, len(text) // 12)):
        survives(compile_text, text[:end])
