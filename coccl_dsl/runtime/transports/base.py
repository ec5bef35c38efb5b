"""What a transport is, and how the slices of a call are driven over one."""

from __future__ import annotations

from typing import Protocol

import torch

from ..executor import ExchangeCall, Executor


class Pending(Protocol):
    def wait(self) -> None:
        """Return when the wires are there, or when the current stream is ordered after them. Raises CollectiveError."""


class Transport(Protocol):
    """streams: how many side streams the slices of a call take turns on; 0 where a wait holds the host or one stream serves."""

    name: str
    streams: int

    def begin(self) -> None:
        """Before the first step of a call. Raises CollectiveError when the transport has failed."""

    def post(self, call: ExchangeCall) -> Pending:
        """Start one level of one slice. Every rank posts the same levels in the same order."""
        ...

    def end(self) -> None:
        """After the last step of a call."""


class Done:
    """Nothing to wait for: the stream is ordered already."""

    def wait(self) -> None:
        pass


class _Lanes:
    """Side streams on which slices take turns, forked from the caller's stream and joined to it."""

    def __init__(self, device: torch.device, count: int):
        self.caller = torch.cuda.current_stream(device)
        self.streams = side_streams(device, count)
        for s in self.streams:
            s.wait_stream(self.caller)

    def of(self, slice: int) -> torch.cuda.Stream:
        return self.streams[slice % len(self.streams)]

    def join(self) -> None:
        for s in self.streams:
            self.caller.wait_stream(s)


_side: dict[torch.device, list[torch.cuda.Stream]] = {}


def side_streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """The device's side streams, made once."""
    made = _side.setdefault(device, [])
    while len(made) < count:
        made.append(torch.cuda.Stream(device))
    return made[:count]


def drive(executor: Executor, transport: Transport, x: torch.Tensor, y: torch.Tensor, count: int, splits=None) -> None:
    """Run one call. Slice k+1 starts one level behind slice k, so its Folds run while slice k's wires move; the order of levels over slices
    is the same on all ranks."""
    executor.begin(count)
    prepared = executor.prepare(count, splits)
    transport.begin()
    lanes = _Lanes(executor.device, transport.streams) if transport.streams and executor.depth > 1 else None
    running = [executor.slice_steps(prepared, k, x, y) for k in range(executor.depth)]
    pending: list[Pending | None] = [None] * len(running)
    started, left = 0, len(running)

    def advance(k: int) -> bool:
        """Run slice k up to its next exchange; False when it is complete."""
        held = pending[k]
        if held is not None:
            held.wait()
        call = next(running[k], None)
        pending[k] = transport.post(call) if call is not None else None
        return call is not None

    alive = [True] * len(running)
    while left:
        started = min(started + 1, len(running))
        for k in range(started):
            if not alive[k]:
                continue
            if lanes is None:
                alive[k] = advance(k)
            else:
                with torch.cuda.stream(lanes.of(k)):
                    alive[k] = advance(k)
            left -= not alive[k]
    if lanes is not None:
        lanes.join()
    transport.end()
    executor.finish(prepared)
