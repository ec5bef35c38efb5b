"""What the generated kernels become on Hopper: compiled to PTX and machine code for sm_90, which needs no GPU.

Asserted are the facts that speed and equal bits rest on: 16-byte accesses, no spills, no contraction, no approximate division.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from coccl_dsl.codegen.triton_source import HEADER, VARIANTS, KernelSource, kernel_source
from coccl_dsl.plan.ops import Signature
from tests.codegen import triton_cases

POINTERS = {"f32": "*fp32", "bf16": "*bf16", "f16": "*fp16"}
IN, OUT, OPENED = ("input", 0), ("output", 0, False), ("output", 0, True)
SIGNATURES = {
    "compress": Signature((IN,), None, False, 0, "q", True, ()),
    "decompress": Signature((), "q", False, 0, None, False, (OUT,)),
    "middle": Signature((IN,), "q", False, 0, "q", True, (OPENED,)),
}


def load(source: KernelSource, folder: Path) -> Any:
    path = folder / f"{source.name}.py"
    path.write_text(f"{HEADER}\n\n{source.text}", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(source.name, path)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, source.name)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("ptx")

    @cache
    def compile(
        kind: str,
        compressor: str,
        dtype: str,
        aligned: bool = True,
        one: bool = True,
        loop: bool = False,
        copies: bool = False,
        hopper: bool = False,
    ) -> Any:
        codecs = {"q": triton_cases.make(compressor, dtype)}
        source = kernel_source(SIGNATURES[kind], dtype, codecs, False)
        user = POINTERS[dtype]
        arguments = {
            "x": user,
            "y": user,
            "table": "*i64",
            "folds": "i32",
            "row_size": "i32",
            "places_at": "i32",
            "factor": "fp32",
        }
        arguments |= {"rng": "*i64", "version": "*i32", "flags": "*i32", **dict.fromkeys(VARIANTS, "constexpr")}
        return triton.compile(
            ASTSource(
                fn=load(source, folder),
                signature=arguments,
                constexprs=dict(zip(VARIANTS, (aligned, one, one, loop, copies), strict=True)),
            ),
            target=GPUTarget("cuda", 90, 32),
            options={"num_warps": source.tiling.warps, "enable_fp_fusion": False},
        )

    return compile


class Hopper:
    """As much of a driver as tells which GPU there is."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture(scope="module")
def on_hopper(compiled, tmp_path_factory: pytest.TempPathFactory):
    """`compiled`, as on a machine with such a GPU. Triton's cache does not tell these kernels from those made without one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knobs.cache, "dir", str(tmp_path_factory.mktemp("hopper")))
        patch.setattr(driver, "_active", Hopper())
        yield compiled


def resources(kernel: Any, folder: Path) -> tuple[int, int]:
    """(registers, bytes of stack) a thread."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    out = subprocess.run([str(tool), "-res-usage", str(cubin)], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", out)
    assert found, out
    return int(found[1]), int(found[2])


def accesses(ptx: str) -> dict[str, int]:
    """How many global loads and stores of each width there are: `ld.v4.b32` -> 5."""
    counts: dict[str, int] = {}
    for op, shape in re.findall(r"\b(ld|st)\.global(?:\.\w+)*?\.((?:v\d\.)?b\d+)\b", ptx):
        counts[f"{op}.{shape}"] = counts.get(f"{op}.{shape}", 0) + 1
    return counts


def wide(counts: dict[str, int], op: str) -> int:
    return counts.get(f"{op}.v4.b32", 0) + counts.get(f"{op}.v2.b64", 0)


CASES = [(k, q, d) for k in SIGNATURES for q in ("int8", "int4") for d in ("bf16", "f32")]


@pytest.mark.parametrize(("kind", "compressor", "dtype"), CASES)
def test_dense_values_and_codes_move_sixteen_bytes_at_a_time(compiled, kind, compressor, dtype):
    """A thread has 32 elements of a whole tile: their bytes over 16, of each tensor and each wire."""
    counts = accesses(compiled(kind, compressor, dtype).asm["ptx"])
    dense, codes = (4 if dtype == "bf16" else 8), (2 if compressor == "int8" else 1)
    loads = {"compress": dense, "decompress": codes, "middle": dense + codes}[kind]
    stores = {"compress": codes, "decompress": dense, "middle": dense + codes}[kind]
    assert wide(counts, "ld") >= loads, counts
    assert wide(counts, "st") >= stores, counts


