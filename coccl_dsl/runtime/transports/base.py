"""What a transport is, and how slices are driven over one."""

from __future__ import annotations

from typing import Protocol

import torch

from ..executor import ExchangeCall, Executor


class Pending(Protocol):
    def wait(self) -> None:
        """Return when the wires are there, or when the current stream is ordered after them. Raises CollectiveError."""


class Transport(Protocol):
    name: str

    def post(self, call: ExchangeCall) -> Pending:
        """Start one level of one slice. Every rank posts the same levels in the same order."""
        ...


def drive(executor: Executor, transport: Transport, x: torch.Tensor, y: torch.Tensor, count: int, splits=None) -> None:
    """Run one call. Slice k+1 starts one level behind slice k, so its Folds run while slice k's wires move; the order of levels over slices
    is the same on all ranks."""
    executor.begin(count)
    prepared = executor.prepare(count, splits)
    running = [executor.slice_steps(prepared, k, x, y) for k in range(executor.depth)]
    pending: list[Pending | None] = [None] * len(running)
    started, done = 0, [False] * len(running)
    while not all(done):
        started = min(started + 1, len(running))
        for k in range(started):
            if done[k]:
                continue
            held = pending[k]
            if held is not None:
                held.wait()
                pending[k] = None
            call = next(running[k], None)
            if call is None:
                done[k] = True
            else:
                pending[k] = transport.post(call)
    executor.finish(prepared)
