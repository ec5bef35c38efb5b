"""The thread that looks after an NCCL communicator, with a communicator that only notes what is done to it."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta

import pytest

from coccl_dsl.runtime.errors import CollectiveError, CollectiveTimeout
from coccl_dsl.runtime.transports.watchdog import PERIOD, Watchdog


class Comm:
    def __init__(self):
        self.done: list[str] = []
        self.error: Exception | None = None

    def check_async_error(self):
        if self.error is not None:
            raise self.error

    def abort(self):
        self.done.append("abort")

    def destroy(self):
        self.done.append("destroy")


class Transfer:
    def __init__(self, complete: bool = False, error: Exception | None = None):
        self.complete, self.error = complete, error

    def query(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.complete


class NcclError(RuntimeError):
    def __init__(self, status: int):
        super().__init__(f"status {status}")
        self.status = status


def wait_for(what, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(PERIOD / 5)


def raised(dog: Watchdog) -> CollectiveError:
    caught: list[CollectiveError] = []

    def fails() -> bool:
        try:
            dog.check()
        except CollectiveError as e:
            caught.append(e)
        return bool(caught)

    wait_for(fails)
    return caught[0]


def test_transfers_in_time_leave_the_communicator_alone():
    comm = Comm()
    dog = Watchdog(comm, timedelta(seconds=0.2))
    transfers = [Transfer() for _ in range(3)]
    for i, t in enumerate(transfers):
        dog.add(t, f"step {i}")
        t.complete = True
    time.sleep(0.2 + 4 * PERIOD)
    dog.check()
    assert comm.done == []


def test_a_late_transfer_aborts_and_later_calls_name_it():
    comm = Comm()
    dog = Watchdog(comm, timedelta(seconds=0.2))
    dog.add(Transfer(complete=True), "ring: step 0")
    dog.add(Transfer(), "ring: step 1, with ranks [3]")
    dog.add(Transfer(), "ring: step 2")
    error = raised(dog)
    assert isinstance(error, CollectiveTimeout) and "ring: step 1, with ranks [3]: not complete within 0.2 s" in str(
        error
    )
    wait_for(lambda: comm.done == ["abort"])
    time.sleep(2 * PERIOD)
    assert comm.done == ["abort"], "once, and never destroyed"


@pytest.mark.parametrize("error", [NcclError(6), KeyError(6)])
def test_an_error_of_nccl_aborts_at_once(error):
    comm = Comm()
    dog = Watchdog(comm, timedelta(hours=1))
    dog.add(Transfer(), "two_shot: step 0")
    comm.error = error
    said = raised(dog)
    assert not isinstance(said, CollectiveTimeout) and "two_shot: step 0: " in str(said) and "6" in str(said)
    wait_for(lambda: comm.done == ["abort"])


@pytest.mark.parametrize("error", [NcclError(7), KeyError(7)])
def test_work_in_progress_is_no_error(error):
    comm = Comm()
    dog = Watchdog(comm, timedelta(hours=1))
    comm.error = error
    time.sleep(4 * PERIOD)
    dog.check()
    assert comm.done == []


def test_a_broken_device_is_told_to_later_calls():
    comm = Comm()
    dog = Watchdog(comm, timedelta(hours=1))
    dog.add(Transfer(error=RuntimeError("CUDA error: an illegal memory access")), "two_shot: step 1")
    assert "two_shot: step 1: " in str(raised(dog)) and "illegal memory access" in str(raised(dog))


def test_a_communicator_without_users_is_closed_after_its_last_transfer():
    comm, last, before = Comm(), Transfer(), threading.active_count()
    dog = Watchdog(comm, timedelta(hours=1))
    dog.add(last, "two_shot: step 0")
    del dog
    gc.collect()
    time.sleep(4 * PERIOD)
    assert comm.done == []
    last.complete = True
    wait_for(lambda: comm.done == ["destroy"])
    wait_for(lambda: threading.active_count() == before)


AT_THE_END = """
    import atexit, threading, time
    from datetime import timedelta

    asked = []

    class Comm:
        def check_async_error(self):
            asked.append(1)
        def abort(self):
            print("aborted")
        destroy = abort

    def late():  # after the watchdog's own handler
        before = len(asked)
        time.sleep(0.3)
        print("still looking" if len(asked) > before else "asleep", flush=True)

    atexit.register(late)
    from coccl_dsl.runtime.transports.watchdog import Watchdog
    dogs = [Watchdog(Comm(), timedelta(seconds=60)) for _ in range(3)]
    while len(asked) < 6:
        time.sleep(0.01)
"""


def test_no_look_is_on_its_way_when_the_interpreter_ends():
    """Python would end the thread inside C++, and with it the process, with "terminate called without an active exception"."""
    began = time.monotonic()
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(AT_THE_END)], capture_output=True, text=True, timeout=60
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "asleep\n", "")
    assert time.monotonic() - began < 30
