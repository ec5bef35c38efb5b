"""Defining torch.ops.coccl.NAME: schema, kernel, fake kernel, autograd, and a mark that keeps an unused result in a compiled graph.

    define("all_reduce", "str group_name, str op='sum'", run, shape=lambda x, a: x.shape, adjoint=...)     coccl::all_reduce(Tensor x, ...) -> Tensor
    define("all_reduce_", "str group_name, str op='sum'", run, writes="x")                                 coccl::all_reduce_(Tensor(a!) x, ...) -> ()

A kernel gets the first tensor and the other arguments by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.fx.node import has_side_effect

NAMESPACE = "coccl"

Arguments = dict[str, Any]


def define(
    name: str,
    arguments: str,
    run: Callable[[torch.Tensor, Arguments], torch.Tensor | None],
    *,
    writes: str = "",
    shape: Callable[[torch.Tensor, Arguments], Any] | None = None,
    adjoint: Callable[[Arguments, torch.Tensor], torch.Tensor] | None = None,
) -> Callable[..., Any]:
    """Define coccl::NAME and return it.

    arguments  those after `Tensor x`, as in a schema
    writes     "x", or "out" for a second tensor: what the operator writes to; it returns nothing then
    shape      of the result, which has x's dtype and device and is memory of its own
    adjoint    (arguments, gradient of the result) -> gradient of x; the arguments hold `like`, an empty tensor with x's shape
    """
    tensors = {"": "Tensor x", "x": "Tensor(a!) x", "out": "Tensor x, Tensor(a!) out"}[writes]
    schema = f"({tensors}, {arguments}) -> {'()' if writes else 'Tensor'}"
    full = f"{NAMESPACE}::{name}"
    named: list[tuple[str, Any]] = []

    def by_name(given: tuple[Any, ...], keywords: Arguments) -> Arguments:
        if not named:
            named.extend((a.name, a.default_value) for a in handle.default._schema.arguments[1:])
        return dict(named) | dict(zip((n for n, _ in named), given, strict=False)) | keywords

    def kernel(x: torch.Tensor, *given: Any, **keywords: Any) -> torch.Tensor | None:
        return run(x, by_name(given, keywords))

    def fake(x: torch.Tensor, *given: Any, **keywords: Any) -> torch.Tensor | None:
        return None if shape is None else x.new_empty(shape(x, by_name(given, keywords)))

    made = torch.library.custom_op(full, kernel, mutates_args=(writes,) if writes else (), schema=schema)
    made.register_fake(fake)
    handle = getattr(getattr(torch.ops, NAMESPACE), name)
    if adjoint is not None:
        _differentiate(made, adjoint, by_name)
    if not writes:
        has_side_effect(handle.default)
    return handle


def _differentiate(made: Any, adjoint: Callable[[Arguments, torch.Tensor], torch.Tensor], by_name: Any) -> None:
    def keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.arguments = by_name(inputs[1:], {})
        ctx.count, ctx.shape = len(inputs), inputs[0].shape

    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        g = adjoint(ctx.arguments | {"shape": ctx.shape}, gradient.contiguous())
        return (g.reshape(ctx.shape), *[None] * (ctx.count - 1))

    made.register_autograd(backward, setup_context=keep)


def resolve(group_name: str) -> dist.ProcessGroup:
    """The group of this name. Raises ValueError where there is none."""
    try:
        return dist.distributed_c10d._resolve_process_group(group_name)  # pyright: ignore
    except (RuntimeError, KeyError, ValueError) as e:
        raise ValueError(f"there is no process group named {group_name!r}; pass group.group_name") from e


def fresh(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """y, copied where it is x's memory: an operator may not return its input, as a group of one does."""
    shared = y.numel() and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return y.clone() if shared else y


def gathered(x: torch.Tensor, world: int) -> tuple[Any, ...]:
    """Shape of an all_gather's result, as `Op` gives it."""
    if world == 1:
        return tuple(x.shape)
    return (world * x.shape[0], *x.shape[1:]) if x.dim() else (world,)


def scattered(x: torch.Tensor, world: int) -> tuple[Any, ...]:
    """Shape of a reduce_scatter's result, as `Op` gives it."""
    if world == 1:
        return tuple(x.shape)
    even = x.dim() and x.shape[0] % world == 0
    return (x.shape[0] // world, *x.shape[1:]) if even else (x.numel() // world,)
