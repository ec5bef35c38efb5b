"""The kernel that runs a whole call, compiled to PTX and machine code for sm_90, which needs no GPU; its tables, and what its tiles rest on."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from coccl_dsl.codegen.one_launch_source import ExchangePart, LaunchPart, arguments_of, one_launch_source, one_tiling
from coccl_dsl.codegen.triton_source import HEADER, KernelSource
from coccl_dsl.pipeline import World, load
from coccl_dsl.plan.ops import Exchange, Launch, Plan
from coccl_dsl.runtime.one_launch import variant_of
from tests.codegen.test_triton_ptx import accesses, resources, wide

POINTERS = {"f32": "*fp32", "bf16": "*bf16", "f16": "*fp16"}
ONE_LAUNCH = ["one_shot", "two_shot", "all_gather_direct", "reduce_scatter_direct", "all_to_all_direct"]


def plans_of(name: str, n: int, compressor: str, dtype: str = "bf16") -> list[Plan]:
    c = load(name)
    world = World((n,))
    names = dict.fromkeys(c.program(dtype).codecs, compressor)
    trace = c.trace(world, dtype=dtype, compressors=names)
    return c.mapped_plans(world, dtype=dtype, compressors=names, trace=trace)


def parts_of(plan: Plan) -> list[LaunchPart | ExchangePart]:
    parts: list[LaunchPart | ExchangePart] = []
    for step in plan.steps:
        if isinstance(step, Launch):
            parts.append(variant_of(step))
        elif isinstance(step, Exchange):
            parts.append(ExchangePart(step.level, max(len(step.sends), len(step.recvs))))
    return parts


def source_of(name: str, n: int, compressor: str, dtype: str = "bf16", longest: int = 1) -> KernelSource:
    plan = plans_of(name, n, compressor, dtype)[0]
    parts = parts_of(plan)
    shape = one_tiling([p.signature for p in parts if isinstance(p, LaunchPart)], plan.codecs, longest)
    return one_launch_source(parts, dtype, plan.codecs, False, shape)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("one_launch")

    def load_kernel(source: KernelSource) -> Any:
        path: Path = folder / f"{source.name}.py"
        path.write_text(f"{HEADER}\n\n{source.text}", encoding="utf-8")
        spec = importlib.util.spec_from_file_location(source.name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, source.name)

    @cache
    def compile(name: str, n: int, compressor: str, dtype: str = "bf16", longest: int = 1) -> Any:
        source = source_of(name, n, compressor, dtype, longest)
        kernel = load_kernel(source)
        kinds = {"table": "*i64", "rows": "*i64", "turns": "*i32", "status": "*i32", "factor": "fp32", "rng": "*i64"}
        kinds |= {"version": "*i32", "flags": "*i32", "x": POINTERS[dtype], "y": POINTERS[dtype]}
        signature = {a: kinds.get(a.rstrip("0123456789").rstrip("_"), "i32") for a in kernel.arg_names[:-1]}
        return triton.compile(
            ASTSource(fn=kernel, signature={**signature, "ALIGNED": "constexpr"}, constexprs={"ALIGNED": True}),
            target=GPUTarget("cuda", 90, 32),
            options={"num_warps": source.tiling.warps, "enable_fp_fusion": False},
        )

    return compile


CASES = [("one_shot", 2, "int4"), ("two_shot", 2, "int8"), ("two_shot", 4, "int4_h32"), ("all_gather_direct", 3, "raw")]


@pytest.mark.parametrize("name,n,compressor", CASES)
def test_stores_are_released_and_loads_acquired_behind_barriers(compiled, name, n, compressor):
    """Triton puts no barrier between stores and a release, or between an acquire and loads: the text has to."""
    ptx = compiled(name, n, compressor).asm["ptx"]
    events = re.findall(r"bar\.sync|atom\.[\w.]*release[\w.]*|ld\.global\.acquire\.sys|(?:st|ld)\.global\.v4", ptx)
    kinds = [
        "release" if "release" in e else "acquire" if "acquire" in e else "barrier" if "bar" in e else "data"
        for e in events
    ]
    levels = sum(isinstance(p, ExchangePart) for p in parts_of(plans_of(name, n, compressor)[0]))
    assert kinds.count("release") >= levels and kinds.count("acquire") >= levels
    for at, kind in enumerate(kinds):
        if kind == "release":
            before = kinds[:at][::-1]
            assert "barrier" in before and "data" not in before[: before.index("barrier")]
        if kind == "acquire":
            after = kinds[at:]
            assert "barrier" in after and "data" not in after[: after.index("barrier")]


@pytest.mark.parametrize("name,n,compressor", CASES)
def test_warps_poll_without_waiting_for_each_other(compiled, name, n, compressor):
    """A warp may see a signal that another one gave up on: a barrier between first poll and last would hang them."""
    ptx = compiled(name, n, compressor).asm["ptx"]
    for poll in re.split(r"atom\.[\w.]*release", ptx)[1:]:
        polling = poll[poll.index("ld.global.acquire.sys") : poll.rindex("ld.global.acquire.sys")]
        assert "bar.sync" not in polling


@pytest.mark.parametrize("longest", [1, 1 << 20])
def test_tiles_are_kept_in_registers(compiled, longest, tmp_path):
    """A tile is 32 values a thread and more; the assembler may put a few words of the loops around it aside."""
    for name, n, compressor in CASES:
        kernel = compiled(name, n, compressor, "bf16", longest)
        assert kernel.metadata.num_warps == (2 if longest == 1 else 8)
        assert resources(kernel, tmp_path)[1] <= 64 and ".local" not in kernel.asm["ptx"]
        assert wide(accesses(kernel.asm["ptx"]), "ld") and wide(accesses(kernel.asm["ptx"]), "st")


def test_a_kernel_is_the_same_for_all_ranks_and_counts():
    for name in ONE_LAUNCH:
        texts = set()
        for plan in plans_of(name, 3, "int8"):
            parts = parts_of(plan)
            shape = one_tiling([p.signature for p in parts if isinstance(p, LaunchPart)], plan.codecs, 100)
            texts.add(one_launch_source(parts, "bf16", plan.codecs, False, shape).text)
            assert len(arguments_of(parts)) == len(set(arguments_of(parts)))
        assert len(texts) == 1, name


def test_tiles_hold_whole_groups_and_grow_with_the_chunk():
    codecs = plans_of("one_shot", 2, "int8(group=2048)")[0].codecs
    signatures = [
        p.signature for p in parts_of(plans_of("one_shot", 2, "int8(group=2048)")[0]) if isinstance(p, LaunchPart)
    ]
    small, large = (one_tiling(signatures, codecs, longest) for longest in (1, 1 << 20))
    assert (small.tile, small.small) == (2048, 2048) and (large.tile, large.small) == (8192, 2048)


def test_the_kernel_s_text_takes_the_places_of_its_turn():
    """Rows of odd calls lie behind those of even ones; launches and exchanges come in the plan's order; the turn is counted last."""
    text = source_of("two_shot", 2, "int8").text
    body = [line.strip() for line in text[text.index("turn = tl.load(turns + program)") :].splitlines()]
    assert body[:2] == ["turn = tl.load(turns + program)", "odd = turn & 1"]
    rows = [f"row = table_{i} + (odd * folds_{i} + k) * size_{i}" for i in (0, 2, 4)]
    meets = ["signals.meet(rows_1, signals_1, waits_1, 0,", "signals.meet(rows_3, signals_3, waits_3, 1,"]
    found = [line for line in body if line.startswith(("row = ", "signals.meet"))]
    assert [found[i] for i in (0, 2, 4)] == rows and len(found) == 5
    assert all(found[i].startswith(m) for i, m in zip((1, 3), meets, strict=True))
    assert body[-2:] == ["tl.debug_barrier()", "tl.store(turns + program, turn + 1)"]
