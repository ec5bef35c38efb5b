"""send, recv and batch_isend_irecv with compressed wires: what moves between two ranks is the wire of a `send_recv` plan, over torch's own
backend, with the user's peer and tag, so the order of messages stays theirs.

On the CPU a receive is decompressed in wait(), which is where its bytes are known to be there. On CUDA all of it is enqueued in the call: on
one side stream for each peer and direction (one stream for all would let a send to one peer hold up a receive from another), for a batch on
one of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..runtime.dispatch import capacity_for
from . import traffic
from .groups import Groups, Taken
from .works import HostWork, completed, lanes

_ATTRIBUTE = "_coccl_direction"


def mark(t: torch.Tensor, direction: str) -> None:
    """Say which way a tensor goes through the pipeline: forward or backward."""
    setattr(t, _ATTRIBUTE, direction)


class _Batching(threading.local):
    """active: this thread is inside torch's own batch, whose messages have been decided."""

    active = False


_batching = _Batching()


class Message:
    """One compressed message: `wire` moves; `finish` is what is left to do once it has."""

    def __init__(self, groups: Groups, taken: Taken, t: torch.Tensor, sends: bool, peer: int, lane: Any):
        state, kind, rule = taken
        self.kind, self.sends, self.tensor = kind, sends, t
        # Several messages of one kind may be in flight, each with an op, and so wire memory, of its own. On CUDA an op belongs to a stream,
        # where one use comes after the other; lane tells the streams apart.
        capacity = capacity_for("send_recv", t.numel(), 2)
        self._idle = state.idle.setdefault((rule.number, t.dtype, capacity, sends, peer, lane), [])
        try:
            self.bound = self._idle.pop()
        except IndexError:
            end: dict[str, Any] = {"target" if sends else "source": peer}
            self.bound = groups.bound(state, rule, "send", t, t.numel(), **end)
        executor = self.bound.op._executor
        assert executor is not None
        if executor.plan.stochastic and t.device.type == "cpu":  # by the message's number, whichever op it gets
            executor.rng[1] = kind.calls
        self._flat = t.detach().contiguous().reshape(-1) if sends else t.detach()
        self._into = (
            self._flat
            if sends or t.is_contiguous()
            else torch.empty_like(t, memory_format=torch.contiguous_format).detach()
        )
        executor.begin(t.numel())
        self._prepared = executor.prepare(t.numel())
        assert len(self._prepared.passes) == 1
        y = self._into.reshape(-1)
        self._running = [executor.run_slice(steps, y, y) for steps in self._prepared.passes[0]]
        with torch.no_grad():
            calls = [next(r) for r in self._running]
        parcels = [p for c in calls for p in (c.sends if sends else c.recvs)]
        self.wires = [w for p in parcels for w in p.tensors]
        if sends:
            self._record("send", *self.bound.sizes(t.numel()))

    def _record(self, op: str, raw: int, wire: int) -> None:
        traffic.record(self.kind.role, op, self.bound.algorithm, self.bound.compressor, raw, wire)

    def finish(self) -> None:
        """The wires have moved (on CUDA: the current stream is after them)."""
        executor = self.bound.op._executor
        assert executor is not None
        with torch.no_grad():
            for r in self._running:
                rest = next(r, None)
                assert rest is None
            if self._into is not self._flat:
                self.tensor.detach().copy_(self._into)
        executor.finish(self._prepared)
        if not self.sends:
            self._record("recv", 0, 0)
        self._idle.append(self.bound)


def _decide(groups: Groups, pg: dist.ProcessGroup, t: torch.Tensor, sends: bool, peer: int, tag: int) -> Taken | None:
    direction = getattr(t, _ATTRIBUTE, "")
    return groups.decide(pg, "send", t, t.numel(), where=(sends, peer, tag), direction=direction)


def send(
    groups: Groups, pg: dist.ProcessGroup, tensors: Sequence[torch.Tensor], peer: int, tag: int
) -> dist.Work | None:
    """A Work, or None where the call goes native."""
    return _one(groups, pg, tensors, True, peer, tag)


