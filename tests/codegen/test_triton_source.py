"""The text of generated kernels: readable, made without Triton, and one for each thing that decides it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from coccl_dsl.codegen import evaluate, triton_graph, triton_names
from coccl_dsl.codegen.triton_source import Tiling, kernel_key, kernel_source
from coccl_dsl.plan.ops import Signature
from coccl_dsl.wire.codec import FRAME, Graph
from tests.codegen.triton_cases import make

MIDDLE = Signature((("input", 0),), "q", False, 0, "q", True, (("output", 0, True),))


def test_the_two_shot_middle_reads_like_this(golden):
    golden.check("codegen/int4_middle", kernel_source(MIDDLE, "bf16", {"q": make("int4", "bf16")}, False).text)


def test_text_is_made_without_triton():
    program = (
        "import sys; sys.modules['triton'] = None; from coccl_dsl.codegen.triton_source import kernel_source as k;"
        "from tests.codegen.test_triton_source import MIDDLE, make; print(k(MIDDLE, 'bf16', {'q': make('int8', 'bf16')}, True).name)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert out.returncode == 0 and out.stdout.startswith("fold_"), out.stderr


def test_names_and_keys_tell_kernels_apart():
    int8 = {"q": make("int8", "bf16")}
    variants = [
        (MIDDLE, "bf16", int8, False),
        (MIDDLE, "bf16", int8, True),
        (MIDDLE, "f32", {"q": make("int8", "f32")}, False),
        (MIDDLE, "bf16", {"q": make("int8(group=64)", "bf16")}, False),
        (replace(MIDDLE, sinks=()), "bf16", int8, False),
        (replace(MIDDLE, basis=32), "bf16", int8, False),
    ]
    assert len({kernel_key(*v) for v in variants}) == len(variants)
    assert kernel_source(*variants[0]).name == kernel_source(*variants[0]).name
    # The dtype of x and y is not in the text: int8's graphs are the same for both.
    assert len({kernel_source(*v).name for v in variants}) == len(variants) - 1


def test_every_operation_of_the_reference_is_printed():
    leaves = {"x", "live", "field", "state", "uniform", "const", "quantize"}
    known = leaves | set(triton_names.INFIX) | set(triton_names.CALLS)
    known |= {name.removeprefix("_op_") for name in dir(triton_graph.Printer) if name.startswith("_op_")}
    assert set(evaluate._OPS) <= known


def test_an_unknown_operation_is_named():
    codec = make("int8", "bf16")
    node = Graph().node("entropy", kind="f32", scope="array", length=codec.group)
    broken = replace(codec, decompress=node)
    with pytest.raises(NotImplementedError, match="entropy"):
        kernel_source(MIDDLE, "bf16", {"q": broken}, False)


@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 4095, 4096, 4097, 3 * 4096 + 2049])
def test_programs_cover_a_piece(length):
    tiling = Tiling(4096, 1024, 4)
    whole, rest = divmod(length, 4096)
    assert tiling.programs(length) == whole + -(-rest // 1024)


def test_tiles_hold_whole_groups():
    for text in ("int8(group=8)", "int8(group=4096)", "int8(group=32768)", "int8_h32", "nv4"):
        codec = make(text, "f32")
        t = kernel_source(replace(MIDDLE, basis=codec.basis), "f32", {"q": codec}, False).tiling
        assert t.tile % codec.group == t.small % codec.group == FRAME % t.tile == t.tile % t.small == 0
        assert codec.has_frame_fields <= (t.tile == FRAME)
