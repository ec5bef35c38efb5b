"""Each operation of the compressor IR, on the values where implementations differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coccl_dsl.codegen.evaluate import _OPS, Batch
from coccl_dsl.lang.parse import parse_binding
from coccl_dsl.wire import codec as ir
from coccl_dsl.wire.compile import compile_codec
from coccl_dsl.wire.scope import Scope, bind

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CODEC = compile_codec(bind(parse_binding("int8(group=8)"), Scope()), "f32")
NAN, INF = math.nan, math.inf


def run(
    op: str, *args: list, attr: tuple = (), kind: str = "", scope: str = "array", length: int = 8, device="cpu", live=8
):
    """Evaluate one node whose arguments are the fields a0, a1, ... of one group of 8."""
    graph, fields, leaves = ir.Graph(), {}, []
    for i, v in enumerate(args):
        t = torch.tensor(v, dtype=torch.float32 if isinstance(v[0], float) else None, device=device)
        t = t.to(torch.int32) if t.dtype == torch.int64 else t
        name = {torch.float32: "f32", torch.int32: "i32", torch.bool: "bool"}[t.dtype]
        fields[f"a{i}"] = t.view(1, 1, -1)
        where = "array" if len(v) > 1 else "group"
        leaves.append(graph.node("field", (), (f"a{i}",), kind=name, scope=where, length=len(v) if len(v) > 1 else 0))
    node = graph.node(
        op, tuple(leaves), attr, kind=kind or leaves[0].kind, scope=scope, length=length if scope == "array" else 0
    )
    mask = None if live == 8 else (torch.arange(8, device=device) < live).view(1, 1, 8)
    batch = Batch(CODEC, 1, 1, torch.device(device), mask, fields=fields)
    return batch.value(node).reshape(-1).cpu()


def listed(*args, **kw) -> list:
    return run(*args, **kw).tolist()


def same(got: torch.Tensor, want) -> None:
    g, w = got.numpy(), np.asarray(want, np.float32)
    np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
    np.testing.assert_array_equal(g.view(np.uint32)[~np.isnan(w)], w.view(np.uint32)[~np.isnan(w)])


def test_every_operation_of_the_table_is_there():
    table = [
        line.split("|")[1]
        for line in (ir.__doc__ or "").splitlines()
        if line.startswith("| ") and "->" not in line.split("|")[1]
    ]
    named = {op for cell in table for op in cell.replace(",", " ").split()} - {"op"}
    assert named == set(_OPS)


@pytest.mark.parametrize("device", DEVICES)
def test_square_roots_and_quotients_are_correctly_rounded(device):
    bits = np.random.default_rng(0).integers(1, 0x7F800000, 1 << 16).astype(np.int32)
    v = bits.view(np.float32).tolist()
    w = np.roll(bits, 1).view(np.float32).tolist()
    a, b = np.float32(v), np.float32(w)
    with np.errstate(all="ignore"):
        same(run("sqrt", v, length=len(v), device=device), np.sqrt(a))
        same(run("rcp", v, length=len(v), device=device), np.float32(1) / a)
        same(run("rsqrt", v, length=len(v), device=device), np.float32(1) / np.sqrt(a))
        same(run("div", v, w, length=len(v), device=device), a / b)
        same(run("mul", v, w, length=len(v), device=device), a * b)


@pytest.mark.parametrize("device", DEVICES)
def test_minimum_and_maximum_lose_nan_and_order_zeros(device):
    a, b = [NAN, 1.0, 0.0, -0.0, -INF, NAN, 2.0, -3.0], [1.0, NAN, -0.0, 0.0, 5.0, NAN, 2.0, -4.0]
    same(run("max2", a, b, device=device), [1, 1, 0.0, 0.0, 5, NAN, 2, -3])
    same(run("min2", a, b, device=device), [1, 1, -0.0, -0.0, -INF, NAN, 2, -4])
    assert listed("max2", [1, -5] * 4, [0, 7] * 4) == [1, 7] * 4
    same(run("rmax", [-0.0, NAN, -3.0, 0.0, -0.0, -1.0, 9.0, 9.0], scope="group", live=6, device=device), [0.0])
    same(run("rmin", [0.0, NAN, 3.0, -0.0, 0.0, 1.0, -9.0, -9.0], scope="group", live=6, device=device), [-0.0])
    same(run("rmax", [NAN] * 8, scope="group"), [-INF])
    same(run("rmin", [NAN] * 8, scope="group"), [INF])


def test_rounding_is_exact_at_every_size():
    v = [0.5, 1.5, 2.5, -0.5, 8388607.5, 3e38, -4194304.5, NAN]
    same(run("round", v), [0, 2, 2, -0.0, 8388608, 3e38, -4194304, NAN])
    same(run("floor", v), [0, 1, 2, -1, 8388607, 3e38, -4194305, NAN])
    same(run("sign", [-2.0, 0.0, -0.0, 5.0, INF, -INF, NAN, 1e-45]), [-1, 0, 0, 1, 1, -1, 0, 1])


def test_quantize_clamps_before_it_rounds():
    v = [-9.0, -2.5, 2.5, 3.5, 6.6, INF, NAN, -INF]
    low, high = [-7] * 8, [7] * 8
    assert listed("quantize", v, low, high, kind="i32") == [-7, -2, 2, 4, 7, 7, -7, -7]
    u = [0.0, 0.49, 0.5, 0.51, 0.9, 0.0, 0.0, 0.0]
    assert listed("quantize", v, low, high, u, kind="i32") == [-7, -2, 2, 3, 6, 7, -7, -7]


def test_exponent_and_ldexp():
    v = [1.0, 0.75, 0.0, 1e-45, INF, NAN, -8.0, 2.0**-126]
    assert listed("exponent", v, kind="i32") == [0, -1, -127, -127, 128, 128, 3, -126]
    i = [3, -200, 252, 1000, -1000, 127, -149, 0]
    by = [1.0, 1.0, 2.0**-126, 2.0**-149, 3e38, 1.5, 1.0, NAN]
    want = [8, 0, 2.0**126, 2.0**103, 3e38 * 2.0**-252, 1.5 * 2.0**127, 2.0**-149, NAN]
    same(run("ldexp", by, i), want)


def test_integers_wrap_divide_downwards_and_shift_logically():
    big = 2**31 - 1
    assert listed("add", [big] * 8, [1] * 8) == [-(2**31)] * 8
    a, b = [7, -7, 7, -7, -(2**31), 5, 0, 9], [2, 2, -2, -2, -1, 0, 3, 9]
    assert listed("idiv", a, b) == [3, -4, -4, 3, -(2**31), 0, 0, 1]
    assert listed("imod", a, b) == [1, 1, -1, -1, 0, 0, 0, 0]
    v, by = [-1, 1, 1, -1, -1, 3, 3, -(2**31)], [28, 31, 32, 0, 32, -1, 1, 31]
    assert listed("shr", v, by) == [15, 0, 0, -1, 0, 0, 1, 1]
    assert listed("shl", v, by) == [-(2**28), -(2**31), 0, -1, 0, 0, 6, 0]
    assert listed("plane", [-1, 5, 0x7FF0, -2, 0, 0, 0, 0], attr=(31, 2))[:4] == [1, 0, 0, 1]
    assert listed("plane", [0x7FF0] * 8, attr=(4, 4))[0] == 15
    assert listed("to_i32", [1.9, -1.9, 3e9, -3e9, NAN, 0.0, INF, -INF], kind="i32") == [
        1, -1, big, -(2**31), 0, 0, big, -(2**31),
    ]  # fmt: skip


def test_sums_follow_the_balanced_tree_over_live_elements():
    v = [1e8, 1.0, -1e8, 1.0, 3.0, 1.0, 5.0, 7.0]
    f = np.float32
    want = ((f(1e8) + f(3)) + (f(-1e8) + f(5))) + ((f(1) + f(1)) + (f(1) + f(7)))
    same(run("rsum", v, scope="group"), [want])
    same(run("rsum", [1.0, 2.0, 4.0, NAN, NAN, NAN, NAN, NAN], scope="group", live=3), [7])
    same(run("rsum", [1.0, 2.0, 4.0], scope="group"), [7])


def test_any_and_all_look_at_live_elements():
    v = [False, False, True, True, True, True, True, True]
    assert listed("rany", v, scope="group", live=2) == [False]
    assert listed("rany", v, scope="group", live=3) == [True]
    assert listed("rall", [not x for x in v], scope="group", live=2) == [True]


def test_argmax_and_top_take_the_lowest_index_and_never_nan():
    v = [NAN, 2.0, 5.0, 5.0, -0.0, 0.0, -INF, 9.0]
    assert listed("argmax", v, kind="i32", scope="group", live=7) == [2]
    assert listed("argmax", [NAN] * 8, kind="i32", scope="group") == [0]
    assert listed("argmax", [NAN, -INF] * 4, kind="i32", scope="group") == [1]
    for k, want in [(1, [2]), (2, [2, 3]), (4, [1, 2, 3, 4]), (6, [1, 2, 3, 4, 5, 6]), (8, [1, 2, 3, 4, 5, 6])]:
        chosen = run("top", v, attr=(k,), kind="bool", live=7)
        assert chosen.nonzero().reshape(-1).tolist() == want


def test_first_lists_live_indices_and_then_the_length():
    cond = [False, True, False, True, True, False, False, True]
    assert listed("first", cond, attr=(2,), kind="i32", length=2) == [1, 3]
    assert listed("first", cond, attr=(6,), kind="i32", length=6, live=7) == [1, 3, 4, 8, 8, 8]
    assert listed("first", cond, attr=(10,), kind="i32", length=10)[3:] == [7] + [8] * 6


@pytest.mark.parametrize("device", DEVICES)
def test_moving_elements_by_index(device):
    v = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]
    assert listed("gather", v, [7, 0, 8, -1], length=4, device=device) == [17, 10, 0, 0]
    assert listed("at", v, [3], scope="group", device=device) == [13]
    assert listed("at", v, [8], scope="group", device=device) == [0]
    assert listed("put", v, [1], [0.5], device=device) == [10, 0.5, *v[2:]]
    assert listed("put", v, [8], [0.5], device=device) == v
    index, put = [2, 5, 2, 8], [1.0, 2.0, 3.0, 4.0]
    assert listed("scatter", index, put, attr=(8,), kind="f32", device=device) == [0, 0, 3, 0, 0, 2, 0, 0]


def test_slices_and_concatenation():
    v = [0, 1, 2, 3, 4, 5, 6, 7]
    assert listed("slice", v, attr=(2, 5), length=3) == [2, 3, 4]
    assert listed("concat", v, [8, 9], length=10) == list(range(10))


def test_hadamard_is_orthonormal_and_ordered():
    v = [1.0, 2.0, 3.0, 4.0, 0.5, -1.0, 7.0, 0.0]
    f = np.float32
    want = []
    for a, b, c, d in (f(v[:4]), f(v[4:])):
        s, t, p, q = a + b, a - b, c + d, c - d
        want += [s + p, t + q, s - p, t - q]
    same(run("hadamard", v, attr=(4,)), f(want) * f(0.5))


def test_bits_move_between_kinds_unchanged():
    v = [1.0, -0.0, INF, 1e-45, -2.0, 0.0, 3.0, 4.0]
    raw = run("bits", v, kind="i32")
    assert raw.tolist() == np.float32(v).view(np.int32).tolist()
    same(run("from_bits", raw.tolist(), kind="f32"), v)


def test_live_and_count_in_a_short_group():
    assert listed("live", kind="bool", live=3) == [True] * 3 + [False] * 5
    assert listed("count", kind="f32", scope="group", live=3) == [3.0]
    assert listed("count", kind="f32", scope="group") == [8.0]
