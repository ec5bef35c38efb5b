"""A thread that looks after a communicator: it aborts it when a transfer is late or the communicator reports an error, and closes it when no op
holds it any longer.

The thread calls into C++ with the GIL released. A thread that comes back from there while the interpreter goes down is ended by Python through
C++ frames that do not allow it, and the process aborts (pytorch issue 38228). So before that, all these threads go to sleep for good.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from ..errors import CollectiveError, CollectiveTimeout

PERIOD = 0.05  # seconds between two looks
_ENDING = 5.0  # seconds that the end of the process waits for a look to be over
_IN_PROGRESS = 7  # ncclInProgress

_leaving = threading.Event()
_never = threading.Event()


class Event(Protocol):
    def query(self) -> bool: ...


class Communicator(Protocol):
    """Of cupy's NcclCommunicator, what is needed here."""

    def check_async_error(self) -> None: ...
    def abort(self) -> None: ...
    def destroy(self) -> None: ...


@dataclass
class _Watched:
    """What the thread sees. It holds this, and not the Watchdog, whose end it waits for."""

    comm: Communicator
    seconds: float
    inflight: deque[tuple[Event, float, str]] = field(default_factory=deque)
    lock: threading.Lock = field(default_factory=threading.Lock)
    failed: CollectiveError | None = None

    def look(self) -> None:
        """Forget what is complete; abort when something is late or broken."""
        try:
            with self.lock:
                while self.inflight and self.inflight[0][0].query():
                    self.inflight.popleft()
            self.comm.check_async_error()
        except Exception as e:
            # In older cupy a code that it has no name for is a KeyError.
            code = e.args[0] if isinstance(e, KeyError) else getattr(e, "status", None)
            if code != _IN_PROGRESS:
                self.failed = CollectiveError(f"{self._oldest()}the communicator was aborted for an error: {e!r}")
        if self.failed is None and self.inflight and time.monotonic() > self.inflight[0][1]:
            late = f"{self._oldest()}not complete within {self.seconds:g} s; the communicator was aborted"
            self.failed = CollectiveTimeout(late)
        if self.failed is not None:
            self.comm.abort()

    def _oldest(self) -> str:
        return f"{self.inflight[0][2]}: " if self.inflight else ""


class Watchdog:
    """Watches transfers over `comm`, each for `timeout`. Drop it to have the communicator closed, after the last of them."""

    def __init__(self, comm: Communicator, timeout: timedelta):
        self._watched = _Watched(comm, timeout.total_seconds())
        asleep = threading.Event()
        thread = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._watched, asleep), daemon=True, name="coccl-nccl-watchdog"
        )
        thread.start()
        _asleep[thread] = asleep

    def add(self, event: Event, where: str) -> None:
        """Abort unless `event` comes within the timeout. where: names the transfer in what later calls raise."""
        watched = self._watched
        with watched.lock:
            watched.inflight.append((event, time.monotonic() + watched.seconds, where))

    def check(self) -> None:
        """Raises what the communicator was aborted for: CollectiveTimeout, or CollectiveError with NCCL's reason."""
        if self._watched.failed is not None:
            raise self._watched.failed.with_traceback(None)  # or each raise would hold on to one more caller's tensors


# By thread, so that those which ended are not waited for.
_asleep: weakref.WeakKeyDictionary[threading.Thread, threading.Event] = weakref.WeakKeyDictionary()


def _watch(dog: weakref.ref[Watchdog], watched: _Watched, asleep: threading.Event) -> None:
    try:
        while watched.failed is None and (dog() is not None or watched.inflight):
            if _leaving.wait(PERIOD):
                # The communicator stays open: with peers that are gone already, closing it here might hang.
                asleep.set()
                _never.wait()
            watched.look()
    finally:
        asleep.set()
    if watched.failed is None:
        watched.comm.destroy()


@atexit.register
def _sleep() -> None:
    _leaving.set()
    end = time.monotonic() + _ENDING
    for asleep in list(_asleep.values()):
        asleep.wait(max(0.0, end - time.monotonic()))
