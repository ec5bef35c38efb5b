"""Folds on the reference back end: sources, places, sinks, bases, states and counters."""

from __future__ import annotations

import pytest
import torch

from coccl_dsl.codegen.eager import EagerBackend, compress, rotate
from coccl_dsl.codegen.launch import FoldArgs, OpContext, Place, StatePlaces
from coccl_dsl.lang.parse import parse_binding
from coccl_dsl.plan.ops import Signature
from coccl_dsl.wire.codec import Codec
from coccl_dsl.wire.compile import compile_codec
from coccl_dsl.wire.layout import wire_bytes
from coccl_dsl.wire.scope import Scope, bind

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def make(text: str, dtype: str = "f32") -> Codec:
    return compile_codec(bind(parse_binding(text), Scope()), dtype)


def sample(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def context(
    codecs: dict[str, Codec], dtype: str = "f32", factor: float | None = None, device: str = "cpu"
) -> OpContext:
    rng = torch.tensor([1, 2], device=device)
    version = torch.ones(1, dtype=torch.int32, device=device)
    names = tuple(dict.fromkeys(f for c in codecs.values() for f in c.flags))
    flags = torch.zeros(1 + len(names), dtype=torch.int32, device=device)
    return OpContext(dtype, factor, codecs, rng, version, flags, names)


class Arena:
    def __init__(self, device: str = "cpu"):
        self.buffer = torch.full((1 << 22,), 0xAA, dtype=torch.uint8, device=device)
        self.used = 0

    def place(self, size: int) -> Place:
        self.used += 4096 + -size % 16
        made = Place(self.buffer, self.used)
        self.used += size
        return made

    def holding(self, data: torch.Tensor) -> Place:
        flat = data.contiguous().reshape(-1).view(torch.uint8)
        made = self.place(flat.numel())
        self.buffer[made.offset : made.offset + flat.numel()] = flat
        return made

    def read(self, place: Place, n: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return self.buffer[place.offset : place.offset + n * dtype.itemsize].view(dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_a_fold_sums_left_to_right_closes_and_writes_every_place(device):
    n, start = 40_000, 65536
    q4, q8 = make("int4", "bf16"), make("int8(round=stochastic)", "bf16")
    arena, rng = Arena(device), torch.Generator().manual_seed(0)
    x = torch.randn(n + 100, generator=rng).to(torch.bfloat16).to(device)
    scratch = torch.randn(n, generator=rng).to(device)
    wires = [compress(q4, torch.randn(n, generator=rng).to(device)) for _ in range(2)]
    places = (arena.place(wire_bytes(q8, n)), arena.place(wire_bytes(q8, n)))
    kept = arena.place(4 * n)
    ctx = context({"in": q4, "out": q8}, "bf16", 1 / 3, device)
    signature = Signature(
        (("input", 0), ("scratch", 0)), "in", False, 0, "out", True, (("output", 0, True), ("scratch", 0, False))
    )
    fold = FoldArgs(
        n, start, (50, arena.holding(scratch)), tuple(arena.holding(w.wire) for w in wires), places, (30, kept), key=5
    )
    y = torch.zeros(n + 100, dtype=torch.bfloat16, device=device)
    EagerBackend().prepare(signature, [fold], ctx).run(x, y)
    third = torch.tensor(1 / 3, dtype=torch.float32, device=device)
    total = ((x[50 : 50 + n].float() * third + scratch) + wires[0].opened) + wires[1].opened
    want = compress(q8, total, start=start, rng=ctx.rng, key=5)
    assert all(torch.equal(arena.read(p, want.wire.numel()), want.wire) for p in places)
    assert torch.equal(arena.read(kept, n, torch.float32), total)
    assert torch.equal(y[30 : 30 + n], want.opened.to(torch.bfloat16))
    assert not y[:30].any() and not y[30 + n :].any()


def test_a_lone_wire_keeps_its_negative_zeros():
    raw, n = make("raw"), 10
    arena = Arena()
    place = arena.holding(compress(raw, torch.full((n,), -0.0)).wire)
    y = torch.ones(n)
    signature = Signature((), "raw", False, 0, None, False, (("output", 0, False),))
    EagerBackend().prepare(signature, [FoldArgs(n, 0, (), (place,), (), (0,))], context({"raw": raw})).run(y, y)
    assert torch.signbit(y).all()


def test_a_fold_moves_sources_and_sinks_between_bases():
    n = 100
    q = make("int8_h32", "f16")
    arena = Arena()
    x = sample(n, 0).to(torch.float16)
    turned = sample(128, 1)
    wire = compress(q, sample(128, 2))
    kept = arena.place(4 * 128)
    flat = arena.place(4 * n)
    ctx = context({"q": q}, "f16")
    sinks = (("output", 0, True), ("scratch", 32, False), ("scratch", 0, False))
    signature = Signature((("input", 0), ("scratch", 32)), "q", False, 32, "q", False, sinks)
    fold = FoldArgs(n, 0, (0, arena.holding(turned)), (arena.holding(wire.wire),), (), (0, kept, flat))
    y = torch.zeros(n, dtype=torch.float16)
    EagerBackend().prepare(signature, [fold], ctx).run(x, y)
    total = (rotate(x.float(), 32) + turned) + wire.opened
    assert torch.equal(arena.read(kept, 128, torch.float32), total)
    assert torch.equal(arena.read(flat, n, torch.float32), rotate(total, 32)[:n])
    assert torch.equal(y, rotate(compress(q, total).opened, 32)[:n].to(torch.float16))
    back = Signature((("scratch", 32),), None, False, 0, None, False, (("output", 0, False),))
    EagerBackend().prepare(back, [FoldArgs(n, 0, (arena.holding(turned),), (), (), (0,))], ctx).run(x, y)
    assert torch.equal(y, rotate(turned, 32)[:n].to(torch.float16))


def test_the_sum_is_read_before_the_users_tensor_is_overwritten():
    q, n = make("int4"), 300
    x = sample(n)
    before, arena = x.clone(), Arena()
    kept = arena.place(4 * n)
    signature = Signature((("input", 0),), None, False, 0, "q", False, (("output", 0, True), ("scratch", 0, False)))
    EagerBackend().prepare(signature, [FoldArgs(n, 0, (0,), (), (), (0, kept))], context({"q": q})).run(x, x)
    assert torch.equal(arena.read(kept, n, torch.float32), before)
    assert torch.equal(x, compress(q, before).opened)


def test_output_saturates_and_its_nan_is_canonical():
    arena = Arena()
    y = torch.zeros(4, dtype=torch.float16)
    x = torch.tensor([60000.0, -60000.0, torch.inf, -torch.nan], dtype=torch.float16)
    signature = Signature((("input", 0), ("scratch", 0)), None, False, 0, None, False, (("output", 0, False),))
    fold = FoldArgs(4, 0, (0, arena.holding(x.float())), (), (), (0,))
    EagerBackend().prepare(signature, [fold], context({}, "f16")).run(x, y)
    assert y[:3].tolist() == [65504.0, -65504.0, torch.inf]
    assert y[3:].view(torch.int16).tolist() == [0x7E00]


def test_folds_update_states_and_count_versions_and_flags():
    q, n = make("weight_delta4"), 3000
    arena, ctx = Arena(), context({"q": q})
    base = torch.zeros(4096, dtype=torch.bfloat16)
    base[:n] = torch.randn(n, generator=torch.Generator().manual_seed(0))
    x = base[:n].float() + 0.01
    sender, receiver, stale = ({"base": StatePlaces(arena.holding(base), arena.place(8192))} for _ in range(3))
    places = (arena.place(wire_bytes(q, n)), arena.place(wire_bytes(q, n)))
    close = Signature((("input", 0),), None, False, 0, "q", True, ())
    EagerBackend().prepare(close, [FoldArgs(n, 0, (0,), (), places, (), state=sender)], ctx).run(x, x)
    want = compress(q, x, states={"base": base}, version=ctx.version)
    arena.buffer[places[1].offset + want.wire.numel() - 16] = 9
    opening = Signature((), "q", True, 0, None, False, (("output", 0, False),))
    y = torch.zeros(2 * n)
    folds = [
        FoldArgs(n, 0, (), (places[0],), (), (0,), wire_states=(receiver,)),
        FoldArgs(n, 0, (), (places[1],), (), (n,), wire_states=(stale,)),
    ]
    EagerBackend().prepare(opening, folds, ctx).run(x, y)
    assert torch.equal(y[:n], want.opened) and torch.isnan(y[n:]).all()
    for at in (sender, receiver):
        assert torch.equal(arena.read(at["base"].next, 4096, torch.bfloat16), want.states["base"])
    assert torch.equal(arena.read(stale["base"].next, 4096, torch.bfloat16), base)
    assert ctx.flags.tolist() == [1]
