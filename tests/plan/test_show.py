"""Plans as people and programs read them: the printed text is kept, the summary's figures add up, JSON holds all but the graphs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from coccl_dsl.pipeline import Collective, World, compile
from coccl_dsl.plan import show
from coccl_dsl.plan.ops import SCHEMA, Exchange, Launch, Plan
from coccl_dsl.wire.layout import wire_bytes

KEPT = [
    ("ring_q4", (4,), 0),
    ("two_shot", (4,), 0),
    ("three_shot", (2, 2), 0),
    ("sdp4bit", (2, 2), 0),
    ("halving_doubling", (5,), 0),
    ("halving_doubling", (5,), 4),
]


def plan_of(name: str, sizes: tuple[int, ...], rank: int = 0, **more: str) -> Plan:
    return compile(name, **more).plan(World(sizes), rank, dtype="bf16")


@pytest.mark.parametrize(("name", "sizes", "rank"), KEPT)
def test_plans_read_as_they_are_kept(golden, name, sizes, rank):
    plan = plan_of(name, sizes, rank)
    kept = f"plan/{name}_{'x'.join(map(str, sizes))}_rank{rank}"
    golden.check(kept, show.summary(plan, 100_000) + "\n\n" + show.text(plan))


def test_bytes_are_those_of_the_frames_that_are_sent():
    plan = plan_of("two_shot", (4,))
    sent, plain = show.sent_bytes(plan, 4 * 128 * 100)
    assert sent == 6 * wire_bytes(plan.codecs["q"], 128 * 100)
    assert plain == 6 * 128 * 100 * 2
    assert "6 sent, 6 received, in 2 steps" in show.summary(plan)
    assert f"{sent:,} of {plain:,} uncompressed, {plain / sent:.2f}x less" in show.summary(plan, 4 * 128 * 100)


def test_trailing_chunks_that_are_empty_cost_nothing():
    assert show.sent_bytes(plan_of("two_shot", (4,)), 0) == (0, 0)
    assert (
        show.sent_bytes(plan_of("two_shot", (4,)), 100)[0] < wire_bytes(plan_of("two_shot", (4,)).codecs["q"], 100) * 6
    )


def test_scratch_counts_whole_blocks_of_its_basis():
    plan = plan_of("sdp4bit", (2, 2))
    assert len(plan.scratch) == 1
    assert show.scratch_bytes(plan, 4 * 33) == 4 * 64
    assert "scratch" in show.summary(plan) and f"{4 * 64:,} bytes" in show.summary(plan, 4 * 33)


def test_a_count_that_a_reduce_scatter_cannot_take_is_rounded_down():
    plan = plan_of("reduce_scatter_direct", (3,))
    assert show.fitting(plan, 100) == 99
    assert "for 99 bf16 elements" in show.summary(plan, 100)


def test_the_summary_names_lossy_steps_where_they_are_known():
    plan = plan_of("ring_q4", (4,))
    assert "lossy" not in show.summary(plan)
    assert "4 on the worst path" in show.summary(plan, lossy=4)


@pytest.mark.parametrize(
    ("sent", "plain", "told"),
    [(100, 200, "2.00x less"), (200, 100, "2.00x more"), (0, 0, "nothing is sent"), (1001, 1000, "the same")],
)
def test_ratios_are_told_in_words(sent, plain, told):
    assert show.ratio(sent, plain) == told


def test_state_is_shown_where_it_is_read_and_where_it_is_kept():
    plan = plan_of("ring_q4", (2,), q="error_feedback(int4)")
    told = show.text(plan)
    assert "with state (site 0, chunk 0, compressed on rank 0)" in told
    assert "state error : f32 sender" in told and "commit" in told
    received = show.text(plan_of("ring", (2,), q="weight_delta4"))
    assert "updates state" in received


def test_a_bare_send_is_shown_as_the_tensors_dtype():
    from coccl_dsl.pipeline import compile_text

    text = """collective plain : all_gather {
      ranks r of n
      in x
      out y[n]
      y[r] = x
      for p in range(1, n) { send x to (r + p) mod n as w   y[(r - p) mod n] = w }
    }"""
    plan = compile_text(text).plan(World((2,)), 0)
    told = show.text(plan)
    assert "(bare send) = raw(group=8)" in told and "w0 (bf16, chunk 0)" in told


def test_mapped_peers_are_shown_as_stores_and_signals():
    collective: Collective = compile("two_shot")
    world = World((2,))
    plans = collective.mapped_plans(world, dtype="bf16", compressors={}, trace=collective.trace(world))
    told = show.text(plans[0])
    assert "w0 at 1 <- input[1]" in told and "signal 1" in told and "await 1" in told
    assert json.loads(json.dumps(show.to_json(plans[0])))["mapped"] == [1]


@pytest.mark.parametrize(("name", "sizes"), [("ring_q4", (4,)), ("sdp4bit", (2, 2)), ("halving_doubling", (5,))])
def test_json_holds_every_step_wire_and_buffer(name, sizes):
    plan = plan_of(name, sizes)
    read = json.loads(json.dumps(show.to_json(plan)))
    assert read["schema"] == SCHEMA
    assert len(read["steps"]) == len(plan.steps)
    folds = [f for s in read["steps"] if s["do"] == "launch" for f in s["folds"]]
    assert len(folds) == sum(len(s.folds) for s in plan.steps if isinstance(s, Launch))
    sent = [w for s in read["steps"] if s["do"] == "exchange" for t in s["sends"] for w in t["wires"]]
    assert sent == [w for s in plan.steps if isinstance(s, Exchange) for t in s.sends for w in t.wires]
    assert {w["id"] for w in read["wires"]} == set(plan.wires)
    assert {m["id"] for slot in read["slots"] for m in slot if m["kind"] == "scratch"} == set(plan.scratch)
    for key, codec in plan.codecs.items():
        assert read["codecs"][key]["name"] == codec.name
        assert [f["name"] for f in read["codecs"][key]["fields"]] == [f.name for f in codec.fields]


def test_showing_a_plan_imports_no_torch():
    code = (
        "import sys; from coccl_dsl.pipeline import World, compile; from coccl_dsl.plan import show;"
        "p = compile('ring_q4').plan(World((4,)), 0); show.text(p), show.summary(p), show.to_json(p);"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
