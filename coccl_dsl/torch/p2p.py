"""send, recv and batch_isend_irecv on the transparent path: what a rule takes moves as wires (messages.py), all else as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from . import traffic
from .groups import Groups, Taken
from .messages import Message, move, move_batch, reused
from .selection import Bound

_ATTRIBUTE = "_coccl_direction"


def mark(t: torch.Tensor, direction: str) -> None:
    """Say which way a tensor goes through the pipeline: forward or backward."""
    setattr(t, _ATTRIBUTE, direction)


class _Batching(threading.local):
    """active: this thread is inside torch's own batch, whose messages have been decided."""

    active = False


_batching = _Batching()


def _decide(groups: Groups, pg: dist.ProcessGroup, t: torch.Tensor, sends: bool, peer: int, tag: int) -> Taken | None:
    direction = getattr(t, _ATTRIBUTE, "")
    return groups.decide(pg, "send", t, t.numel(), where=(sends, peer, tag), direction=direction)


def _message(groups: Groups, taken: Taken, t: torch.Tensor, sends: bool, peer: int, lane: Any) -> Message:
    state, kind, rule = taken

    def bind(_: int) -> Bound:
        end: dict[str, Any] = {"target" if sends else "source": peer}
        return groups.bound(state, rule, "send", t, t.numel(), **end)

    bound, release = reused(state.idle, (rule.number, sends, peer, lane), t, bind)
    # On the CPU whichever op comes takes the message's number; on CUDA, where a graph repeats it, the op of the lane counts itself.
    message = Message(bound.op, t, sends, release, kind.calls if lane == "cpu" else None)
    raw, wire = bound.sizes(t.numel()) if sends else (0, 0)
    traffic.record(kind.role, "send" if sends else "recv", bound.algorithm, bound.compressor, raw, wire)
    return message


def single(
    groups: Groups, pg: dist.ProcessGroup, tensors: Sequence[torch.Tensor], sends: bool, peer: int, tag: int
) -> dist.Work | None:
    """A Work, or None where the call goes native."""
    if len(tensors) != 1 or _batching.active or groups.passes(pg, "send", t := tensors[0]):
        return None
    taken = _decide(groups, pg, t, sends, peer, tag)
    if taken is None:
        return None
    return move(pg, t, sends, peer, tag, lambda lane: _message(groups, taken, t, sends, peer, lane))


def batch(groups: Groups, native: Callable[[Any], list[dist.Work]], ops: Any) -> list[dist.Work]:
    """batch_isend_irecv: messages that a rule takes move as wires in the same batch."""
    good = isinstance(ops, list) and ops and all(isinstance(o, dist.P2POp) for o in ops)
    if not good or _batching.active or groups.shut(ops[0].group, "send"):
        return native(ops)
    taken = [_decide(groups, o.group, o.tensor, o.op is dist.isend, o.group_peer, o.tag) for o in ops]

    def make(i: int, lane: Any) -> Message | None:
        one, o = taken[i], ops[i]
        return None if one is None else _message(groups, one, o.tensor, o.op is dist.isend, o.group_peer, lane)

    _batching.active = True
    try:
        return move_batch(native, ops, make) if any(taken) else native(ops)
    finally:
        _batching.active = False
