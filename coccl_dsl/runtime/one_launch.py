"""Ops whose calls are one kernel each, over mapped memory: for what is so small that starting kernels would be most of its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..codegen.one_launch_source import Control, ExchangeArgs, ExchangePart, LaunchPart, one_tiling
from ..plan.one_launch import obstacle
from ..plan.ops import Exchange, Launch, Plan
from .errors import BindError
from .tuning import ONE_LAUNCH_TO

if TYPE_CHECKING:
    from ..codegen.tiling import Tiling
    from ..codegen.triton_backend import TritonBackend
    from .transports.symm import SymmTransport


@dataclass(frozen=True)
class OneLaunchCalls:
    """What an executor needs for them. exchanges: level -> its exchange; shape: the tiles, alike on all ranks."""

    backend: TritonBackend
    control: Control
    exchanges: dict[int, ExchangeArgs]
    shape: Tiling


def variant_of(step: Launch) -> LaunchPart:
    """The variant of a launch: of its plan, not of a count, so that all counts run the same kernel."""
    return LaunchPart(
        step.signature,
        all(len(f.opened) <= 1 for f in step.folds),
        all(f.local + len(f.remote) == 1 for f in step.folds if f.wire is not None),
        bool(step.copies),
    )


def read_by(plan: Plan, lengths: dict[int, int], itemsize: int) -> int:
    """Bytes that a rank's Folds read, wires counted as what they open to. lengths: extent -> elements."""
    folds = [f for s in plan.steps if isinstance(s, Launch) for f in s.folds]
    return itemsize * sum(lengths[f.extent] * (len(f.dense) + len(f.opened)) for f in folds)


def in_one_launch(plans: Sequence[Plan], asked: bool | None, read: int, other: str) -> bool:
    """Whether calls are one launch each: a function of what all ranks know. read: bytes that the Folds of the busiest rank read in the largest
    call; other: what else is in the way, or "".

    Raises BindError where it was asked for and cannot be had.
    """
    if asked is False or (asked is None and read > ONE_LAUNCH_TO):
        return False
    why = other or obstacle(plans)
    if asked and why:
        raise BindError(f"one_launch=True is not available: {why}")
    return not why


def calls_of(
    backend: TritonBackend, transport: SymmTransport, plans: Sequence[Plan], rank: int, longest: int
) -> OneLaunchCalls:
    """Of one rank, whose transport has the counters."""
    exchanges = {}
    for step in plans[rank].steps:
        if isinstance(step, Exchange):
            signals = tuple(dict.fromkeys(t.peer for t in step.sends))
            waits = tuple(dict.fromkeys(t.peer for t in step.recvs))
            rows = transport.rows(step.level, signals, waits)
            part = ExchangePart(step.level, max(len(signals), len(waits)))
            exchanges[step.level] = ExchangeArgs(part, rows, len(signals), len(waits))
    signatures = list(dict.fromkeys(s.signature for p in plans for s in p.steps if isinstance(s, Launch)))
    # A rank's plan has the codecs of its own wires.
    codecs = {name: codec for p in plans for name, codec in p.codecs.items()}
    return OneLaunchCalls(backend, transport.control(), exchanges, one_tiling(signatures, codecs, longest))
