"""What of the symm transport needs no GPU."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coccl_dsl.pipeline import World, load
from coccl_dsl.plan.ops import Exchange
from coccl_dsl.runtime.bind import choose_transport
from coccl_dsl.runtime.errors import BindError
from coccl_dsl.runtime.executor import ExchangeCall
from coccl_dsl.runtime.transports import symm
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


class _Told:
    """A meeting of ranks on these hosts, each with a GPU of its own."""

    def __init__(self, hosts: str, unreachable: bool = False):
        self.hosts, self.unreachable = hosts, unreachable

    def gather(self, name: str, text: str) -> list[str]:
        if name == "device":
            return [json.dumps([h, i, ""]) for i, h in enumerate(self.hosts)]
        return ["no peer access" if self.unreachable and r == 1 else "" for r in range(len(self.hosts))]


@pytest.mark.parametrize(
    "hosts,asked,mesh,name",
    [
        ("aaaa", "auto", False, "symm"),
        ("aaaa", "auto", True, "symm"),
        ("aabb", "auto", False, "torch"),
        ("aabb", "auto", True, "symm+torch"),
        ("aab", "auto", True, "torch"),
        ("aabb", "symm+torch", False, "symm+torch"),
        ("aabb", "nccl", True, "nccl"),
    ],
)
def test_auto_maps_what_can_be_mapped(hosts, asked, mesh, name, monkeypatch):
    monkeypatch.setattr(symm, "unavailable", lambda device: "")
    monkeypatch.setattr(symm, "reachable", lambda device, others: "")
    monkeypatch.setattr(symm, "host_name", lambda: "a")
    told: Any = _Told(hosts)
    assert choose_transport(asked, torch.device("cuda", 0), told, mesh).name == name
    unreachable: Any = _Told(hosts, unreachable=True)
    if asked == "symm+torch":
        with pytest.raises(BindError, match="rank 1: no peer access"):
            choose_transport(asked, torch.device("cuda", 0), unreachable, mesh)
    elif asked == "auto":
        assert choose_transport(asked, torch.device("cuda", 0), unreachable, mesh).name == "torch"
