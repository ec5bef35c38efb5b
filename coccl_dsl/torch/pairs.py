"""send, recv, isend, irecv and batch_isend_irecv, with torch.distributed's own signatures and a compressor.

    work = coccl_dsl.torch.isend(activations, dst, compressor="int4")        on the other side: irecv, recv or a batch of this module
    works = coccl_dsl.torch.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), ...], compressor="int8")

Only the two ends take part, and nothing is agreed: both say the same compressor and dtype. What moves is the wire, under the user's tag and in
the user's order. On the CPU a message is decompressed in wait(); on CUDA all of it is enqueued in the call, beside the caller's stream.
Raises as the functions of `c10d` do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from ..pipeline import Collective, load
from ..runtime.dispatch import destroyed, refuse_states
from ..runtime.dtypes import NAMES, dtype_name
from ..runtime.replay import call_number
from .c10d import Group, _peer, _to
from .calls import member
from .works import HostWork, completed, lanes

_Key = tuple[Any, ...]
_idle: dict[_Key, list[Any]] = {}


class _Message:
    """One message in flight, with an op, and so wire memory, of its own. `wires` move; `finish` is what is left to do then."""

    def __init__(self, t: torch.Tensor, sends: bool, peer: int, pg: dist.ProcessGroup, compressor: str, lane: Any):
        key = pg, sends, peer, t.dtype, t.device, t.numel(), compressor, lane
        self._free = _idle.setdefault(key, [])
        try:
            self._op = self._free.pop()
        except IndexError:
            self._op = _bind(t, sends, peer, pg, compressor)
        executor = self._op._executor
        flat = t.detach().contiguous().reshape(-1)
        executor.begin(flat.numel())
        self._prepared = executor.prepare(flat.numel())
        self._running = [executor.run_slice(steps, flat, flat) for steps in self._prepared.passes[0]]
        with torch.no_grad(), call_number(executor):
            calls = [next(steps) for steps in self._running]
            executor.finish(self._prepared)
        self.wires = [w for c in calls for p in (c.sends if sends else c.recvs) for w in p.tensors]

    def finish(self) -> None:
        with torch.no_grad():
            for steps in self._running:
                rest = next(steps, None)
                assert rest is None
        self._free.append(self._op)


def _bind(t: torch.Tensor, sends: bool, peer: int, pg: dist.ProcessGroup, compressor: str) -> Any:
    for key in [k for k in _idle if destroyed(k[0])]:
        del _idle[key]
    collective = _collective()
    options = dict.fromkeys(collective.program(dtype_name(t.dtype)).codecs, compressor)
    refuse_states(
        collective, dtype_name(t.dtype), options, "coccl_dsl.torch.isend" if sends else "coccl_dsl.torch.irecv"
    )
    return collective.bind(pg, like=t, **{"target" if sends else "source": peer}, **options)


@cache
def _collective() -> Collective:
    return load("send_recv")


def _start(t: torch.Tensor, sends: bool, peer: int, group: Group, tag: int, compressor: str) -> dist.Work:
    pg = member(group)
    if peer == pg.rank():
        raise ValueError(f"rank {peer} sends to itself; a message is between two ranks")
    backend: Any = pg._get_backend(t.device)
    move = backend.send if sends else backend.recv
    if t.device.type != "cuda":
        message = _Message(t, sends, peer, pg, compressor, "cpu")
        works = [move([w], peer, tag) for w in message.wires]
        return HostWork(works, message.finish, (pg.group_name, peer, tag, sends))
    lane = lanes.of(pg, t.device, (sends, peer))
    lane.wait_stream(torch.cuda.current_stream(t.device))
    with torch.cuda.stream(lane):
        message = _Message(t, sends, peer, pg, compressor, (sends, peer))
        for wire in message.wires:
            move([wire], peer, tag).wait()
        message.finish()
        work = completed([t], t.device)
        lanes.hold(lane, t)
    return work


# ---------------------------------------------------------------- functions


def isend(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    compressor: str = "int8",
) -> dist.Work:
    """Send to rank `dst` (of all ranks) or `group_dst` (of the group). The tensor may be changed once the Work was waited for."""
    return _start(tensor, True, _peer(group, dst, group_dst, "dst"), group, tag, compressor)


def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    compressor: str = "int8",
) -> dist.Work:
    """Receive from rank `src` (of all ranks) or `group_src` (of the group), which has to be named."""
    return _start(_to(tensor, "tensor"), False, _peer(group, src, group_src, "src"), group, tag, compressor)


def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_dst: int | None = None,
    *,
    compressor: str = "int8",
) -> None:
    """`isend`, waited for."""
    isend(tensor, dst, group, tag, group_dst, compressor=compressor).wait()


def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Group = None,
    tag: int = 0,
    group_src: int | None = None,
    *,
    compressor: str = "int8",
) -> int:
    """`irecv`, waited for. Returns the sender's rank among all ranks, as torch does."""
    irecv(tensor, src, group, tag, group_src, compressor=compressor).wait()
    return dist.get_global_rank(member(group), _peer(group, src, group_src, "src"))


def batch_isend_irecv(p2p_op_list: list[dist.P2POp], *, compressor: str = "int8") -> list[dist.Work]:
    """Start all messages of torch.distributed.P2POp(dist.isend or dist.irecv, ...) together; those of other dtypes than float32, bfloat16 and
    float16 go as they are. On NCCL one Work stands for all of them, on gloo there is one for each."""
    ops = list(p2p_op_list)
    if not ops or not all(isinstance(o, dist.P2POp) for o in ops):
        raise ValueError("batch_isend_irecv takes a list of torch.distributed.P2POp, of at least one")
    for o in ops:
        member(o.group)
        if o.op is dist.irecv:
            _to(o.tensor, "a tensor to receive into")
    device = ops[0].tensor.device
    if device.type != "cuda":
        moved, messages = _rewritten(ops, compressor, lambda i: "cpu")
        works = dist.batch_isend_irecv(moved)
        assert len(works) == len(moved)
        paths = [(o.group.group_name, o.group_peer, o.tag, o.op is dist.isend) for o in ops]
        rows = zip(works, messages, paths, strict=True)
        return [w if m is None else HostWork([w], m.finish, path) for w, m, path in rows]
    lane = lanes.of(ops[0].group, device, "batch")
    lane.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(lane):
        moved, messages = _rewritten(ops, compressor, lambda i: ("batch", i))
        for work in dist.batch_isend_irecv(moved):
            work.wait()
        for message in messages:
            if message is not None:
                message.finish()
        tensors = [o.tensor for o in ops]
        work = completed(tensors, device)
        lanes.hold(lane, tensors)
    return [work]


def _rewritten(
    ops: list[dist.P2POp], compressor: str, lane: Callable[[int], Any]
) -> tuple[list[dist.P2POp], list[_Message | None]]:
    moved: list[dist.P2POp] = []
    messages: list[_Message | None] = []
    for i, o in enumerate(ops):
        message = None
        if o.tensor.dtype in NAMES and o.tensor.numel():
            message = _Message(o.tensor, o.op is dist.isend, o.group_peer, o.group, compressor, lane(i))
            (wire,) = message.wires
            o = dist.P2POp(o.op, wire, o.peer, o.group, o.tag)
        moved.append(o)
        messages.append(message)
    return moved, messages
