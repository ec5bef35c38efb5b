"""Calls of one launch: which plans have them, and their folds in even and odd calls, run in this process by the reference back end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coccl_dsl import simulate
from coccl_dsl.codegen.eager import EagerBackend
from coccl_dsl.codegen.one_launch_source import Folds
from coccl_dsl.pipeline import World, load, raw_codec
from coccl_dsl.plan.cut import cut
from coccl_dsl.plan.memory import doubled, lay_out
from coccl_dsl.plan.one_launch import obstacle, unshared
from coccl_dsl.plan.ops import Launch, Plan
from coccl_dsl.runtime.errors import BindError
from coccl_dsl.runtime.executor import Executor
from coccl_dsl.runtime.one_launch import OneLaunchCalls, in_one_launch, read_by
from coccl_dsl.runtime.tuning import ONE_LAUNCH_TO

IN_ONE = ["one_shot", "two_shot", "all_gather_direct", "reduce_scatter_direct", "all_to_all_direct"]


def plans_of(name: str, n: int, compressor: str = "int8", dtype: str = "bf16") -> list[Plan]:
    c = load(name)
    world = World((n,))
    names = dict.fromkeys(c.program(dtype).codecs, compressor)
    trace = c.trace(world, dtype=dtype, compressors=names)
    return c.mapped_plans(world, dtype=dtype, compressors=names, trace=trace)


@pytest.mark.parametrize(
    "name,n,compressor,why",
    [
        *((name, n, "int8", "") for name in IN_ONE for n in (2, 3, 8)),
        ("halving_doubling", 2, "int8", ""),
        ("ring", 2, "raw", ""),
        ("halving_doubling", 8, "int8", "launches"),
        ("ring", 3, "int8", "forwards wires"),
        ("send_recv", 2, "int8", "never waits for"),
        ("tree_broadcast", 2, "int8", "never waits for"),
        ("two_shot", 2, "error_feedback(int4)", "keep states"),
        ("two_shot", 2, "nvfp4", "fields of whole frames"),
    ],
)
def test_plans_that_can_be_one_launch(name, n, compressor, why):
    found = obstacle(plans_of(name, n, compressor))
    assert why in found and bool(found) == bool(why)


def test_what_was_asked_for_is_had_or_refused():
    plans = plans_of("two_shot", 2)
    assert in_one_launch(plans, None, ONE_LAUNCH_TO, "") and not in_one_launch(plans, None, ONE_LAUNCH_TO + 1, "")
    assert in_one_launch(plans, True, 1 << 30, "") and not in_one_launch(plans, False, 1, "")
    assert not in_one_launch(plans, None, 1, "its kernels are torch's")
    with pytest.raises(BindError, match="one_launch=True is not available: it runs in 4 slices"):
        in_one_launch(plans, True, 1, "it runs in 4 slices")
    with pytest.raises(BindError, match="never waits for"):
        in_one_launch(plans_of("send_recv", 2), True, 1, "")


@pytest.mark.parametrize(
    "name,n,to", [("one_shot", 2, 512), ("two_shot", 2, 768), ("one_shot", 8, 170), ("two_shot", 8, 558)]
)
def test_calls_that_start_kernels_most_of_the_time_are_one_launch(name, n, to):
    """In KiB of bf16."""
    plans = plans_of(name, n)
    found = [
        k
        for k in range(1, 2000)
        if in_one_launch(plans, None, max(read_by(p, cut(p, 512 * k).lengths, 2) for p in plans), "")
    ]
    assert found == list(range(1, len(found) + 1)) and abs(len(found) - to) <= 5


class _Steps:
    """Stands for the back end: keeps what the kernel would be given."""

    def prepare_call(self, steps, context, control, signatures, longest) -> Any:
        return list(steps), context


class _World:
    """All ranks here, each with an arena that all reach."""

    def __init__(self, name: str, n: int, compressor: str, dtype: str, capacity: int):
        self.collective, self.n = load(name), n
        self.plans = [unshared(p) for p in plans_of(name, n, compressor, dtype)]
        layouts = [doubled(lay_out(p, raw_codec(dtype), capacity, 1)) for p in self.plans]
        backend: Any = _Steps()
        meets: Any = dict.fromkeys(range(8))
        control: Any = None
        arenas = {r: torch.full((layouts[r].size,), 0xFF, dtype=torch.uint8) for r in range(n)}
        self.executors = []
        for r, plan in enumerate(self.plans):
            calls = OneLaunchCalls(backend, control, meets, (), 1)
            arena = arenas[r]
            made = Executor(
                plan,
                EagerBackend(),
                torch.device("cpu"),
                capacity,
                None,
                0,
                memory=lambda _, a=arena: a,
                one_launch=calls,
            )
            made.connect(arenas, {p: (self.plans[p], layouts[p]) for p in range(n) if p != r})
            self.executors.append(made)

    def call(self, xs: list[torch.Tensor], number: int) -> list[torch.Tensor]:
        """Level by level; folds of one rank in the order of the kernel."""
        prepared = [e.prepare(x.numel()) for e, x in zip(self.executors, xs, strict=True)]
        ys = [torch.zeros(p.cut.output_count, dtype=xs[0].dtype) for p in prepared]
        ranks: list[Any] = [p.passes[0][0][0] for p in prepared]
        for at in range(max(len(steps) for steps, _ in ranks)):
            for (steps, context), x, y in zip(ranks, xs, ys, strict=True):
                step = steps[at] if at < len(steps) else None
                if isinstance(step, Folds) and (folds := step.odd if number % 2 else step.even):
                    EagerBackend().prepare(step.part.signature, folds, context).run(x, y)
        return ys


@pytest.mark.parametrize("name", IN_ONE)
@pytest.mark.parametrize("n,compressor,dtype", [(2, "int4", "bf16"), (3, "int8", "f32"), (4, "int8_h32", "f16")])
def test_even_and_odd_calls_give_the_bits_of_simulate(name, n, compressor, dtype):
    torch_dtype = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}[dtype]
    world = _World(name, n, compressor, dtype, 9000 * n)
    names = dict.fromkeys(world.collective.program(dtype).codecs, compressor)
    for number, count in enumerate([9000, 9000, 0, 1, 129, 4097]):
        count = count * n if world.collective.kind in ("reduce_scatter", "all_to_all") else count
        g = torch.Generator().manual_seed(number)
        xs = [torch.randn(count, generator=g).to(torch_dtype) for _ in range(n)]
        got = world.call(xs, number)
        for y, want in zip(got, simulate(world.collective, xs, **names), strict=True):
            assert torch.equal(y.view(torch.uint8), want.reshape(-1).view(torch.uint8)), (count, number)


def test_no_two_wires_share_a_place():
    """A program may be levels ahead of another, and calls of a rank one ahead of its peers."""
    for name in IN_ONE:
        for plan in plans_of(name, 4):
            own = unshared(plan)
            layout = doubled(lay_out(own, raw_codec("bf16"), 40_000, 1))
            assert all(len(members) == 1 for members in own.slots)
            places = [at for offsets in layout.offsets for at in offsets]
            assert places == sorted(set(places)) and layout.size > places[-1]
            used = {
                w
                for s in own.steps
                if isinstance(s, Launch)
                for f in s.folds
                for w in (f.wire, *(o.wire for o in f.opened))
            }
            slots = [own.wires[w].slot for w in used if w is not None and own.wires[w].slot >= 0]
            assert len(slots) == len(set(slots))
