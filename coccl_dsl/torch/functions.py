"""Collectives as functions: pick a shipped algorithm, bind it on the first call of a kind, run it.

    y = coccl_dsl.all_reduce(x, compressor="int4")
    print(coccl_dsl.explain("all_reduce", x, compressor="int4"))

A kind is (collective, group, op, dtype, device, compressor, algorithm, root, count rounded up to a power of two). Its first call binds, which
is collective (for send and recv: of the two ends), so all ranks make first calls in one order. Under CUDA graph capture a first call raises.

Where x needs a gradient, and in a compiled graph, these call torch.ops.coccl (see `library`), which is differentiable and can be traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..runtime.dispatch import of_groups
from ..shown import Explanation
from . import debug, library
from .calls import Asked, Compressors, ReduceOp, bound_op, found, member, op_text, pick
from .choose import CANDIDATES


def all_reduce(
    x: torch.Tensor,
    op: ReduceOp = "sum",
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    mesh: dict[str, int] | None = None,
) -> Any:
    """The sum (op: sum, avg, premul(f)) of all ranks' x, in the same bits everywhere, as a new tensor; `out=x` is in place.

    x           float32, bfloat16 or float16, any shape; the same on all ranks
    compressor  a compressor for every level, or name in the text -> compressor; levels that the text ships raw stay raw unless named
    algorithm   auto, the name of a shipped algorithm, or a file
    group       None: all ranks
    async_op    True: a `Work`, whose wait() gives the result
    mesh        node=..., local=...: how the group's ranks lie on machines; else found out

    Raises BindError on all ranks where arguments differ or do not fit, TypeError and ValueError for x, CollectiveError when a peer fails.
    """
    return _run("all_reduce", x, group, op, compressor, algorithm, mesh, out=out, async_op=async_op)


def reduce_scatter(
    x: torch.Tensor,
    op: ReduceOp = "sum",
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    mesh: dict[str, int] | None = None,
) -> Any:
    """This rank's shard of the sum, cut along dimension 0 as torch's reduce_scatter_tensor does. Arguments as for `all_reduce`."""
    return _run("reduce_scatter", x, group, op, compressor, algorithm, mesh, out=out, async_op=async_op)


def all_gather(
    x: torch.Tensor,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    mesh: dict[str, int] | None = None,
) -> Any:
    """All ranks' x along dimension 0, as torch's all_gather_into_tensor gives them, in the same bits everywhere."""
    return _run("all_gather", x, group, "sum", compressor, algorithm, mesh, out=out, async_op=async_op)


def all_to_all(
    x: torch.Tensor,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    mesh: dict[str, int] | None = None,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
    capacity: int | None = None,
    min_bytes: int = 0,
) -> Any:
    """Part i of x goes to rank i; the result holds the parts that came, in rank order.

    input_splits, output_splits  elements of each part, to and from each rank; else even parts
    capacity   with splits: the most elements that any rank sends another, in this call and later ones; the same on all ranks
    min_bytes  parts that take fewer bytes in x's dtype go raw
    """
    if (input_splits is None) != (output_splits is None) or (input_splits is not None) != (capacity is not None):
        raise ValueError("all_to_all with splits takes input_splits, output_splits and capacity together")
    splits = {} if input_splits is None else {"input_splits": input_splits, "output_splits": output_splits}
    if not splits and not min_bytes:
        return _run("all_to_all", x, group, "sum", compressor, algorithm, mesh, out=out, async_op=async_op)
    asked = Asked("sum", compressor, algorithm, mesh, min_bytes=min_bytes, pair=capacity)
    return _run_asked("all_to_all", x, group, asked, out=out, async_op=async_op, **splits)


def broadcast(
    x: torch.Tensor,
    root: int = 0,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> Any:
    """The root's x (as the others decompress it), in the same bits everywhere. root: a rank of the group."""
    return _run("broadcast", x, group, "sum", compressor, algorithm, None, root, out=out, async_op=async_op)


