"""Work objects that torch's own code can use, and what keeps tensors alive until their stream is done with them.

Rules found by running (facts/torch_integration.md, section 3): a completed Future whose value is the list of tensors is right everywhere (DDP
copies the value into its bucket); a Python Work must be kept alive by us, for its C++ half alone never finishes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_of_future: Callable[[Any], dist.Work] = torch._C._distributed_c10d._create_work_from_future  # pyright: ignore


def completed(tensors: Sequence[Any], device: torch.device) -> dist.Work:
    """A Work that is done on the host. On CUDA its wait() orders the caller's stream after the current stream."""
    future: torch.futures.Future[Any] = torch.futures.Future(devices=[device] if device.type == "cuda" else None)
    future.set_result(list(tensors))
    return _of_future(future)


class Lanes:
    """A side stream for each group, for calls that the caller does not wait for; and the tensors that they use, until they are done."""

    def __init__(self) -> None:
        self._streams: dict[Any, torch.cuda.Stream] = {}
        self._held: deque[tuple[Any, Any]] = deque()
        self._captured: list[Any] = []
        self._lock = threading.Lock()

    def of(self, pg: dist.ProcessGroup, device: torch.device, what: Any = None) -> torch.cuda.Stream:
        """The group's side stream for `what`, made once."""
        key = pg.group_name, device, what
        with self._lock:
            if key not in self._streams:
                self._streams[key] = torch.cuda.Stream(device)
            return self._streams[key]

    def hold(self, stream: torch.cuda.Stream, tensors: Any) -> None:
        """Keep what another stream than the caller's uses until it is done with it. Events of a capture cannot be asked, so what a capture
        uses is kept until the first call after it."""
        capturing = torch.cuda.is_current_stream_capturing()
        event = None if capturing else stream.record_event()
        with self._lock:
            if event is None:
                self._captured.append(tensors)
                return
            self._captured.clear()
            while self._held and self._held[0][0].query():
                self._held.popleft()
            self._held.append((event, tensors))

    def held(self) -> int:
        return len(self._held) + len(self._captured)


lanes = Lanes()


def issue(
    pg: dist.ProcessGroup,
    device: torch.device,
    async_op: bool,
    run: Callable[[], None],
    outputs: Sequence[Any],
    used: Any,
) -> dist.Work:
    """Run a collective, all of it enqueued now: on the caller's stream, or with async_op on the group's side stream, as NCCL does."""
    if device.type != "cuda" or not async_op:
        run()
        return completed(outputs, device)
    lane = lanes.of(pg, device)
    lane.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(lane):
        run()
        work = completed(outputs, device)
        lanes.hold(lane, used)
    return work


class _Alive:
    """Python Works that torch may hold the C++ half of alone, by what they move along: (group's name, peer, tag, whether it is a send)."""

    def __init__(self) -> None:
        self._works: dict[Any, dict[int, HostWork]] = {}
        self._lock = threading.Lock()

    def add(self, work: HostWork) -> None:
        with self._lock:
            self._works.setdefault(work.path, {})[id(work)] = work

    def drop(self, work: HostWork) -> list[HostWork]:
        """Forget a Work that is done. Returns those before it on its path, which are done as well: messages stay in order."""
        with self._lock:
            same = self._works.get(work.path, {})
            if id(work) not in same:
                return []
            before = []
            for other in list(same.values()):
                if other is work:
                    break
                before.append(other)
            del same[id(work)]
            if not same:
                del self._works[work.path]
            return before

    def forget(self, group_name: str) -> None:
        """Of a group that is about to be destroyed."""
        with self._lock:
            for path in [p for p in self._works if p[0] == group_name]:
                del self._works[path]

    def __len__(self) -> int:
        return sum(map(len, self._works.values()))


alive = _Alive()


class HostWork(dist.Work):
    """Waits for `inner`, then runs `finish` once: for CPU tensors, whose transfers need the host. A send that nobody waits for is finished by
    the next one on its path (gloo cannot be asked whether a message has gone)."""

    def __init__(self, inner: Sequence[dist.Work], finish: Callable[[], None], path: tuple[str, int, int, bool]):
        super().__init__()
        self.inner, self.path = tuple(inner), path
        self._finish: Callable[[], None] | None = finish
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        alive.add(self)

    def wait(self, timeout: timedelta | None = None) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        before: list[HostWork] = []
        with self._lock:
            if self._finish is not None:
                try:
                    for work in self.inner:
                        work.wait(timeout) if timeout else work.wait()
                    self._finish()
                except BaseException as e:
                    self._error = e
                    raise
                finally:
                    self._finish = None
                    before = alive.drop(self)
            elif self._error is not None:
                raise self._error
        if self.path[3]:
            for work in before:
                work.wait()
        return True

    def is_completed(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._finish is None or all(w.is_completed() for w in self.inner)

    def synchronize(self) -> None:
        self.wait()
