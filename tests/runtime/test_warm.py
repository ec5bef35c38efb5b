"""What bind compiles: every form of a kernel that any later call asks for."""

from __future__ import annotations

import pytest
import torch

from coccl_dsl.codegen import triton_backend
from coccl_dsl.pipeline import World, load, raw_codec
from coccl_dsl.plan.memory import lay_out
from coccl_dsl.runtime.executor import Executor


@pytest.fixture
def compiled(monkeypatch):
    """Forms that are compiled, without a GPU to compile them for."""
    forms: set[tuple[object, ...]] = set()
    monkeypatch.setattr(triton_backend.knobs.runtime, "interpret", False)
    monkeypatch.setattr(triton_backend, "function_of", lambda source: source.name)
    monkeypatch.setattr(triton_backend.torch.cuda, "get_device_capability", lambda index=0: (8, 0))
    monkeypatch.setattr(triton_backend, "compiled_once", lambda function, variant, make: forms.add((function, variant)))
    monkeypatch.setattr(triton_backend, "UserLaunch", lambda *a: type("Launch", (), {"user": None, "run": None}))
    monkeypatch.setattr(triton_backend.torch.cuda, "device", lambda index: torch.device("cpu"))
    return forms


def executor(name: str, n: int, capacity: int, rank: int, mapped: bool, far: int | None) -> Executor:
    c, world = load(name), World((n,))
    trace = c.trace(world, dtype="bf16")
    if not mapped:
        plan = c.plan(world, rank, dtype="bf16", trace=trace)
        return Executor(plan, triton_backend.TritonBackend(), torch.device("cpu"), capacity, None, 0)
    plans = c.mapped_plans(world, dtype="bf16", compressors={}, trace=trace)
    layouts = [lay_out(p, raw_codec("bf16"), capacity, 1) for p in plans]
    made = Executor(
        plans[rank], triton_backend.TritonBackend(), torch.device("cpu"), capacity, None, 0, far_programs=far
    )
    arenas = {r: torch.zeros(layouts[r].size, dtype=torch.uint8) for r in range(n) if r != rank}
    made.connect(arenas, {r: (plans[r], layouts[r]) for r in arenas})
    return made


CASES = [
    ("reduce_scatter_direct", 4, 4 * 1001, [(4 * 1000, None), (4, None)]),
    ("all_gather_direct", 4, 1001, [(1000, None), (1, None)]),
    (
        "all_to_all_direct",
        4,
        4 * 1024,
        [(2024, ((512, 0, 512, 1000), (512, 512, 0, 1000))), (1024, ((0, 512, 512, 0), (0, 512, 0, 0)))],
    ),
    ("two_shot", 4, 4096, [(100, None), (1, None), (300, None)]),
    ("halving_doubling", 5, 4096, [(1, None), (130, None), (513, None)]),
    ("scatter_reduce", 4, 4096, [(1, None), (130, None)]),
]


@pytest.mark.parametrize("far", [None, 8])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(("name", "n", "capacity", "calls"), CASES)
def test_no_later_call_compiles(name, n, capacity, calls, mapped, far, compiled):
    for rank in (0, n - 1):
        made = executor(name, n, capacity, rank, mapped, far)
        made.warm(capacity)
        known = set(compiled)
        assert known
        for count, splits in calls:
            made.prepare(count, splits)
            assert compiled == known, f"{count} elements, splits {splits}"
