"""Call numbers of a region of code that runs twice (activation checkpointing): the second run draws those of the first.

Stochastic rounding is a function of (seed, call number, place), so the second run sends the same wires and gives the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from .errors import CollectiveError

if TYPE_CHECKING:
    from .executor import Executor


@dataclass
class Region:
    """What the first run drew: of each op, in order, the (seed, call number) as it stood on the device. By op, as a second run leaves out what
    selective checkpointing has kept."""

    drawn: dict[Executor, list[torch.Tensor]] = field(default_factory=dict)


@dataclass
class _Run:
    """A run of a region that is going on. repeated: how many calls of each op, or None in a first run."""

    region: Region
    repeated: dict[Executor, int] | None
    outer: _Run | None


_local = threading.local()


@contextmanager
def first_run(region: Region) -> Iterator[None]:
    """Record the call numbers that this thread's calls draw."""
    region.drawn.clear()
    with _running(region, None):
        yield


@contextmanager
def second_run(region: Region) -> Iterator[None]:
    """Draw what the first run drew, from its beginning. It may end early."""
    with _running(region, {}):
        yield


@contextmanager
def _running(region: Region, repeated: dict[Executor, int] | None) -> Iterator[None]:
    outer = getattr(_local, "run", None)
    _local.run = _Run(region, repeated, outer)
    try:
        yield
    finally:
        _local.run = outer


def in_region() -> bool:
    """Whether this thread runs a region."""
    return getattr(_local, "run", None) is not None


@contextmanager
def call_number(executor: Executor) -> Iterator[None]:
    """Around one call, on the stream that it runs on.

    Raises CollectiveError in a region where the call keeps a state, or where the second run calls what the first did not.
    """
    run: _Run | None = getattr(_local, "run", None)
    if run is None:
        yield
        return
    plan = executor.plan
    kept = [name for name, codec in plan.codecs.items() if codec.stateful]
    if kept:
        raise CollectiveError(
            f"`{plan.name}` inside a region of activation checkpointing: compressor `{plan.codecs[kept[0]].name}` keeps a state, and the region "
            "runs twice. Use a compressor without a state there, or take the call out of the region"
        )
    if not plan.stochastic:
        yield
        return
    runs: list[_Run] = []
    while run is not None:
        runs.append(run)
        run = run.outer
    # A region inside one that runs again is new, and is to draw what its like drew inside of the first run.
    number = None
    for one in reversed(runs):
        if one.repeated is None:
            continue
        drawn, done = one.region.drawn.get(executor, []), one.repeated.get(executor, 0)
        if done >= len(drawn):
            raise CollectiveError(
                f"`{plan.name}` inside a region of activation checkpointing: the second run makes other calls than the first, so that stochastic "
                "rounding cannot be repeated. The region must do the same in both runs"
            )
        number = drawn[done]
        one.repeated[executor] = done + 1
    now = executor.rng.clone()
    for one in runs:
        if one.repeated is None:
            one.region.drawn.setdefault(executor, []).append(now if number is None else number)
    if number is None:
        yield
        return
    executor.rng.copy_(number)
    try:
        yield
    finally:
        executor.rng.copy_(now)
