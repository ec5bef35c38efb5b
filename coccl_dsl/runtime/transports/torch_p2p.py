"""Transfers through torch's process group: one batch of sends and receives a level.

gloo with CPU tensors, nccl with CUDA tensors; gloo with CUDA tensors stages wires through pinned host memory (blocking: for tests). The calls
go to the group's Backend: beneath the dispatcher, where the transparent path would meet its own messages.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from ..errors import BindError, CollectiveError, CollectiveTimeout
from ..executor import ExchangeCall, Parcel

# gloo matches messages between two ranks by tag: the transport's own in the high bits, its count of exchanges in the low ones.
_COUNT_BITS = 20
MAX_TAG = 1 << 10
SEND, RECEIVE = "send to", "receive from"


class _Posted:
    """Works of one level; receives first, so that a failure names the peer that is missing."""

    def __init__(
        self,
        transport: TorchTransport,
        call: ExchangeCall,
        works: list[tuple[dist.Work, str, int]],
        staged: list[tuple[torch.Tensor, torch.Tensor]],
    ):
        self.transport, self.call, self.works, self.staged = transport, call, works, staged

    def wait(self) -> None:
        for work, verb, peer in self.works:
            try:
                work.wait()
            except RuntimeError as e:
                raise self.transport.failure(self.call, verb, peer, e) from e
        for host, device in self.staged:
            device.copy_(host)


class TorchTransport:
    """Over `group`; a peer is a rank of the group.

    ends  the group ranks of a plan for two of its ranks: only these take part, so their messages are not one of all ranks' batches
    collectives   levels that are all-gathers are the backend's all-gathers
    tag   tells ops of one pair apart that the two ranks may issue in different orders; else it keeps clear of these, and of users' own messages
    """

    streams = 0
    no_graphs = "its transfers are torch's own"

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        what: str,
        ends: tuple[int, int] | None = None,
        tag: int = MAX_TAG + 1,
        collectives: bool = False,
    ):
        self.group, self.device, self.what, self.ends, self.tag = group, device, what, ends, tag
        self.backend = dist.get_backend(group)
        self.staging = device.type == "cuda" and "nccl" not in self.backend
        self.collectives = collectives
        self.name = "torch+collectives" if collectives else "torch"
        if collectives and self.staging:
            raise BindError(
                "transport='torch+collectives' takes tensors of the group's own backend: CUDA tensors need nccl"
            )
        self.posted = 0
        self.failed: CollectiveError | None = None

    def describe(self) -> str:
        if self.staging:
            return f"torch ({self.backend}, wires staged through pinned host memory: blocking, for tests)"
        return f"{self.name} ({self.backend})"

    def check(self) -> None:
        if self.failed is not None:
            raise self.failed.with_traceback(None)  # or each raise would hold on to one more caller's tensors

    begin = check

    def replayed(self) -> None:
        pass

    def end(self) -> None:
        pass

    def post(self, call: ExchangeCall) -> _Posted:
        messages: list[tuple[str, torch.Tensor, int]] = []
        staged: list[tuple[torch.Tensor, torch.Tensor]] = []

        def add(verb: str, parcel: Parcel) -> None:
            for tensor in parcel.tensors:
                buffer = tensor
                if self.staging:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
                    if verb == SEND:
                        buffer.copy_(tensor)
                    else:
                        staged.append((buffer, tensor))
                messages.append((verb, buffer, parcel.peer if self.ends is None else self.ends[parcel.peer]))

        for parcel in call.recvs:
            add(RECEIVE, parcel)
        for parcel in call.sends:
            add(SEND, parcel)
        tag = self.tag << _COUNT_BITS | self.posted % (1 << _COUNT_BITS)
        self.posted += 1
        if self.collectives and call.gather is not None:
            return self._gather(call, *call.gather)
        if not messages:
            return _Posted(self, call, [], [])
        try:
            works = self._start(messages, tag)
        except RuntimeError as e:
            raise self.failure(call, messages[0][0], messages[0][2], e) from e
        if len(works) != len(messages):
            return _Posted(self, call, [(w, "exchange with", min(m[2] for m in messages)) for w in works], staged)
        return _Posted(self, call, [(w, m[0], m[2]) for w, m in zip(works, messages, strict=True)], staged)

    def _gather(self, call: ExchangeCall, own: torch.Tensor, every: torch.Tensor) -> _Posted:
        backend: Any = self.group._get_backend(own.device)
        try:
            work = backend._allgather_base(every, own, AllgatherOptions())
        except RuntimeError as e:
            raise self.failure(call, "gathering with", 0, e) from e
        return _Posted(self, call, [(work, "gathering with", 0)], [])

    def _start(self, messages: list[tuple[str, torch.Tensor, int]], tag: int) -> list[dist.Work]:
        backend: Any = self.group._get_backend(messages[0][1].device)
        # Only two of a group's ranks meet in a pair's plan, and a batch of NCCL's is one of all its ranks.
        batch = self.ends is None and backend.supports_coalescing
        if batch:
            backend._start_coalescing()
        works = [
            (backend.send if verb == SEND else backend.recv)([tensor], rank, tag) for verb, tensor, rank in messages
        ]
        return [backend._end_coalescing()] if batch else works

    def failure(self, call: ExchangeCall, verb: str, peer: int, cause: BaseException) -> CollectiveError:
        text = str(cause).splitlines()[0][:200]
        where = f"{self.what}: step {call.level}, slice {call.slice}: {verb} rank {peer}"
        if "imed out" in text or "imeout" in text:
            self.failed = CollectiveTimeout(f"{where} timed out; the peer did not take part ({text})")
        else:
            self.failed = CollectiveError(f"{where} failed; the peer has gone ({text})")
        return self.failed


def group_timeout(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """The timeout with which the group was made."""
    backend = group._get_backend(device)
    options = getattr(backend, "options", None)
    timeout = getattr(options, "_timeout", None)
    if isinstance(timeout, timedelta):
        return timeout
    return dist.distributed_c10d.default_pg_timeout
