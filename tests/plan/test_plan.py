"""Structure of plans: launches, levels, memory, placement, credits. No device is needed."""

from __future__ import annotations

import pytest

from coccl_dsl.lang.files import library
from coccl_dsl.pipeline import World, load, raw_codec
from coccl_dsl.plan.credits import assign_credits
from coccl_dsl.plan.memory import lay_out
from coccl_dsl.plan.ops import Exchange, Launch
from coccl_dsl.plan.schedule import make_plan
from coccl_dsl.plan.verify import PlanError, verify, verify_world


def worlds_for(c):
    return [(2,)] if c.kind == "send_recv" else [(2, 2), (2, 4), (3, 2)] if c.axes else [(2,), (3,), (4,), (5,), (8,)]


def plans_of(c, sizes, **options):
    trace = c.trace(World(sizes))
    return [verify(make_plan(c.program(), trace, r, raw_codec("bf16"), **options)) for r in range(trace.world)]


@pytest.mark.parametrize("name", library("algorithms"))
@pytest.mark.parametrize("apart", [False, True])
def test_every_shipped_plan_verifies_on_every_rank(name, apart):
    c = load(name)
    for sizes in worlds_for(c):
        verify_world(plans_of(c, sizes, apart=apart))


@pytest.mark.parametrize(
    "name,sizes,launches",
    [
        ("two_shot", (8,), 3),
        ("one_shot", (8,), 2),
        ("ring", (8,), 9),
        ("reduce_scatter_direct", (8,), 2),
        ("all_gather_direct", (8,), 2),
        ("halving_doubling", (8,), 5),
        ("three_shot", (2, 4), 5),
        ("sdp4bit", (2, 4), 4),
        ("all_gather_mesh", (2, 4), 2),
    ],
)
def test_launches_a_slice(name, sizes, launches):
    assert {p.launches for p in plans_of(load(name), sizes)} == {launches}


def test_one_launch_serves_all_peers_and_all_ends():
    plan = plans_of(load("two_shot"), (8,))[0]
    launches = [s for s in plan.steps if isinstance(s, Launch)]
    assert [len(s.folds) for s in launches] == [7, 1, 7]
    assert len(launches[1].folds[0].opened) == 7


def test_ring_reuses_memory_across_levels():
    plan = plans_of(load("ring"), (8,))[0]
    assert len(plan.slots) < len(plan.wires) / 2


@pytest.mark.parametrize("name", [n for n in library("algorithms")])
def test_mapped_peers_get_stores_and_signals(name):
    c = load(name)
    for sizes in worlds_for(c)[:3]:
        trace = c.trace(World(sizes))
        n = trace.world
        plans = [
            verify(make_plan(c.program(), trace, r, raw_codec("bf16"), "sum", frozenset(range(n)) - {r}))
            for r in range(n)
        ]
        for p in plans:
            stored = {
                (x.peer, x.level, x.position)
                for s in p.steps
                if isinstance(s, Launch)
                for f in s.folds
                for x in f.remote
            }
            stored |= {(x.peer, x.level, x.position) for s in p.steps if isinstance(s, Exchange) for _, x in s.copies}
            sent: set[tuple[int, int, int]] = set()
            for s in p.steps:
                count: dict[int, int] = {}
                for t in s.sends if isinstance(s, Exchange) else ():
                    assert t.direct
                    for _ in t.wires:
                        sent.add((t.peer, s.level, count.get(t.peer, 0)))
                        count[t.peer] = count.get(t.peer, 0) + 1
            assert stored == sent, "every wire is stored exactly where its receiver expects it"
            direct = [w for s in p.steps if isinstance(s, Exchange) for t in s.recvs for w in t.wires]
            slots = [p.wires[w].slot for w in direct]
            assert len(set(slots)) == len(slots) and all(len(p.slots[s]) == 1 for s in slots), "stores come at any time"


@pytest.mark.parametrize(
    "name,sizes,needed",
    [
        ("two_shot", (2,), 0),
        ("two_shot", (4,), 0),
        ("ring", (4,), 0),
        ("three_shot", (2, 2), 0),
        ("all_gather_direct", (4,), 3),
        ("reduce_scatter_direct", (3,), 2),
        ("all_to_all_direct", (4,), 3),
        ("one_shot", (3,), 2),
    ],
)
def test_credits_are_kept_only_where_nothing_else_orders_the_reuse(name, sizes, needed):
    c = load(name)
    trace = c.trace(World(sizes))
    n = trace.world
    plans = assign_credits(
        [make_plan(c.program(), trace, r, raw_codec("bf16"), "sum", frozenset(range(n)) - {r}) for r in range(n)]
    )
    assert {len(p.credits.awaits) for p in plans if p.credits} == {needed}
    granted = {(r, g) for r, p in enumerate(plans) if p.credits for g in p.credits.grants}
    awaited = {(a, r) for r, p in enumerate(plans) if p.credits for a in p.credits.awaits}
    assert granted == awaited


@pytest.mark.parametrize(
    "name,sizes,levels",
    [
        ("two_shot", (4,), {1}),
        ("two_shot", (2,), {0, 1}),
        ("one_shot", (3,), {0}),
        ("all_gather_direct", (5,), {0}),
        ("reduce_scatter_direct", (3,), set()),
        ("all_to_all_direct", (2,), set()),
        ("ring", (3,), set()),
        ("three_shot", (2, 2), {2}),
        ("tree_broadcast", (4,), set()),
    ],
)
def test_levels_that_are_all_gathers_are_found_and_their_wires_lie_side_by_side(name, sizes, levels):
    c = load(name)
    trace = c.trace(World(sizes))
    for rank in range(trace.world):
        plan = c.plan(World(sizes), rank, trace=trace, collectives=True)
        gathers = {s.level: s.gather for s in plan.steps if isinstance(s, Exchange) and s.gather}
        assert gathers.keys() == levels
        layout = lay_out(plan, raw_codec("bf16"), 120_000, 2)
        for wires in gathers.values():
            assert len(wires) == trace.world
            assert len({plan.wires[w].extent for w in wires}) in (1, trace.world)
            for row in layout.offsets:
                at = [row[plan.wires[w].slot] for w in wires]
                assert len({b - a for a, b in zip(at, at[1:], strict=False)}) <= 1 and at == sorted(at)
        assert not any(isinstance(s, Exchange) and s.gather for s in c.plan(World(sizes), rank, trace=trace).steps)


def test_verify_finds_a_broken_plan():
    from dataclasses import replace

    plan = plans_of(load("two_shot"), (3,))[0]
    with pytest.raises(PlanError, match="before it is there"):
        verify(replace(plan, steps=plan.steps[1:]))
    with pytest.raises(PlanError, match="made twice"):
        verify(replace(plan, steps=(plan.steps[0], *plan.steps)))
    with pytest.raises(PlanError):
        verify(
            replace(
                plan,
                slots=(tuple(m for s in plan.slots for m in s),),
                wires={k: replace(w, slot=0) for k, w in plan.wires.items()},
            )
        )
