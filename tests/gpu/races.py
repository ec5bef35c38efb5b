"""Race tests of the symm transport: random sleeps before every kernel, drained wires overwritten, no host synchronisation for 200 calls.

Each argument is PLAN[+PLAN...][*|^][/DEPTH][@ARENA][!WAIT]. ^: calls are one launch each, whose programs sleep up to 0.1 ms before and after
every exchange. *: the ops replay graphs of their own, whose sleeps are those of the captured call,
beside random ones between calls. @ARENA: the ops share a session's arena of so many KiB, and run in passes where it is
small. With `!level:K`, `!credits` or `!turns` (of a shared arena; with ^ the two places of a wire become one) that wait is removed, and results
must then be wrong.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
import triton
import triton.language as tl
from workers import bits, inputs, mesh_for, start

from coccl_dsl import simulate
from coccl_dsl.codegen import signals
from coccl_dsl.codegen.signals import sleep
from coccl_dsl.pipeline import load
from coccl_dsl.plan.ops import Credits, Exchange, Launch
from coccl_dsl.runtime.executor import ExchangeCall
from coccl_dsl.runtime.session import open_session

CALLS = 200
LONGEST_NS = 2_000_000
_now, _meet = signals._now, signals.meet


@triton.jit
def _nap(program):
    start = _now()
    end = start + (start // 32 * 7919 + program * 104729) % 100000
    now = _now()
    while now < end:
        now = _now()


@triton.jit
def sleepy_meet(rows, told, waits, level, program, turn, status, number, deadline_ms, PEERS: tl.constexpr):
    _nap(program)
    _meet(rows, told, waits, level, program, turn, status, number, deadline_ms, PEERS)
    _nap(program)


class Chaos:
    """Wraps an op: sleeps before kernels and between calls, poisons received wires after their last reader."""

    def __init__(self, op, seed: int, longest: int = LONGEST_NS):
        self.op, self.random, self.longest = op, random.Random(seed), longest
        self.executor = op._executor
        prepare = self.executor._prepare

        def wrapped(count, splits, first):
            made = prepare(count, splits, first)
            for slices in made.passes:
                for k, steps in enumerate(slices):
                    steps[:] = self._wrap(steps, k)
            return made

        self.executor._prepare = wrapped
        self.executor._prepared.clear()
        transport = op.transport
        for name in ("begin", "end", "_signal"):
            setattr(transport, name, self._sleepy(getattr(transport, name)))

    def pause(self) -> None:
        """0 - 2 ms, often 0: so that one rank can be far ahead of another."""
        if self.random.random() < 0.4:
            sleep[(1,)](self.random.randrange(self.longest), num_warps=1)

    def _sleepy(self, call):
        def run(*arguments):
            self.pause()
            return call(*arguments)

        return run

    def _wrap(self, steps, k: int):
        plan = self.executor.plan
        if self.executor.one_launch is not None:
            received = {w for s in plan.steps if isinstance(s, Exchange) for t in s.recvs for w in t.wires}

            def poison() -> None:
                for w in received:
                    self._bytes(w, self.executor.calls % 2).fill_(0xFF)

            return [_Beside(self.pause), *steps, _Beside(poison)]
        last: dict[int, int] = {}
        direct: set[int] = set()
        for at, step in enumerate(plan.steps):
            if isinstance(step, Launch):
                for f in step.folds:
                    for o in f.opened:
                        last[o.wire] = at
            elif isinstance(step, Exchange):
                for w, _ in step.copies:
                    last[w] = at
                direct |= {w for t in step.recvs if t.direct for w in t.wires}
        kept = [at for at, s in enumerate(plan.steps) if isinstance(s, Launch | Exchange)]
        assert len(kept) == len(steps), "counts are chosen so that no launch is empty"
        made = []
        for at, step in zip(kept, steps, strict=True):
            if isinstance(step, ExchangeCall):
                made.append(step)
                continue
            drained = [w for w, where in last.items() if where == at and w in direct]
            made += [_Beside(self.pause), step, _Beside(*(partial(self._bytes(w, k).fill_, 0xFF) for w in drained))]
        return made

    def _bytes(self, wire: int, k: int) -> torch.Tensor:
        slot, offsets = self.executor.plan.wires[wire].slot, self.executor.layout.offsets[k]
        rows = self.executor.layout.offsets
        after = self.executor.layout.size if k + 1 == len(rows) or rows[k + 1] is rows[k] else rows[k + 1][0]
        end = min((o for o in offsets if o > offsets[slot]), default=after)
        return self.executor.arena[offsets[slot] : end]


class _Beside:
    """A step that touches neither x nor y."""

    user_kernel = None

    def __init__(self, *work):
        self.work = work

    def run(self, x, y) -> None:
        for one in self.work:
            one()


def break_op(op, what: str) -> None:
    """Remove one wait, or the credits, on purpose."""
    transport = op.transport
    one = op._executor.one_launch
    if one is not None and what == "turns":
        layout, remote = op._executor.layout, op._executor.remote
        op._executor.layout = replace(layout, offsets=(layout.offsets[0],) * 2, size=layout.size // 2)
        remote |= {(1, where): place for (k, where), place in remote.items() if k == 0}
        return
    if one is not None:
        level = int(what.removeprefix("level:"))
        one.exchanges[level] = replace(one.exchanges[level], waits=0)
        return
    if what == "turns":
        begin, transport.reuses = transport.begin, False

        def without_turns():
            transport.memory.user = transport
            begin()

        transport.begin = without_turns
        return
    if what == "credits":
        awaited = [0] * dist.get_world_size()  # the receiver of a send_recv awaits none
        dist.all_gather_object(awaited, len(transport.credits.awaits))
        assert any(awaited), "this plan has no credits to remove"
        transport.credits = Credits((), ())
        return
    level = int(what.removeprefix("level:"))
    signal = transport._signal

    def without(at, slice, signals, waits):
        if at == level and waits:
            if signals:
                signal(at, slice, signals, ())
            return
        signal(at, slice, signals, waits)

    transport._signal = without


def prepared_cases(
    names: list[str], n: int, device: torch.device, depth: int, arena: int, broken: str, graphs: bool, one: bool
):
    cases = []
    session = open_session(dist.group.WORLD, device, arena_bytes=arena << 10, transport="symm") if arena else None
    for i, name in enumerate(names):
        c = load(name)
        mesh = mesh_for(c, n)
        count = 40000 * n * depth
        bound = dict.fromkeys(c.program().codecs, "int8" if i % 2 == 0 else "int4")
        xs = [inputs(n, count, torch.bfloat16, 10 * i + s, device) for s in range(4)]
        want = [simulate(c, x, mesh=mesh, **bound)[dist.get_rank()] for x in xs]
        if session is not None:
            op = session.bind(c, dtype=torch.bfloat16, capacity=count, mesh=mesh, depth=depth, compressors=bound)
        else:
            options = {"depth": depth, "graphs": graphs, "one_launch": one}
            op = c.bind(like=xs[0][0], mesh=mesh, transport="symm", **options, **bound)
        if broken:
            break_op(op, broken)
        chaos = Chaos(op, 1000 * dist.get_rank() + i)
        cases.append((chaos, op, [x[dist.get_rank()] for x in xs], want))
    return cases


def run(
    names: list[str], calls: int, depth: int, arena: int, broken: str, device: torch.device, graphs: bool, one: bool
) -> int:
    """Number of wrong outputs of all ranks; the ops are called in turn."""
    cases = prepared_cases(names, dist.get_world_size(), device, depth, arena, broken, graphs, one)
    for _, op, xs, _ in cases:
        op(xs[0])
    torch.cuda.synchronize()
    dist.barrier()
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for call in range(calls):
        chaos, op, xs, want = cases[call % len(cases)]
        which = (call // len(cases)) % len(xs)
        if graphs:
            chaos.pause()
        got = op(xs[which])
        if not (op.collective.kind == "send_recv" and dist.get_rank() == 0):
            wrong += (bits(got) != bits(want[which])).any()
    torch.cuda.synchronize()
    assert not graphs or all(op.graphs.replays > calls // len(cases) - 4 for _, op, _, _ in cases), "not replayed"
    gathered: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(gathered, int(wrong))
    return sum(gathered)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("specs", nargs="+")
    p.add_argument("--calls", type=int, default=CALLS)
    a = p.parse_args()
    device = start(60)
    failed = []
    for spec in a.specs:
        rest, _, broken = spec.partition("!")
        rest, _, arena = rest.partition("@")
        plans, _, depth = rest.partition("/")
        graphs, one, plans = "*" in plans, "^" in plans, plans.strip("*^")
        signals.meet = sleepy_meet
        began = time.perf_counter()
        wrong = run(plans.split("+"), a.calls, int(depth or 1), int(arena or 0), broken, device, graphs, one)
        if bool(wrong) != bool(broken):
            failed.append(spec)
        if dist.get_rank() == 0:
            print(
                f"{spec:<40} {wrong:>4} wrong of {a.calls * dist.get_world_size()}   {time.perf_counter() - began:.1f} s",
                flush=True,
            )
    assert not failed, f"not as it must be: {failed}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
