"""The shipped algorithms: the counts of the design's table, every compressor and dtype, and how long a check may take."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from coccl_dsl.check.report import WorldReport
from coccl_dsl.lang.files import library
from coccl_dsl.pipeline import Collective, compile, load

# (file, world): messages, chunks sent, steps, lossy steps
COUNTS = {
    ("ring_q4", (4,)): (24, 24, 6, 4),
    ("ring_q4", (8,)): (112, 112, 14, 8),
    ("two_shot", (4,)): (24, 24, 2, 2),
    ("two_shot", (8,)): (112, 112, 2, 2),
    ("halving_doubling", (4,)): (16, 24, 4, 3),
    ("halving_doubling", (5,)): (18, 32, 6, 4),
    ("halving_doubling", (8,)): (48, 112, 6, 4),
    ("tree_broadcast", (8,)): (7, 7, 3, 1),
    ("three_shot", (2, 2)): (20, 24, 3, 3),
    ("three_shot", (2, 4)): (88, 112, 3, 3),
    ("three_shot", (3, 2)): (48, 60, 3, 3),
    ("all_gather_mesh", (2, 4)): (32, 56, 2, 1),
    ("sdp4bit", (2, 4)): (32, 56, 2, 2),
}


def reports(collective: Collective, world: tuple[int, ...]) -> list[WorldReport]:
    return [w for w in collective.report.worlds if w.sizes == world]


@pytest.mark.parametrize(("name", "world"), COUNTS, ids=lambda v: v if isinstance(v, str) else "x".join(map(str, v)))
def test_counts_of_the_design(name: str, world: tuple[int, ...]):
    found = reports(compile(name), world)
    assert found
    for w in found:
        assert (w.sends, w.chunks_sent, w.steps, w.lossy) == COUNTS[name, world]
        assert w.same_bits


def compressors_of(name: str) -> list[str]:
    return sorted(load(name).program().codecs)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("compressor", ["raw", "int8", "int4"])
@pytest.mark.parametrize("name", library("algorithms"))
def test_proves_with_every_compressor(name: str, compressor: str, dtype: str):
    bound = load(name, dict.fromkeys(compressors_of(name), compressor))
    report = bound.check(dtype=dtype)
    assert report.worlds and all(w.same_bits for w in report.worlds)
    if compressor == "raw" and dtype == "f32":
        assert all(w.lossy == 0 for w in report.worlds)


@pytest.mark.parametrize("name", library("algorithms"))
def test_proves_when_inputs_are_scaled(name: str):
    for op in ("avg", "premul(0.5)"):
        assert load(name).check(op=op).worlds


@pytest.mark.parametrize("name", [n for n in library("algorithms") if load(n).kind != "send_recv"])
def test_proves_on_odd_worlds(name: str):
    collective = load(name)
    worlds = {0: ((9,), (12,), (16,), (17,)), 2: ((1, 4), (5, 3), (4, 4))}.get(len(collective.axes), ((2, 3, 2),))
    assert len(collective.check(worlds).worlds) >= len(worlds)


def test_compiling_imports_neither_torch_nor_triton():
    code = (
        "import sys, coccl_dsl; c = coccl_dsl.compile('ring_q4'); c.report\n"
        "print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("name", "ranks"), [pytest.param("ring", 256, marks=pytest.mark.full), ("two_shot", 64)])
def test_large_worlds_are_checked_in_seconds(name: str, ranks: int):
    collective = load(name)
    start = time.process_time()
    world = collective.check(((ranks,),)).worlds[0]
    assert time.process_time() - start < 10
    assert world.sends == 2 * ranks * (ranks - 1)