def reduce(
    x: torch.Tensor,
    root: int = 0,
    op: ReduceOp = "sum",
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> Any:
    """On the root the sum of all ranks' x; what the others get is unspecified."""
    return _run("reduce", x, group, op, compressor, algorithm, None, root, out=out, async_op=async_op)


def send(
    x: torch.Tensor,
    target: int,
    compressor: Compressors = "int8",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    tag: int = 0,
) -> Any:
    """Send x to rank `target` of the group, which calls `recv` with a tensor of the same size. Nobody else takes part."""
    return _run_asked(
        "send_recv",
        x,
        group,
        Asked("sum", compressor, "send_recv", None, ends=("target", target, tag)),
        async_op=async_op,
    )


def recv(
    x: torch.Tensor,
    source: int,
    compressor: Compressors = "int8",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    tag: int = 0,
) -> Any:
    """Receive into x, which is also the result, what rank `source` of the group sends with `send`."""
    return _run_asked(
        "send_recv",
        x,
        group,
        Asked("sum", compressor, "send_recv", None, ends=("source", source, tag)),
        async_op=async_op,
    )


def explain(
    collective: str,
    x: torch.Tensor,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    *,
    op: ReduceOp = "sum",
    root: int = 0,
    mesh: dict[str, int] | None = None,
) -> Explanation:
    """Which algorithm a call would run, why, and, where it is bound, over what. The first call for a group is collective."""
    if collective not in CANDIDATES or collective == "send_recv":
        raise ValueError(f"{collective!r} is not one of {', '.join(k for k in CANDIDATES if k != 'send_recv')}")
    pg, asked = member(group), Asked(op_text(op), compressor, algorithm, mesh, root)
    if pg.size() == 1:
        return Explanation(f"{collective}: a group of one; the result is the input times the op's factor")
    name, choice, _ = pick(collective, x, pg, asked, native=True)
    told = f"{collective}: {choice.text()}" if choice else f"{collective}: {name}, as asked for"
    bound = found(collective, x, pg, asked, native=True)
    return Explanation(f"{told}\n{bound.explain() if bound is not None else 'not bound yet: the first call binds it'}")


# Ops of calls that came before, by what the user wrote: what a call costs beside its op. Threads add to them without a lock, so nobody iterates.
_quick: dict[dist.ProcessGroup, dict[tuple[Any, ...], Any]] = of_groups()
_MOST = 4096


def _run(
    kind: str,
    x: torch.Tensor,
    group: dist.ProcessGroup | None,
    op: ReduceOp,
    compressor: Compressors,
    algorithm: str,
    mesh: dict[str, int] | None,
    root: int = 0,
    *,
    out: torch.Tensor | None = None,
    async_op: bool = False,
) -> Any:
    plain = isinstance(x, torch.Tensor) and not x.requires_grad and not torch.compiler.is_compiling()
    # A premul's ReduceOp does not compare its factor.
    if not plain or mesh is not None or type(op) is not str or type(compressor) is not str or debug.enabled():
        asked = Asked(op_text(op), compressor, algorithm, mesh, root)
        return _run_asked(kind, x, group, asked, out=out, async_op=async_op)
    known = dist.distributed_c10d._world
    pg: Any = group if group is not None else known.default_pg
    how = (op, compressor, algorithm, root, torch.are_deterministic_algorithms_enabled())
    key = (kind, x.dtype, x.device, x.numel(), how)
    kept = _quick.get(pg)
    bound = kept.get(key) if kept is not None and pg in known.pg_map else None
    if bound is None:
        bound = bound_op(kind, x, group, Asked(op, compressor, algorithm, None, root), native=True)
        kept = _quick.setdefault(pg, {})
        if len(kept) >= _MOST:
            kept.clear()
        kept[key] = bound
    return bound(x, out=out, async_op=async_op)


def _run_asked(
    kind: str,
    x: torch.Tensor,
    group: dist.ProcessGroup | None,
    asked: Asked,
    *,
    out: torch.Tensor | None = None,
    async_op: bool = False,
    **splits: Any,
) -> Any:
    if torch.compiler.is_compiling() or (isinstance(x, torch.Tensor) and x.requires_grad and torch.is_grad_enabled()):
        if kind != "send_recv":
            if out is not None or async_op:
                raise ValueError(
                    "out= and async_op=True are not available where x needs a gradient, nor in a compiled graph: pass x.detach() and call outside "
                    "of the graph, or leave the two away"
                )
            return library.functional(kind, x, group, asked, **splits)
    return bound_op(kind, x, group, asked, splits, native=True)(x, out=out, async_op=async_op, **splits)
