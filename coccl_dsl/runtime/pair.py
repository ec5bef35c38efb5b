"""send_recv between two ranks of a group of any size: only these two bind and call, and nothing is exchanged at bind.

    op = send_recv.bind(group, like=x, target=3)      on the sender;    op(x) sends x
    op = send_recv.bind(group, like=y, source=1)      on the receiver;  op(y) receives into y

Both sides say the same op, compressors, capacity and tag. The result is x on the sender and y on the receiver. Forward and backward are two
bindings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..pipeline import World
from .bind import backend_for, settings_of
from .dtypes import dtype_name
from .errors import BindError
from .executor import Executor
from .op import Op
from .transports.torch_p2p import MAX_TAG, TorchTransport
from .tuning import tuned

if TYPE_CHECKING:
    from ..pipeline import Collective
    from ..plan.cut import Cut


class PairOp(Op):
    """One end of a bound send_recv. rank 0 is the sender, rank 1 the receiver."""

    def _result(self, x: torch.Tensor, out: torch.Tensor | None, made: Cut) -> torch.Tensor:
        if self.rank == 0:
            if out is not None:
                raise ValueError("the sender of a send_recv has no result; leave `out` away")
            return x.detach()
        if out is None and not x.is_contiguous():
            raise ValueError("the receiver's tensor is not contiguous; give a contiguous one")
        return super()._result(x, x if out is None else out, made)


def bind_pair(
    collective: Collective, group: dist.ProcessGroup | None, like: torch.Tensor, options: dict[str, Any]
) -> PairOp:
    """Options of `bind`, with `source` or `target`, the peer's group rank (or both), and `tag`. Raises BindError on this rank alone."""
    if not dist.is_initialized():
        raise BindError("torch.distributed is not initialised: call init_process_group first")
    pg = group if group is not None else dist.group.WORLD
    assert pg is not None
    own, count = dist.get_rank(pg), dist.get_world_size(pg)
    given = dict(options)
    source, target, tag = given.pop("source", None), given.pop("target", None), given.pop("tag", 0)
    ends = (own if source is None else source, own if target is None else target)
    for name, rank in zip(("source", "target"), ends, strict=True):
        if not isinstance(rank, int) or not 0 <= rank < count:
            raise BindError(f"{name}={rank!r} is not a rank of 0..{count - 1}")
    if own not in ends:
        raise BindError(f"rank {own} is neither source {ends[0]} nor target {ends[1]}; only these two bind a send_recv")
    if ends[0] == ends[1]:
        raise BindError(f"source and target are both rank {own}; name the other end")
    if not isinstance(tag, int) or not 0 <= tag < MAX_TAG:
        raise BindError(f"tag={tag!r} is not in 0..{MAX_TAG - 1}")
    s = settings_of(collective, like, 2, given)
    if s.mesh:
        raise BindError(f"mesh={s.mesh!r}: a send_recv is between two ranks")
    if s.one_launch:
        raise BindError("one_launch=True is not available: the sender of a send_recv never waits for its receiver")
    if s.transport not in ("auto", "torch"):
        raise BindError(
            f"transport={s.transport!r} is set up by all ranks together; between two ranks of a group there is 'torch'"
        )
    rank, dtype, world = ends.index(own), dtype_name(like.dtype), World((2,), 0, s.op)
    trace = collective.trace(world, dtype=dtype, compressors=s.compressors)
    plan = collective.plan(world, rank, dtype=dtype, compressors=s.compressors, trace=trace, fuse=s.fuse)
    depth = tuned(plan, 0, s.depth).depth
    executor = Executor(
        plan,
        backend_for(collective, like.device, s.backend),
        like.device,
        s.capacity,
        world.factor,
        s.seed,
        depth,
        limit=s.arena_bytes,
    )
    executor.prepare(s.capacity)
    what = f"`{collective.name}` from rank {ends[0]} to rank {ends[1]}"
    transport = TorchTransport(pg, like.device, what, ends, 1 + tag)
    op = PairOp(collective, world, rank, plan, executor, transport, s, like.device, like.dtype)
    op.join(pg, f"{ends[0]}-{ends[1]}.{tag}")
    return op
