"""What a transport is, and how the slices of a call are driven over one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ...codegen.launch import Prepared
from ..executor import ExchangeCall, Executor


class Pending(Protocol):
    def wait(self) -> None:
        """Return when the wires are there, or when the current stream is ordered after them. Raises CollectiveError."""


class Transport(Protocol):
    """streams: how many side streams the slices of a call take turns on; 0 where a wait holds the host or one stream serves.
    no_graphs: why an op may not replay graphs of its calls over it, or ""."""

    name: str
    streams: int
    no_graphs: str

    def check(self) -> None:
        """Raises CollectiveError when the transport has failed."""

    def begin(self) -> None:
        """Before the first step of a call. Raises CollectiveError when the transport has failed."""

    def post(self, call: ExchangeCall) -> Pending:
        """Start one level of one slice. Every rank posts the same levels in the same order."""
        ...

    def end(self) -> None:
        """After the last step of a call."""

    def replayed(self) -> None:
        """A captured call was launched on the current stream."""


class Done:
    """Nothing to wait for: the stream is ordered already."""

    def wait(self) -> None:
        pass


class _Lanes:
    """One stream a level: slices pass through them in order, so the Folds of one level run while another slice's wires move. Later levels
    have priority: what finishes a slice need not queue behind the stores of the next one. Forked from the caller's stream and joined to it."""

    def __init__(self, device: torch.device, count: int):
        self.caller = torch.cuda.current_stream(device)
        self.streams = side_streams(device, count)
        for s in self.streams:
            s.wait_stream(self.caller)

    def of(self, level: int) -> torch.cuda.Stream:
        return self.streams[min(level, len(self.streams) - 1)]

    def join(self) -> None:
        for s in self.streams:
            self.caller.wait_stream(s)


_side: dict[torch.device, list[torch.cuda.Stream]] = {}


def side_streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """The device's side streams, made once, of rising priority (lower numbers come first)."""
    made = _side.setdefault(device, [])
    while len(made) < count:
        made.append(torch.cuda.Stream(device, priority=-len(made)))
    return made[:count]


def _copies_beside(executor: Executor, prepared, x: torch.Tensor, y: torch.Tensor) -> torch.cuda.Stream | None:
    """Copy chunks that stay as they are, on a stream of their own where there are streams: the copy engines do it while Folds use the link."""
    if not prepared.copies or executor.device.type != "cuda":
        executor.copy(prepared, x, y)
        return None
    stream = side_streams(executor.device, 4)[3]
    stream.wait_stream(torch.cuda.current_stream(executor.device))
    with torch.cuda.stream(stream):
        executor.copy(prepared, x, y)
    return stream


def drive(
    executor: Executor,
    transport: Transport,
    x: torch.Tensor,
    y: torch.Tensor,
    count: int,
    splits=None,
    launched: Callable[[Prepared], None] | None = None,
) -> None:
    """Run one call. Slice k+1 starts one level behind slice k, so its Folds run while slice k's wires move; the order of levels over slices
    is the same on all ranks. launched: is told every launch of a Fold."""
    executor.begin(count)
    prepared = executor.prepare(count, splits)
    passes = prepared.passes
    if len(passes) == 1 and len(passes[0]) == 1 and not prepared.copies:
        _drive_straight(transport, passes[0][0], x, y, launched)
        executor.finish(prepared)
        return
    copying: torch.cuda.Stream | None = None
    for number, slices in enumerate(passes):
        transport.begin()
        if number == 0:
            copying = _copies_beside(executor, prepared, x, y)
        _drive_pass(executor, transport, slices, x, y, launched)
        transport.end()
    if copying is not None:
        torch.cuda.current_stream(executor.device).wait_stream(copying)
    executor.finish(prepared)


def _drive_straight(
    transport: Transport,
    steps: list[Any],
    x: torch.Tensor,
    y: torch.Tensor,
    launched: Callable[[Prepared], None] | None,
) -> None:
    """One slice has nothing to overlap with: its steps in order, which costs the host the least."""
    transport.begin()
    for step in steps:
        if isinstance(step, ExchangeCall):
            transport.post(step).wait()
            continue
        step.run(x, y)
        if launched is not None:
            launched(step)
    transport.end()


def _drive_pass(
    executor: Executor,
    transport: Transport,
    slices: list[Any],
    x: torch.Tensor,
    y: torch.Tensor,
    launched: Callable[[Prepared], None] | None,
) -> None:
    depth = len(slices)
    lanes = None
    if transport.streams and depth > 1:
        lanes = _Lanes(executor.device, min(transport.streams, executor.plan.levels + 1))
    running = [executor.run_slice(steps, x, y, launched) for steps in slices]
    pending: list[Pending | None] = [None] * depth
    level = [0] * depth
    alive = [True] * depth

    def advance(k: int) -> None:
        """Run slice k up to its next exchange."""
        held = pending[k]
        if held is not None:
            held.wait()
        call = next(running[k], None)
        pending[k] = transport.post(call) if call is not None else None
        alive[k] = call is not None

    def advance_on(lanes: _Lanes, k: int) -> None:
        """The same on the stream of slice k's level, ordered after what this rank did of the slice before."""
        stream = lanes.of(level[k])
        if level[k]:
            before = lanes.of(level[k] - 1)
            done = left[k]
            if before is not stream and done is not None:
                stream.wait_event(done)
        with torch.cuda.stream(stream):
            advance(k)
            left[k] = stream.record_event()
        level[k] += 1

    left: list[Any] = [None] * depth
    started = 0
    while any(alive):
        started = min(started + 1, depth)
        for k in range(started):
            if alive[k]:
                advance(k) if lanes is None else advance_on(lanes, k)
    if lanes is not None:
        lanes.join()
