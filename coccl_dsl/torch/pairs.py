"""send, recv, isend, irecv and batch_isend_irecv, with torch.distributed's own signatures and a compressor.

    work = coccl_dsl.torch.isend(activations, dst, compressor="int4")        on the other side: irecv, recv or a batch of this module
    works = coccl_dsl.torch.batch_isend_irecv([dist.P2POp(dist.isend, x, 1), ...], compressor="int8")

Only the two ends take part, and nothing is agreed: both say the same compressor and dtype. What moves is the wire, under the user's tag and in
the user's order. On the CPU a message is decompressed in wait(); on CUDA all of it is enqueued in the call, beside the caller's stream.
Raises as the functions of `c10d` do.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from ..pipeline import Collective, load
from ..runtime.dispatch import forget_destroyed, of_groups, refuse_states
from ..runtime.dtypes import NAMES, dtype_name
from .c10d import Group, _peer, _to
from .calls import member
from .messages import Message, move, move_batch, reused

# Ops of messages that are over.
_idle: dict[dist.ProcessGroup, dict[Any, list[Any]]] = of_groups()


def _message(t: torch.Tensor, sends: bool, peer: int, pg: dist.ProcessGroup, compressor: str, lane: Any) -> Message:
    def bind(capacity: int) -> Any:
        return _bind(t, capacity, sends, peer, pg, compressor)

    op, release = reused(_idle.setdefault(pg, {}), (t.device, sends, peer, compressor, lane), t, bind)
    return Message(op, t, sends, release)


def _bind(t: torch.Tensor, capacity: int, sends: bool, peer: int, pg: dist.ProcessGroup, compressor: str) -> Any:
    forget_destroyed()
    collective = _collective()
    options = dict.fromkeys(collective.program(dtype_name(t.dtype)).codecs, compressor)
    refuse_states(
        collective, dtype_name(t.dtype), options, "coccl_dsl.torch.isend" if sends else "coccl_dsl.torch.irecv"
    )
    ends = {"target" if sends else "source": peer}
    return collective.bind(pg, like=t, capacity=capacity, **ends, **options)


@cache
def _collective() -> Collective:
    return load("send_recv")


def _start(t: torch.Tensor, sends: bool, peer: int, group: Group, tag: int, compressor: str) -> dist.Work:
    pg = member(group)
    if peer == pg.rank():
        raise ValueError(f"rank {peer} sends to itself; a message is between two ranks")
    return move(pg, t, sends, peer, tag, lambda lane: _message(t, sends, peer, pg, compressor, lane))


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

    def make(i: int, lane: Any) -> Message | None:
        o = ops[i]
        if o.tensor.dtype not in NAMES or not o.tensor.numel():
            return None
        return _message(o.tensor, o.op is dist.isend, o.group_peer, o.group, compressor, lane)

    return move_batch(dist.batch_isend_irecv, ops, make)
