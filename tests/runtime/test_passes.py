"""Calls that need more wire memory than there is run in passes over the same places, and give the same bits."""

from __future__ import annotations

import pytest
import torch
from worlds import bits, inputs, mesh_for

from coccl_dsl import BindError, LocalGroup, simulate
from coccl_dsl.pipeline import World, load, raw_codec
from coccl_dsl.plan.cut import cut
from coccl_dsl.plan.memory import lay_out, passes_of
from coccl_dsl.runtime.op import LocalOp
from coccl_dsl.wire.codec import FRAME

PLANS = ["two_shot", "ring", "one_shot", "halving_doubling", "reduce_scatter_direct", "all_gather_direct", "sdp4bit"]
ARENA = 410_000


def bound(name: str, count: int, **options) -> tuple[LocalOp, dict]:
    c = load(name)
    mesh = mesh_for(c, (2, 2))
    return c.bind(LocalGroup(4), like=torch.empty(count), mesh=mesh, **options), {"mesh": mesh}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("depth", [1, 2])
def test_passes_change_no_bit(name, depth):
    largest = 7 * FRAME * 4
    arena = bound(name, largest, depth=depth)[0].ops[0]._executor.layout.size // 3
    op, options = bound(name, largest, arena_bytes=arena, depth=depth)
    layout = op.ops[0]._executor.layout
    assert layout.passes > 1 and layout.size <= arena
    used = set()
    for count in (0, 4, 4 * 129, 2 * FRAME, largest - 4 * 300, largest):
        xs = inputs(4, count, torch.float32, seed=count)
        got = op(xs)
        for a, b in zip(got, simulate(load(name), xs, **options), strict=True):
            assert torch.equal(bits(a), bits(b)), count
        used.add(len(op.ops[0]._executor.prepare(count).passes))
    assert min(used) == 1 < max(used) <= layout.passes, "short calls run in one pass"


def test_passes_in_place_and_with_state():
    largest = 6 * FRAME
    op, _ = bound("two_shot", largest, arena_bytes=ARENA, q="error_feedback(int4)")
    whole, _ = bound("two_shot", largest, q="error_feedback(int4)")
    for call in range(3):
        xs = inputs(4, largest, torch.float32, seed=call)
        want = whole([x.clone() for x in xs])
        got = op(xs, outs=xs)
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(got, want, strict=True))


def test_uneven_splits_take_all_passes_whatever_a_rank_sees():
    c = load("all_to_all_direct")
    splits = [[5 * FRAME, 3, 0, 70], [9, 1, FRAME, 2], [0, 0, 0, 0], [4, 4, 4, 4 * FRAME]]
    capacity = 4 * 5 * FRAME
    op = c.bind(LocalGroup(4), like=torch.empty(capacity), arena_bytes=4 * 3 * 40_000)
    xs = [torch.randn(sum(row)) for row in splits]
    whole = c.bind(LocalGroup(4), like=torch.empty(capacity))
    for a, b in zip(op(xs, splits=splits), whole(xs, splits=splits), strict=True):
        assert torch.equal(bits(a), bits(b))
    passes = {
        len(o._executor.prepare(sum(splits[r]), (tuple(splits[r]), tuple(s[r] for s in splits))).passes)
        for r, o in enumerate(op.ops)
    }
    assert passes == {op.ops[0]._executor.layout.passes} != {1}


def test_the_number_of_passes_is_the_same_on_all_ranks():
    c = load("halving_doubling")
    ops, _ = bound("halving_doubling", 9 * FRAME, arena_bytes=ARENA)
    for count in (1, FRAME, 3 * FRAME + 5, 9 * FRAME):
        assert len({len(o._executor.prepare(count).passes) for o in ops.ops}) == 1, (c.name, count)


def test_an_arena_too_small_for_a_frame_is_refused():
    with pytest.raises(BindError, match="bytes of wire memory, there are 1000"):
        bound("two_shot", 100 * FRAME, arena_bytes=1000)
    with pytest.raises(BindError, match="arena_bytes=-1: a number of bytes is wanted"):
        bound("two_shot", 100, arena_bytes=-1)


def test_places_stay_within_the_limit_and_do_not_overlap():
    c = load("two_shot")
    world = World((4,), 0, "sum")
    trace = c.trace(world, dtype="bf16", compressors={})
    plan = c.plan(world, 1, dtype="bf16", compressors={}, trace=trace, fuse=True)
    for limit in (1 << 19, 1 << 21, 1 << 24):
        made = lay_out(plan, raw_codec("bf16"), 1 << 24, 2, limit=limit)
        flat = [o for row in made.offsets for o in row]
        assert flat == sorted(set(flat)) and flat[-1] < made.size <= limit
        assert passes_of(made, cut(plan, 1 << 24), False) <= made.passes
