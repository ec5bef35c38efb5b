"""Transfers through a private NCCL communicator (cupy): one grouped send/recv of whole frames a level, on a side stream.

The communicator is made in bind only, on a thread of its own, in one order on all ranks; peers are connected there. A watchdog aborts it when
a level is not complete within the group's timeout, or NCCL reports an error, and later calls raise. It closes it once the group and the ops that
use it are gone.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..agreement import Meeting
from ..errors import BindError
from ..executor import ExchangeCall
from .base import Done, Pending
from .watchdog import Watchdog

_communicators: WeakKeyDictionary[dist.ProcessGroup, _Communicator] = WeakKeyDictionary()


def nccl_version() -> tuple[int, int, int]:
    """Version of the NCCL that torch has loaded."""
    from torch.cuda import nccl

    return nccl.version()[:3]


def _nccl() -> Any:
    """cupy's NCCL bindings, of the version that torch has loaded. Raises BindError."""
    try:
        from cupy.cuda import nccl  # pyright: ignore[reportMissingImports]
    except ImportError as e:
        raise BindError(f"transport='nccl' needs cupy: pip install 'coccl-dsl[cuda12]' or [cuda13] ({e})") from None
    theirs = nccl_version()
    number = theirs[0] * 10000 + theirs[1] * 100 + theirs[2]
    if nccl.get_version() != number:
        raise BindError(f"cupy has NCCL {nccl.get_version()}, torch has {number}: install matching versions")
    return nccl


def unavailable() -> str:
    """Why this rank cannot have a communicator, or ""."""
    try:
        _nccl()
    except BindError as e:
        return str(e)
    return ""


class _Communicator:
    """One communicator of a set of ranks, its side stream and its watchdog."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, meeting: Meeting, timeout: timedelta):
        nccl = _nccl()
        self.nccl, self.device, self.timeout = nccl, device, timeout
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        own = ""
        if self.rank == 0:
            own = base64.b64encode(bytes(nccl.get_unique_id())).decode()
        unique = base64.b64decode(meeting.gather("nccl id", own)[0])
        self.comm: Any = None
        self.stream = torch.cuda.Stream(device)
        self._on_thread(lambda: self._connect(unique))
        self.watchdog = Watchdog(self.comm, timeout)

    def _on_thread(self, work: Callable[[], None]) -> None:
        problem: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as e:
                problem.append(e)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(self.timeout.total_seconds())
        if thread.is_alive():
            raise BindError(f"no NCCL communicator within {self.timeout.total_seconds():g} s; this process has to end")
        if problem:
            raise BindError(f"no NCCL communicator: {problem[0]}") from problem[0]

    def _connect(self, unique: bytes) -> None:
        with torch.cuda.device(self.device):
            self.comm = self.nccl.NcclCommunicator(self.world, unique, self.rank)
            word = torch.zeros(2 * self.world, dtype=torch.uint8, device=self.device)
            with torch.cuda.stream(self.stream):
                self.stream.wait_stream(torch.cuda.default_stream(self.device))
                self.nccl.groupStart()
                for p in range(self.world):
                    if p != self.rank:
                        self.comm.send(word.data_ptr() + p, 1, self.nccl.NCCL_UINT8, p, self.stream.cuda_stream)
                        self.comm.recv(
                            word.data_ptr() + self.world + p, 1, self.nccl.NCCL_UINT8, p, self.stream.cuda_stream
                        )
                self.nccl.groupEnd()
                self.stream.synchronize()

    def exchange(self, call: ExchangeCall, what: str, beside: bool, collectives: bool) -> Any:
        """Enqueue one level on the current stream, or on the communicator's own `beside` it. Returns an event that comes after it."""
        self.watchdog.check()
        on = torch.cuda.current_stream(self.device)
        if beside:
            self.stream.wait_stream(on)
            on = self.stream
        stream, kind = on.cuda_stream, self.nccl.NCCL_UINT8
        if call.gather is not None and collectives:
            own, every = call.gather
            self.comm.allGather(own.data_ptr(), every.data_ptr(), own.numel(), kind, stream)
        else:
            self.nccl.groupStart()
            for parcel in call.sends:
                for t in parcel.tensors:
                    self.comm.send(t.data_ptr(), t.numel(), kind, parcel.peer, stream)
            for parcel in call.recvs:
                for t in parcel.tensors:
                    self.comm.recv(t.data_ptr(), t.numel(), kind, parcel.peer, stream)
            self.nccl.groupEnd()
        done = on.record_event()
        if not torch.cuda.is_current_stream_capturing():
            peers = sorted({p.peer for p in (*call.sends, *call.recvs)})
            self.watchdog.add(done, f"{what}: step {call.level}, slice {call.slice}, with ranks {peers}")
        return done


class _Posted:
    def __init__(self, event: Any, device: torch.device):
        self.event, self.device = event, device

    def wait(self) -> None:
        torch.cuda.current_stream(self.device).wait_event(self.event)


class NcclTransport:
    """Over a private communicator, one a group, shared by its ops. depth: slices of the op; one has nothing to overlap with, and its wires move on
    the caller's own stream. collectives: levels that are all-gathers are NCCL's all-gathers."""

    streams = 0
    no_graphs = ""

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        what: str,
        meeting: Meeting,
        depth: int,
        collectives: bool = False,
    ):
        self.device, self.what, self.beside, self.collectives = device, what, depth > 1, collectives
        self.name = "nccl+collectives" if collectives else "nccl"
        found = _communicators.get(group)
        if found is None:
            found = _communicators[group] = _Communicator(group, device, meeting, meeting.timeout)
        self.shared = found

    def describe(self) -> str:
        return f"{self.name} (a private communicator through cupy)"

    def check(self) -> None:
        self.shared.watchdog.check()

    begin = check

    def replayed(self) -> None:
        done = torch.cuda.current_stream(self.device).record_event()
        self.shared.watchdog.add(done, f"{self.what}: a replayed call")

    def post(self, call: ExchangeCall) -> Pending:
        if not call.sends and not call.recvs and not (self.collectives and call.gather):
            return Done()
        done = self.shared.exchange(call, self.what, self.beside, self.collectives)
        return _Posted(done, self.device) if self.beside else Done()

    def end(self) -> None:
        pass
