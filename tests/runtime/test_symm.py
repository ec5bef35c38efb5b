"""What of the symm transport needs no GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coccl_dsl.pipeline import World, load
from coccl_dsl.plan.ops import Exchange
from coccl_dsl.runtime.executor import ExchangeCall
from coccl_dsl.runtime.transports.symm import SymmTransport


class _Inner:
    name = "torch"

    def __init__(self):
        self.posted: list[ExchangeCall] = []

    def post(self, call: ExchangeCall) -> Any:
        self.posted.append(call)


def test_levels_without_messages_count_for_the_transport_between_hosts():
    """Chunks may be empty on some ranks: messages are matched by how many levels were posted."""
    memory: Any = SimpleNamespace(levels=3, depth=1, near=[0, 1], rank=0, shared=False)
    plan: Any = SimpleNamespace(levels=3, credits=object())
    inner: Any = _Inner()
    transport = SymmTransport(memory, "test", plan, 1, False, inner)
    for level in range(3):
        transport.post(ExchangeCall(level, 0, (), ()))
    assert [c.level for c in inner.posted] == [0, 1, 2]


@pytest.mark.parametrize("name", ["ring", "all_gather_ring"])
def test_a_wire_that_is_sent_on_to_another_host_is_read_until_then(name):
    """Whoever stores into memory that its owner still sends from, a call later, has a credit."""
    c = load(name)
    world = World((4,))
    trace = c.trace(world, compressors={})
    plans = c.mapped_plans(world, dtype="bf16", compressors={}, trace=trace, hosts=["a", "a", "b", "b"])
    found = 0
    for plan in plans:
        stored: dict[int, int] = {}
        for step in plan.steps:
            if isinstance(step, Exchange):
                sent_on = {w for t in step.sends if not t.direct for w in t.wires} & stored.keys()
                for w in sent_on:
                    writer = plans[stored[w]]
                    assert writer.credits is not None and plan.rank in writer.credits.awaits
                found += len(sent_on)
                stored |= {w: t.peer for t in step.recvs if t.direct for w in t.wires}
    assert found
