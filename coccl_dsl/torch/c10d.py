"""torch.distributed's collectives, with their own signatures, plus what is compressed and how. In place, as those are.

    coccl_dsl.torch.all_reduce(grad, group=group, compressor="int4")
    work = coccl_dsl.torch.reduce_scatter_tensor(shard, grads, op=dist.ReduceOp.AVG, async_op=True)

Every function also takes, by keyword:

    compressor  a compressor for every level of the algorithm, or name in its text -> compressor
    algorithm   auto, the name of a shipped algorithm, or a file
    mesh        node=..., local=...: how the group's ranks lie on machines; else found out

The first call of a kind binds, collectively (see `calls`). With async_op a torch Work is returned, else nothing. In a compiled graph they become
torch.ops.coccl's in-place forms. All raise BindError where this process is not in the group or the ranks do not agree, TypeError for dtypes other
than float32, bfloat16 and float16, ValueError for a ReduceOp other than SUM, AVG and PREMUL_SUM, for tensors to write to that are not contiguous
and for sizes that do not fit, CollectiveError when a peer fails.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from . import library
from .calls import Asked, Compressors, ReduceOp, bound_op, member, op_text
from .uneven import in_elements
from .works import issue

Group = dist.ProcessGroup | None
Mesh = dict[str, int] | None


def all_reduce(
    tensor: torch.Tensor,
    op: ReduceOp = "sum",
    group: Group = None,
    async_op: bool = False,
    *,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    mesh: Mesh = None,
) -> dist.Work | None:
    """Replace `tensor` by the sum (op: SUM, AVG, PREMUL_SUM, or sum, avg, premul(f)) over all ranks: the same bits on all of them."""
    asked = Asked(op_text(op), compressor, algorithm, mesh)
    return _run("all_reduce", tensor, _to(tensor, "tensor"), group, asked, async_op)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: ReduceOp = "sum",
    group: Group = None,
    async_op: bool = False,
    *,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    mesh: Mesh = None,
) -> dist.Work | None:
    """Write this rank's shard of the sum of all ranks' `input` to `output`, which may be its place in `input`."""
    asked = Asked(op_text(op), compressor, algorithm, mesh)
    return _run("reduce_scatter", input, _to(output, "output"), group, asked, async_op)


def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: Group = None,
    async_op: bool = False,
    *,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    mesh: Mesh = None,
) -> dist.Work | None:
    """Write all ranks' `input_tensor`, in rank order, to `output_tensor`, of which it may be a part; the same bits on all ranks."""
    asked = Asked("sum", compressor, algorithm, mesh)
    return _run("all_gather", input_tensor, _to(output_tensor, "output_tensor"), group, asked, async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
    *,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    mesh: Mesh = None,
    capacity: int | None = None,
    min_bytes: int = 0,
) -> dist.Work | None:
    """Rows of `input` to all ranks, rows from all ranks to `output`: even parts, or as many rows as the split sizes say: on all ranks,
    or on none. (A rank that leaves them out cannot know that others gave them, and is waited for until the timeout.)

    capacity   with split sizes: the most rows that any rank sends another, in this call and later ones, alike on all ranks. Else the ranks find
               the largest part of each call, by an all-reduce of one number, which waits for the device
    min_bytes  parts that take fewer bytes in the tensor's dtype are sent as they are
    """
    asked = Asked("sum", compressor, algorithm, mesh, min_bytes=min_bytes)
    splits = output_split_sizes or None, input_split_sizes or None
    return _run("all_to_all", input, _to(output, "output"), group, asked, async_op, (*splits, capacity or 0))


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    mesh: Mesh = None,
) -> dist.Work | None:
    """Replace `tensor` by what it is on the source, as decompressed, on the source too. src: a rank of all; group_src: of the group."""
    asked = Asked("sum", compressor, algorithm, mesh, _peer(group, src, group_src, "src"))
    return _run("broadcast", tensor, _to(tensor, "tensor"), group, asked, async_op)


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: ReduceOp = "sum",
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    mesh: Mesh = None,
) -> dist.Work | None:
    """Replace `tensor` by the sum over all ranks on the destination; elsewhere it is undefined afterwards."""
    asked = Asked(op_text(op), compressor, algorithm, mesh, _peer(group, dst, group_dst, "dst"))
    return _run("reduce", tensor, _to(tensor, "tensor"), group, asked, async_op)


def _peer(group: Group, rank: int | None, group_rank: int | None, name: str) -> int:
    """A rank of the group, of one given among all ranks or in the group. Raises ValueError unless one of the two is given."""
    if (rank is None) == (group_rank is None):
        raise ValueError(f"give {name} or group_{name}, one of the two")
    if group_rank is not None or rank is None:
        size = member(group).size()
        if not isinstance(group_rank, int) or not 0 <= group_rank < size:
            raise ValueError(f"group_{name}={group_rank!r} is not a rank of 0..{size - 1}")
        return group_rank
    return dist.get_group_rank(member(group), rank)


def _to(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is {type(tensor).__name__}, a tensor is wanted")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous, and is written to: give {name}.contiguous()")
    return tensor


def _run(
    kind: str,
    x: torch.Tensor,
    out: torch.Tensor,
    group: Group,
    asked: Asked,
    async_op: bool,
    splits: tuple[Sequence[int] | None, Sequence[int] | None, int] | None = None,
) -> dist.Work | None:
    if out.requires_grad and not out.is_leaf and torch.is_grad_enabled():
        raise ValueError(
            f"{kind} would write into a tensor that autograd has made, whose gradient would be wrong: coccl_dsl.{kind} gives a new tensor and has a "
            "gradient; or call this under torch.no_grad()"
        )
    if torch.compiler.is_compiling():
        if async_op:
            raise ValueError("async_op=True is not available in a compiled graph")
        library.into(kind, x, out, group, asked, splits)
        return None
    pg, call = member(group), {}
    if splits is not None:
        asked, call = in_elements(x, pg, *splits, asked)
    op = bound_op(kind, x, pg, asked, call)
    if not async_op:
        op(x, out=out, **call)
        return None
    return issue(pg, x.device, True, lambda: op(x, out=out, **call), [out], (x, out))
