"""Messages between two ranks whose bytes are the wire of a `send_recv` plan, over torch's own backend, with the user's peer, tag and order.

On the CPU a receive is decompressed in wait(), which is where its bytes are known to be there. On CUDA all of it is enqueued in the call: on
one side stream for each peer and direction (one stream for all would let a send to one peer hold up a receive from another), for a batch on
one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd.graph import increment_version

from ..runtime.dispatch import capacity_for
from ..runtime.op import Op
from ..runtime.replay import call_number
from .works import HostWork, completed, lanes

_Op = TypeVar("_Op")


class Message:
    """One message in flight, with an op, and so wire memory, of its own. `wires` move; `finish` is what is left to do then, on CUDA on a
    stream that is after them.

    op      bound to a send_recv; nobody else uses it until `release` is called
    number  of the call, where that is not the op's own
    """

    def __init__(self, op: Op, t: torch.Tensor, sends: bool, release: Callable[[], None], number: int | None = None):
        op.check_open()
        executor = op._executor
        assert executor is not None
        self._tensor, self._sends, self._release = t.detach(), sends, release
        # A receive into strides goes through a tensor without them.
        self._flat = self._tensor.contiguous().reshape(-1) if sends or t.is_contiguous() else t.new_empty(t.numel())
        if op.record is not None:
            op.record.add(op.what, t.numel())
        executor.begin(t.numel())
        prepared = executor.prepare(t.numel())
        (slices,) = prepared.passes
        if number is not None and executor.plan.stochastic:
            executor.rng[1] = number
        self._running = [executor.run_slice(steps, self._flat, self._flat) for steps in slices]
        with torch.no_grad(), call_number(executor):
            calls = [next(steps) for steps in self._running]
            executor.finish(prepared)
        self.wires = [w for c in calls for p in (c.sends if sends else c.recvs) for w in p.tensors]

    def finish(self) -> None:
        with torch.no_grad():
            for steps in self._running:
                rest = next(steps, None)
                assert rest is None
            if not self._sends and not self._tensor.is_contiguous():
                self._tensor.copy_(self._flat.view(self._tensor.shape))
        if not self._sends:
            increment_version(self._tensor)  # kernels write to it behind autograd's back
        self._release()


def reused(
    idle: dict[Any, list[_Op]], key: tuple[Any, ...], t: torch.Tensor, bind: Callable[[int], _Op]
) -> tuple[_Op, Callable[[], None]]:
    """An op for a message of `t`, and what to call when that is over. Messages in flight have an op each, of `bind` (given a capacity); one that
    is not in flight serves later messages of the key and of sizes up to its capacity, of which there are few however many sizes there are."""
    capacity = capacity_for("send_recv", t.numel(), 2)
    kept = idle.setdefault((*key, t.dtype, capacity), [])
    try:
        op = kept.pop()
    except IndexError:
        op = bind(capacity)
    return op, lambda: kept.append(op)


def move(
    pg: dist.ProcessGroup, t: torch.Tensor, sends: bool, peer: int, tag: int, make: Callable[[Any], Message]
) -> dist.Work:
    """Start one message. make: of a lane; ops of one lane are used one after the other, on one stream. peer: a rank of the group."""
    backend: Any = pg._get_backend(t.device)
    start = backend.send if sends else backend.recv
    if t.device.type != "cuda":
        message = make("cpu")
        works = [start([w], peer, tag) for w in message.wires]
        return HostWork(works, message.finish, (pg.group_name, peer, tag, sends))
    lane = lanes.of(pg, t.device, (sends, peer))
    lane.wait_stream(torch.cuda.current_stream(t.device))
    with torch.cuda.stream(lane):
        message = make((sends, peer))
        for wire in message.wires:
            start([wire], peer, tag).wait()
        message.finish()
        work = completed([t], t.device)
        lanes.hold(lane, t)
    return work


def move_batch(
    native: Callable[[list[dist.P2POp]], list[dist.Work]],
    ops: list[dist.P2POp],
    make: Callable[[int, Any], Message | None],
) -> list[dist.Work]:
    """Start several together through torch's batch_isend_irecv, `native`. make: of the number of an op and a lane; None: it moves as it is.

    On NCCL one Work stands for all of them, on gloo there is one for each."""
    device = ops[0].tensor.device
    if device.type != "cuda":
        moved, messages = _rewritten(ops, lambda i: make(i, "cpu"))
        paths = [(o.group.group_name, o.group_peer, o.tag, o.op is dist.isend) for o in ops]
        rows = zip(native(moved), messages, paths, strict=True)
        return [w if m is None else HostWork([w], m.finish, path) for w, m, path in rows]
    lane = lanes.of(ops[0].group, device, "batch")
    lane.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(lane):
        moved, messages = _rewritten(ops, lambda i: make(i, ("batch", i)))
        for work in native(moved):
            work.wait()
        for message in messages:
            if message is not None:
                message.finish()
        tensors = [o.tensor for o in ops]
        work = completed(tensors, device)
        lanes.hold(lane, tensors)
    return [work]


def _rewritten(
    ops: list[dist.P2POp], make: Callable[[int], Message | None]
) -> tuple[list[dist.P2POp], list[Message | None]]:
    messages = [make(i) for i in range(len(ops))]
    moved = []
    for op, message in zip(ops, messages, strict=True):
        if message is not None:
            (wire,) = message.wires
            op = dist.P2POp(op.op, wire, op.peer, op.group, op.tag)
        moved.append(op)
    return moved, messages
