"""Plans run by the executor equal `simulate`, which knows nothing of plans: whatever the slices, the fusing, the form of the call."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import inputs, mesh_for, same

from coccl_dsl import LocalGroup, compile_text, simulate
from coccl_dsl.lang.files import library
from coccl_dsl.pipeline import load

WORLDS = {True: [(2, 2), (2, 3)], False: [(2,), (3,), (5,)]}


def sizes_for(c) -> list[tuple[int, ...]]:
    return [(2,)] if c.kind == "send_recv" else WORLDS[bool(c.axes)]


def run(c, xs, sizes, outs=None, **options):
    op = c.bind(LocalGroup(len(xs)), like=xs[0], mesh=mesh_for(c, sizes), **options)
    return op(xs, outs)


def check(c, xs, sizes, kind="sum", compressors=None, **options):
    bound = dict.fromkeys(c.program().codecs, compressors) if compressors else {}
    want = simulate(c, xs, mesh=mesh_for(c, sizes), op=kind, **bound)
    got = run(c, xs, sizes, op=kind, **bound, **options)
    for r, (a, b) in enumerate(zip(want, got, strict=True)):
        if c.kind == "send_recv" and r == 0 or c.kind == "reduce" and r:
            continue
        assert same(a, b), (c.name, sizes, compressors, options, r)


@pytest.mark.parametrize("name", library("algorithms"))
@pytest.mark.parametrize("compressor", ["int8", "int4_h32(group=64)", "raw"])
def test_plans_equal_simulate(name, compressor):
    c = load(name)
    for sizes, dtype in zip(itertools.cycle(sizes_for(c)), (torch.float32, torch.bfloat16, torch.float16)):
        n = torch.tensor(sizes).prod().item()
        for count in (0, 1, 130, 4100):
            check(c, inputs(n, count * n, dtype, count), sizes, compressors=compressor)


@pytest.mark.parametrize("name", library("algorithms"))
def test_slices_and_fusing_change_no_bit(name):
    c = load(name)
    sizes = sizes_for(c)[0]
    n = torch.tensor(sizes).prod().item()
    xs = inputs(n, 40000 * (1 if c.kind == "all_gather" else n), torch.bfloat16)
    for depth, fuse in ((2, True), (3, True), (1, False), (2, False)):
        check(c, xs, sizes, compressors="int4(round=stochastic)", depth=depth, fuse=fuse)


@pytest.mark.parametrize("name", ["ring", "two_shot", "one_shot", "halving_doubling", "three_shot", "tree_broadcast"])
def test_in_place_equals_out_of_place(name):
    c = load(name)
    sizes = sizes_for(c)[-1]
    n = torch.tensor(sizes).prod().item()
    xs = inputs(n, 3000, torch.float32)
    want = simulate(c, xs, mesh=mesh_for(c, sizes))
    own = [x.clone() for x in xs]
    run(c, own, sizes, own)
    assert all(same(a, b) for a, b in zip(want, own, strict=True))


@pytest.mark.parametrize("kind", ["avg", "premul(0.3)"])
@pytest.mark.parametrize("name", ["two_shot", "ring", "reduce_scatter_direct", "sdp4bit"])
def test_the_op_multiplies_each_contribution(name, kind):
    c = load(name)
    sizes = sizes_for(c)[0]
    n = torch.tensor(sizes).prod().item()
    xs = inputs(n, 2000 * n, torch.float32)
    check(c, xs, sizes, kind=kind)
    exact = torch.stack(xs).double().sum(0) * (1 / n if kind == "avg" else 0.3)
    got = torch.cat(run(c, xs, sizes, op=kind)) if c.kind == "reduce_scatter" else run(c, xs, sizes, op=kind)[0]
    assert float((got.double() - exact).norm() / exact.norm()) < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_group_of_one_returns_the_input_times_the_factor(dtype):
    for name in ("two_shot", "all_gather_direct", "reduce_scatter_direct", "tree_broadcast"):
        c = load(name)
        x = torch.randn(77).to(dtype)
        assert same(run(c, [x], (1,))[0], x)
        scaled = run(c, [x], (1,), op="premul(0.5)")[0]
        assert same(scaled, (x.float() * 0.5).to(dtype)) and same(scaled, simulate(c, [x], op="premul(0.5)")[0])


def test_one_op_takes_any_count_up_to_its_capacity():
    c = load("two_shot")
    op = c.bind(LocalGroup(3), like=torch.empty(40000), depth=2)
    for count in (40000, 5, 0, 32769, 39999, 1):
        xs = inputs(3, count, torch.float32, count)
        assert all(same(a, b) for a, b in zip(simulate(c, xs), op(xs), strict=True))
    with pytest.raises(ValueError, match="capacity"):
        op(inputs(3, 40001, torch.float32))


def test_state_starts_afresh_when_the_count_changes():
    c = load("two_shot")
    op = c.bind(LocalGroup(2), like=torch.empty(4000), q="error_feedback(int4)")
    op(inputs(2, 4000, torch.float32))
    xs = inputs(2, 3000, torch.float32, 1)
    assert all(same(a, b) for a, b in zip(simulate(c, xs, q="error_feedback(int4)"), op(xs), strict=True))


@settings(max_examples=12)
@given(
    st.integers(2, 6),
    st.integers(0, 700),
    st.sampled_from(["int8", "int4(group=32)", "bf16", "int8_h32(group=64)"]),
    st.integers(1, 4),
)
def test_random_worlds_counts_and_compressors(n, count, compressor, depth):
    check(load("ring"), inputs(n, count, torch.float32, count), (n,), compressors=compressor, depth=depth)
    check(load("halving_doubling"), inputs(n, count, torch.bfloat16, count), (n,), compressors=compressor, depth=depth)


SWAPPED = """
use "int8.comp"
collective swapped : all_reduce {
  ranks r of n
  inout buf[2]
  compressor q = int8(group=32)
  scratch t[2]
  wire u[2] : q
  t[0] = buf[0]
  t[1] = buf[1]
  for p in range(1, n) {
    send compress(q, buf[:]) to (r + p) mod n as w
    t[:] += decompress(w)
  }
  let v = compress(q, t[:])
  when r == 0 { buf[:] = decompress(v) }
  for p in range(1, n) {
    when r == 0 { send v to p as u[:] }
  }
  when r > 0 { buf[:] = decompress(u[:]) }
}
"""


def test_scratch_and_an_input_read_again_after_it_was_sent():
    c = compile_text(SWAPPED, "swapped.coll")
    xs = inputs(3, 999, torch.float32)
    check(c, xs, (3,))
    own = [x.clone() for x in xs]
    run(c, own, (3,), own)
    assert all(same(a, b) for a, b in zip(simulate(c, xs), own, strict=True))