@pytest.mark.parametrize(("kind", "compressor", "dtype"), CASES)
@pytest.mark.parametrize("variant", [{}, {"one": False}, {"loop": True}, {"copies": True}], ids=str)
def test_nothing_spills(compiled, kind, compressor, dtype, variant, tmp_path):
    if variant and "one" not in variant and kind != "compress":
        pytest.skip("loops and copies stand in launches that only compress")
    kernel = compiled(kind, compressor, dtype, **variant)
    registers, stack = resources(kernel, tmp_path)
    assert stack == 0 and registers <= 128, (registers, stack)
    assert not re.search(r"\.local|ld\.local|st\.local", kernel.asm["ptx"])


@pytest.mark.parametrize(("kind", "compressor", "dtype"), CASES)
def test_arithmetic_is_the_reference_s(compiled, kind, compressor, dtype):
    ptx = compiled(kind, compressor, dtype).asm["ptx"]
    assert "fma.rn.f32" not in ptx
    assert not re.search(r"\b(div\.full|div\.approx|rcp\.approx|sqrt\.approx)", ptx)
    assert ".ftz" not in ptx


def test_unaligned_tensors_have_a_kernel_of_their_own(compiled):
    counts = accesses(compiled("middle", "int8", "bf16", False).asm["ptx"])
    # The wire keeps its alignment: only the tensors are read and written element by element.
    assert wide(counts, "ld") >= 2 and wide(counts, "st") >= 2
    assert counts["ld.b16"] >= 32 and counts["st.b16"] >= 32


def test_whole_tiles_take_no_masks(compiled):
    """Predicated global accesses belong to the small tiles, of which a thread has 8 elements."""
    ptx = compiled("compress", "int4", "bf16").asm["ptx"]
    assert len(re.findall(r"@%p\d+ ld\.global", ptx)) < 32


PAIRS = {
    "int8": "max.NaN.xorsign.abs.{}x2",
    "nvfp4": "max.NaN.xorsign.abs.{}x2",
    "minmax_u8": "min.NaN.{}x2",
    "uint4": "min.NaN.{}x2",
    "spike4": "set.eq.u32.{}x2",
    "spike4(group=128)": "set.eq.u32.{}x2",
    "taco_fp8": "max.NaN.xorsign.abs.{}x2",
}


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("f16", marks=pytest.mark.full)])
@pytest.mark.parametrize("compressor", PAIRS)
def test_untouched_inputs_of_16_bits_are_compared_in_pairs(on_hopper, compressor, dtype, tmp_path):
    kernel = on_hopper("compress", compressor, dtype, hopper=True)
    ptx = kernel.asm["ptx"]
    assert PAIRS[compressor].format(dtype) in ptx
    assert wide(accesses(ptx), "ld") >= 4
    registers, stack = resources(kernel, tmp_path)
    # A frame's program has bounds of its own.
    assert compressor in ("nvfp4", "minmax_u8") or (stack == 0 and registers <= 128), (registers, stack)
    assert "\tld.global.b16" not in ptx[: ptx.index("st.global")], "whole tiles come first"


def test_float32_and_unaligned_tensors_have_no_pairs(on_hopper):
    assert "bf16x2" not in on_hopper("compress", "int8", "f32", hopper=True).asm["ptx"]
    ptx = on_hopper("compress", "int8", "bf16", False, hopper=True).asm["ptx"]
    assert "bf16x2" not in ptx and accesses(ptx)["ld.b16"] >= 32


def test_wide_butterflies_and_sums_stay_in_a_thread(on_hopper):
    """Two of the seven steps over 128 values take a value each from another thread, of the 32 that a thread has of a whole tile."""
    ptx = on_hopper("compress", "taco_fp8", "bf16", hopper=True).asm["ptx"]
    whole = ptx[: ptx.index("ld.global.b16")]
    assert 64 <= whole.count("shfl.sync") <= 96


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_lone_value_is_swapped_by_masks_and_codes_are_clamped_two_at_a_time(on_hopper, dtype, tmp_path):
    """Of the six steps over 64 values one takes a value each from another thread, of the 32 that a thread has of a whole tile."""
    kernel = on_hopper("compress", "tah_quant", dtype, hopper=True)
    ptx = kernel.asm["ptx"]
    whole = ptx[: re.search(r"@%p\d+ ld\.global", ptx).start()]  # type: ignore[union-attr]
    assert 32 <= whole.count("shfl.sync") <= 48
    assert whole.count("min.relu.s16x2") == 16
    # A product a value is for the codes; 16-bit values are scaled by half as many, in the first step.
    products = len(re.findall(r"\bmul\.(rn\.)?f32", whole))
    assert products <= (56 if dtype == "bf16" else 104), products
    registers, stack = resources(kernel, tmp_path)
    assert stack == 0 and registers <= 128, (registers, stack)