def receive(
    groups: Groups, pg: dist.ProcessGroup, tensors: Sequence[torch.Tensor], peer: int, tag: int
) -> dist.Work | None:
    return _one(groups, pg, tensors, False, peer, tag)


def _one(
    groups: Groups, pg: dist.ProcessGroup, tensors: Sequence[torch.Tensor], sends: bool, peer: int, tag: int
) -> dist.Work | None:
    if len(tensors) != 1 or _batching.active or groups.shut(pg, "send"):
        return None
    t = tensors[0]
    taken = _decide(groups, pg, t, sends, peer, tag)
    if taken is None:
        return None
    backend: Any = pg._get_backend(t.device)
    move = backend.send if sends else backend.recv
    if t.device.type != "cuda":
        message = Message(groups, taken, t, sends, peer, "cpu")
        return HostWork(
            [move([w], peer, tag) for w in message.wires], message.finish, (pg.group_name, peer, tag, sends)
        )
    lane = lanes.of(pg, t.device, (sends, peer))
    lane.wait_stream(torch.cuda.current_stream(t.device))
    with torch.cuda.stream(lane):
        message = Message(groups, taken, t, sends, peer, (sends, peer))
        for wire in message.wires:
            move([wire], peer, tag).wait()
        message.finish()
        work = completed([t], t.device)
        lanes.hold(lane, t)
    return work


def batch(groups: Groups, native: Callable[[Any], list[dist.Work]], ops: Any) -> list[dist.Work]:
    """batch_isend_irecv: messages that a rule takes move as wires in the same batch."""
    if not isinstance(ops, list) or not ops or not all(isinstance(o, dist.P2POp) for o in ops) or _batching.active:
        return native(ops)
    device = ops[0].tensor.device
    taken: list[Taken | None] = []
    if not groups.shut(ops[0].group, "send"):
        taken = [_decide(groups, o.group, o.tensor, o.op is dist.isend, o.group_peer, o.tag) for o in ops]
    _batching.active = True
    try:
        if not any(taken):
            return native(ops)
        if device.type != "cuda":
            return _host_batch(groups, native, ops, taken)
        return _device_batch(groups, native, ops, taken, device)
    finally:
        _batching.active = False


def _rewritten(
    groups: Groups, ops: Sequence[dist.P2POp], taken: Sequence[Taken | None], lane: Callable[[int], Any]
) -> tuple[list[dist.P2POp], list[Message | None]]:
    moved, messages = [], []
    for i, (op, one) in enumerate(zip(ops, taken, strict=True)):
        message = None
        if one is not None:
            message = Message(groups, one, op.tensor, op.op is dist.isend, op.group_peer, lane(i))
            (wire,) = message.wires
            op = dist.P2POp(op.op, wire, op.peer, op.group, op.tag)
        moved.append(op)
        messages.append(message)
    return moved, messages


def _host_batch(groups: Groups, native: Any, ops: list[dist.P2POp], taken: list[Taken | None]) -> list[dist.Work]:
    moved, messages = _rewritten(groups, ops, taken, lambda i: "cpu")
    works = native(moved)
    assert len(works) == len(ops), "gloo gives a Work for each message"
    return [
        w if m is None else HostWork([w], m.finish, (o.group.group_name, o.group_peer, o.tag, m.sends))
        for o, w, m in zip(ops, works, messages, strict=True)
    ]


def _device_batch(
    groups: Groups, native: Any, ops: list[dist.P2POp], taken: list[Taken | None], device: torch.device
) -> list[dist.Work]:
    lane = lanes.of(ops[0].group, device, "batch")
    lane.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(lane):
        moved, messages = _rewritten(groups, ops, taken, lambda i: ("batch", i))
        for work in native(moved):
            work.wait()
        for message in messages:
            if message is not None:
                message.finish()
        tensors = [o.tensor for o in ops]
        work = completed(tensors, device)
        lanes.hold(lane, tensors)
    return [work]
