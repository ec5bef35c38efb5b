"""Every kind of mistake gets its own code, a caret at the place and a message in the reader's terms; never a traceback.

A faulty file says in its first line what it must give: `# expect CODE... [key=value...]`. Keys: `op` of the binding, `dtype` of the tensor,
`set` a compressor rebound (name:text). The whole message is in tests/golden/diagnostics/.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coccl_dsl.diagnostics import CATALOGUE, CompileError
from coccl_dsl.lang.files import read
from coccl_dsl.pipeline import load
from coccl_dsl.policy import read_policy
from tests.lang.compressor_texts import compile_compressors

FAULTY = Path(__file__).parent / "faulty"
FILES = sorted(f for kind in ("coll", "comp", "toml") for f in FAULTY.glob(f"*.{kind}"))
# Codes that no text can give: a world is chosen at bind.
NOT_BY_A_TEXT = {"E314"}


@dataclass
class Expected:
    codes: set[str]
    options: dict[str, str] = field(default_factory=dict)


def expected(path: Path) -> Expected:
    first = path.read_bytes().split(b"\n", 1)[0].decode()
    words = first.removeprefix("# expect ").split()
    codes = {w for w in words if "=" not in w}
    return Expected(codes, dict(w.split("=", 1) for w in words if "=" in w))


def complaint(path: Path) -> CompileError:
    options = expected(path).options
    dtype = options.get("dtype", "bf16")
    with pytest.raises(CompileError) as e:
        if path.suffix == ".comp":
            compile_compressors(read(path), dtype)
        elif path.suffix == ".toml":
            read_policy(path)
        else:
            rebound = dict([options["set"].split(":", 1)]) if "set" in options else {}
            load(path, rebound).check(dtype=dtype, op=options.get("op", "sum"))
    return e.value


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_faulty_file(path: Path, golden):
    start = time.perf_counter()
    error = complaint(path)
    assert set(error.codes) == expected(path).codes, str(error)
    assert time.perf_counter() - start < 20
    assert len(error.diagnostics) <= 4, "a few diagnostics a root cause"
    for d in error.diagnostics:
        assert d.span is not None or d.code == "E102", d
    golden.check(f"diagnostics/{path.name}", str(error).replace(str(FAULTY), "..."))


def test_every_code_has_a_faulty_file():
    shown = set().union(*(expected(p).codes for p in FILES))
    assert shown | NOT_BY_A_TEXT == set(CATALOGUE)


def test_carets_stand_under_what_is_wrong():
    error = complaint(FAULTY / "wrong_chunk.coll")
    assert [d.span.text for d in error.diagnostics if d.span] == ["buf[c]"]
    assert "did you mean `buf[(c - 1) mod n]`?" in str(error)
