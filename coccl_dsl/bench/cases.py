"""What is compared: for each collective our call, NCCL's call, and how bytes count. One rank's view; tensors live on its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..pipeline import Collective, load
from ..runtime.op import Op

DEFAULT = {
    "all_reduce": "two_shot",
    "reduce_scatter": "reduce_scatter_direct",
    "all_gather": "all_gather_direct",
    "all_to_all": "all_to_all_direct",
    "send_recv": "send_recv",
}


@dataclass(frozen=True)
class Shape:
    """Elements of one rank's input and output. `size` counts as nccl-tests does: the larger of the two, in bytes."""

    input: int
    output: int


def shape_of(kind: str, size: int, item: int, world: int) -> Shape:
    """A call of `size` bytes of elements of `item` bytes."""
    count = max(size // item, world)
    match kind:
        case "reduce_scatter":
            shard = count // world
            return Shape(shard * world, shard)
        case "all_gather":
            shard = count // world
            return Shape(shard, shard * world)
        case "all_to_all":
            return Shape(count // world * world, count // world * world)
        case _:
            return Shape(count, count)


def bus_factor(kind: str, world: int) -> float:
    """busbw / algbw, as nccl-tests define it."""
    return {"all_reduce": 2 * (world - 1) / world, "send_recv": 1.0}.get(kind, (world - 1) / world)


def native(kind: str, rank: int) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """NCCL's call on (x, y). all_reduce is in place on y, as torch has it."""
    match kind:
        case "all_reduce":
            return lambda x, y: dist.all_reduce(y)
        case "reduce_scatter":
            return lambda x, y: dist.reduce_scatter_tensor(y, x)
        case "all_gather":
            return lambda x, y: dist.all_gather_into_tensor(y, x)
        case "all_to_all":
            return lambda x, y: dist.all_to_all_single(y, x)
        case "send_recv":

            def one_way(x: torch.Tensor, y: torch.Tensor) -> None:
                ops = [dist.P2POp(dist.isend, x, 1)] if rank == 0 else [dist.P2POp(dist.irecv, y, 0)]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()

            return one_way
    raise ValueError(f"no NCCL call stands beside {kind}")


def ours(op: Op) -> Callable[[torch.Tensor, torch.Tensor], object]:
    return lambda x, y: op(x, out=y)


def collective_for(name: str) -> Collective:
    """A collective by the name of its kind (its default algorithm), of an algorithm, or of a file."""
    return load(DEFAULT.get(name, name))
