"""Calls of one launch: which plans have them, and their folds in even and odd calls, run in this process by the reference back end."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coccl_dsl import simulate
from coccl_dsl.codegen.eager import EagerBackend
from coccl_dsl.codegen.one_launch_source import LaunchArgs
from coccl_dsl.pipeline import World, load, raw_codec
from coccl_dsl.plan.cut import cut
from coccl_dsl.plan.memory import doubled, lay_out
from coccl_dsl.plan.one_launch import obstacle, unshared
from coccl_dsl.plan.ops import Launch, Plan
from coccl_dsl.runtime.errors import BindError
from coccl_dsl.runtime.executor import Executor
from coccl_dsl.runtime.one_launch import OneLaunchCalls, calls_of, in_one_launch, read_by
from coccl_dsl.runtime.op import LocalGroup
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


MIXED = """
use "int8.comp"
use "int4.comp"

collective mixed : all_reduce {
  ranks r of n
  inout buf
  compressor a = int8(group=128)
  compressor b = int4(group=128)
  compressor c = int8(group=256)
  wire v : c
  phase up {
    when r == 1 { send compress(a, buf) to 0 as w }
    when r == 0 and n > 1 { buf += decompress(w) }
    when r == 2 { send compress(b, buf) to 0 as u }
    when r == 0 and n > 2 { buf += decompress(u) }
  }
  phase down {
    when r == 0 { v = compress(c, buf) }
    for k in range(1, n) {
      when r == 0 { send v to k as v }
    }
    buf = decompress(v)
  }
}
"""


def test_ranks_with_different_compressors_have_the_same_tiles(tmp_path):
    (tmp_path / "mixed.coll").write_text(MIXED)
    c = load(str(tmp_path / "mixed.coll"))
    trace = c.trace(World((3,)), dtype="bf16", compressors={})
    plans = c.mapped_plans(World((3,)), dtype="bf16", compressors={}, trace=trace)
    assert len({tuple(sorted(p.codecs)) for p in plans}) == 3 and obstacle(plans) == ""
    transport: Any = SimpleNamespace(rows=lambda *_: None, control=lambda: None)
    backend: Any = None
    assert len({calls_of(backend, transport, plans, r, 100_000).shape for r in range(3)}) == 1


@pytest.mark.parametrize("wrong", [0, 1, 1.0, "yes"])
def test_one_launch_is_asked_for_by_name(wrong):
    x = torch.zeros(10)
    with pytest.raises(BindError, match="is not None, True or False"):
        load("two_shot").bind(LocalGroup(2), x, one_launch=wrong)
    with pytest.raises(BindError, match="one_launch=True needs transport symm"):
        load("two_shot").bind(LocalGroup(2), x, one_launch=True)


class _Steps:
    """Stands for the back end: keeps what the kernel would be given."""

    def prepare_call(self, steps, context, control, shape) -> Any:
        return list(steps), context


class _World:
    """All ranks here, each with an arena that all reach."""

    def __init__(self, name: str, n: int, compressor: str, dtype: str, capacity: int):
        self.collective, self.n = load(name), n
        self.plans = [unshared(p) for p in plans_of(name, n, compressor, dtype)]
        layouts = [doubled(lay_out(p, raw_codec(dtype), capacity, 1)) for p in self.plans]
        backend: Any = _Steps()
        exchanges: Any = dict.fromkeys(range(8))
        nothing: Any = None
        arenas = {r: torch.full((layouts[r].size,), 0xFF, dtype=torch.uint8) for r in range(n)}
        self.executors = []
        for r, plan in enumerate(self.plans):
            calls = OneLaunchCalls(backend, nothing, exchanges, nothing)
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
                if isinstance(step, LaunchArgs) and (folds := step.odd if number % 2 else step.even):
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


def test_what_the_kernel_is_given(monkeypatch):
    """Its arguments are those that it has, tables hold the rows of even calls, then of odd ones, and its text is made once."""
    from coccl_dsl.codegen import triton_one_launch
    from coccl_dsl.codegen.one_launch_source import Control, ExchangeArgs, ExchangePart, LaunchArgs, arguments_of
    from coccl_dsl.codegen.triton_backend import TritonBackend

    launches, texts = [], []
    monkeypatch.setattr(triton_one_launch, "compiled_once", lambda function, variant, make: variant)
    monkeypatch.setattr(
        triton_one_launch, "UserLaunch", lambda *given: launches.append(given) or SimpleNamespace(user=None, run=None)
    )
    source = triton_one_launch.one_launch_source
    monkeypatch.setattr(triton_one_launch, "one_launch_source", lambda *a: texts.append(source(*a)) or texts[-1])
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    world = _World("two_shot", 3, "int4", "bf16", 9000)
    executor = world.executors[1]
    rows = torch.zeros(2, 3, dtype=torch.int64)
    exchanges = {level: ExchangeArgs(ExchangePart(level, 2), rows, 2, 2) for level in (0, 1)}
    control = Control(torch.zeros(16, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), 0, 1000)
    transport: Any = SimpleNamespace(rows=lambda *_: rows, control=lambda: control)
    calls = calls_of(TritonBackend(), transport, world.plans, 1, 3000)
    assert calls.exchanges.keys() == exchanges.keys() and calls.shape.tile == 2048
    executor.one_launch = calls
    for count in (9000, 4097, 0):
        prepared = executor.prepare(count)
        one: Any = prepared.passes[0][0][0]
        parts = [s.part for s in one.steps]
        tail = launches[-1][5]
        assert len(tail) + 2 == len(arguments_of(parts)) and not any(isinstance(v, torch.Tensor) for v in tail)
        for table, step in zip(one.tables, (s for s in one.steps if isinstance(s, LaunchArgs)), strict=True):
            assert len(table) == max(1, 2 * len(step.even)) and len(step.even) == (count > 0) * len(step.odd)
            if count:
                even, odd = table[: len(step.even)], table[len(step.even) :]
                assert torch.equal(even[:, 0], odd[:, 0]) and not torch.equal(even, odd)
    assert len(texts) == 1 and len(launches) == 3
