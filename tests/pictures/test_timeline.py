"""The timeline is the model's arithmetic: with one slice it ends when `predicted` says, and nothing runs twice or at once on one stream."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from coccl_dsl.lang.files import library
from coccl_dsl.pictures import schedule, timeline
from coccl_dsl.pictures.schedule import Schedule
from coccl_dsl.pictures.timeline import (
    STREAMS,
    Timeline,
    fold_bytes,
    launch_time,
    own_level,
    predicted_time,
    simulate_streams,
)
from coccl_dsl.pipeline import load
from coccl_dsl.plan.model import CPU, GPU, predicted
from coccl_dsl.plan.ops import Exchange, Launch
from tests.pictures.drawn import SVG, groups, world_for


def run(s: Schedule, rank: int, slices: int, memory: float | None = None) -> Timeline:
    times = [s.level_times(GPU, k, slices) for k in range(slices)]
    launch = launch_time(s.plans[rank], s.lengths, slices, GPU, memory)
    return simulate_streams(s.plans[rank], slices, lambda i, k: times[k][i].seconds, launch)


@pytest.mark.parametrize("name", library("algorithms"))
def test_one_slice_ends_when_the_model_says(name):
    s = schedule(name, world_for(name, 4))
    for rank, plan in enumerate(s.plans):
        assert run(s, rank, 1).seconds == pytest.approx(predicted(s.level_times(), plan.launches))


@pytest.mark.parametrize("name", ["ring", "two_shot", "halving_doubling", "tree", "two_level"])
@pytest.mark.parametrize("slices", [1, 2, 3, 8])
def test_every_launch_and_exchange_of_every_slice_runs_once_and_in_order(name, slices):
    s = schedule(name, world_for(name, 4))
    t = run(s, 0, slices)
    steps = [x for x in s.plans[0].steps if isinstance(x, Launch | Exchange)]
    assert len(t.blocks) == slices * len(steps)
    for stream in STREAMS:
        own = sorted((b for b in t.blocks if b.stream == stream), key=lambda b: b.start)
        assert all(a.end <= b.start + 1e-15 for a, b in pairwise(own))
    for k in range(slices):
        own = [b for b in t.blocks if b.slice == k]
        assert [b.stream for b in own] == ["compute" if isinstance(x, Launch) else "send" for x in steps]
        assert all(a.end <= b.start + 1e-15 for a, b in pairwise(own))


def test_the_critical_path_leads_without_a_gap_from_the_start_to_the_end():
    t = run(schedule("ring", 4), 0, 4)
    path = sorted(t.critical, key=lambda b: b.start)
    assert path[0].start == 0 and path[-1].end == t.seconds and len(path) < len(t.blocks)
    assert all(a.end == b.start for a, b in pairwise(path))


def test_slices_hide_arithmetic_of_a_large_call_and_cost_latency_in_a_small_one():
    large, small = schedule("ring", 4, count=1 << 28), schedule("ring", 4, count=1 << 18)
    assert run(large, 0, 4, 1e12).seconds < run(large, 0, 1, 1e12).seconds
    assert run(small, 0, 4, 1e12).seconds > run(small, 0, 1, 1e12).seconds


def test_what_folds_read_and_write_is_counted_once():
    s = schedule("two_shot", 4, count=1 << 20)
    first, middle, last = (x for x in s.plans[0].steps if isinstance(x, Launch))
    n = (1 << 20) // 4
    w = s.wire_size(s.trace.messages[0].sent[0])
    assert [fold_bytes(s.plans[0], f, n) for f in first.folds] == [2 * n + w] * 3
    assert fold_bytes(s.plans[0], middle.folds[0], n) == 2 * n + 3 * w + w + 2 * n
    assert fold_bytes(s.plans[0], last.folds[0], n) == w + 2 * n
    with_time, without = run(s, 0, 1, 1e12).seconds, run(s, 0, 1).seconds
    moved = 3 * (2 * n + w) + (4 * n + 4 * w) + 3 * (w + 2 * n)
    assert with_time - without == pytest.approx(moved / 1e12)


def test_the_time_of_a_world_is_that_of_its_slowest_rank():
    s = schedule("tree", 6)
    assert predicted_time(s, GPU) == max(run(s, r, 1).seconds for r in range(6))


def test_bytes_of_slices_add_up():
    from coccl_dsl.plan.cut import piece
    from coccl_dsl.wire.layout import wire_bytes

    s = schedule("two_shot", 3, count=1_000_003)
    w = s.trace.messages[0].sent[0]
    parts = [wire_bytes(s.codecs[w.codec], piece(s.lengths[w.extent], k, 4).length) for k in range(4)]
    assert sum(parts) == s.wire_size(w)


@pytest.mark.parametrize(("name", "n"), [("ring", 4), ("two_shot", 8), ("three_shot", 8), ("two_level", 4)])
def test_a_plan_alone_gives_the_times_of_a_world_in_which_all_ranks_are_alike(name, n):
    s = schedule(name, world_for(name, n), count=1 << 20)
    for slices in (1, 3):
        level = own_level(s.plans[0], s.count, slices, GPU)
        for k in range(slices):
            for i, t in enumerate(s.level_times(GPU, k, slices)):
                assert level(i, k) == pytest.approx(t.seconds)


def test_it_is_valid_svg_that_marks_the_critical_path_and_tells_each_block_in_words():
    s = schedule("ring_q4", 4)
    picture = timeline(s, slices=2)
    blocks = groups(picture.svg, "cc-block")
    t = run(s, 0, 2)
    assert len(blocks) == len(t.blocks) and len(groups(picture.svg, "cc-on-critical-path")) == len(t.critical)
    assert "time, us" in {x.text for x in ET.fromstring(picture.svg).iter(f"{SVG}text")}
    assert picture.text.count(" us  slice ") == len(blocks) and picture.text.isascii()
    assert sum(line.startswith("  *") for line in picture.text.splitlines()) == len(t.critical)
    for x in ET.fromstring(picture.svg).iter(f"{SVG}text"):
        assert float(x.get("font-size", 0)) >= 10


def test_slower_links_take_longer_and_are_named():
    plan = load("two_shot").plan(world(4), 0)
    fast, slow = timeline(plan), timeline(plan, links=CPU)
    assert "340 GB/s" in fast.text and "1 GB/s" in slow.text and fast.text != slow.text


def test_what_does_not_fit_is_refused():
    s = schedule("ring", 3)
    with pytest.raises(ValueError, match="slices=0"):
        timeline(s, slices=0)
    with pytest.raises(ValueError, match="rank=3"):
        timeline(s, rank=3)


def world(n: int):
    from coccl_dsl.pipeline import World

    return World((n,))
