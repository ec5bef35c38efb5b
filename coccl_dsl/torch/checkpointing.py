"""Activation checkpointing runs a region twice; stochastic rounding must send the same wires both times.

Importing `coccl_dsl.torch` wraps the `function` argument of `torch.utils.checkpoint.checkpoint`: its first run records the call numbers that it
draws, each later one draws them again (see `runtime/replay.py`). A compressor with a state is refused in there by name.

Not in compiled graphs: what torch.compile makes of a region runs a collective again as a new call. There, round to nearest, or keep the collective's
result: `context_fn=partial(create_selective_checkpoint_contexts, [torch.ops.coccl.all_reduce.default])`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint as module

from ..runtime.dispatch import replace_everywhere
from ..runtime.replay import Region, first_run, second_run


def repeatable(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose first run records call numbers; the others repeat them."""
    region, runs = Region(), 0

    @functools.wraps(function, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal runs
        runs += 1
        with first_run(region) if runs == 1 else second_run(region):
            return function(*args, **kwargs)

    return run


def install() -> None:
    """Wrap torch.utils.checkpoint.checkpoint, once, also where it was imported by name before."""
    original = module.checkpoint
    if hasattr(original, "coccl_dsl"):
        return

    @functools.wraps(original)
    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # A compiler traces the function; it knows nothing of call numbers.
        if torch.compiler.is_compiling():
            return original(function, *args, **kwargs)
        return original(repeatable(function), *args, **kwargs)

    checkpoint.coccl_dsl = True  # pyright: ignore
    replace_everywhere(original, checkpoint)
