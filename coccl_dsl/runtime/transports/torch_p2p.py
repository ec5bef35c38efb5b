"""Transfers through torch's process group: one `batch_isend_irecv` a level.

gloo with CPU tensors, nccl with CUDA tensors; gloo with CUDA tensors stages wires through pinned host memory (blocking: for tests).
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from ..errors import CollectiveError, CollectiveTimeout
from ..executor import ExchangeCall, Parcel

# gloo matches messages between two ranks by tag: the transport's own in the high bits, its count of exchanges in the low ones.
_COUNT_BITS = 20
MAX_TAG = 1 << 10


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
    tag   tells ops of one pair apart that the two ranks may issue in different orders
    """

    name = "torch"
    streams = 0

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        what: str,
        ends: tuple[int, int] | None = None,
        tag: int = 0,
    ):
        self.group, self.device, self.what, self.ends, self.tag = group, device, what, ends, tag
        self.backend = dist.get_backend(group)
        self.staging = device.type == "cuda" and "nccl" not in self.backend
        self.posted = 0
        self.failed: CollectiveError | None = None

    def describe(self) -> str:
        if self.staging:
            return f"torch ({self.backend}, wires staged through pinned host memory: blocking, for tests)"
        return f"torch ({self.backend})"

    def begin(self) -> None:
        if self.failed is not None:
            raise self.failed

    def end(self) -> None:
        pass

    def post(self, call: ExchangeCall) -> _Posted:
        ops: list[dist.P2POp] = []
        names: list[tuple[str, int]] = []
        staged: list[tuple[torch.Tensor, torch.Tensor]] = []

        def add(kind, parcel: Parcel, verb: str) -> None:
            rank = parcel.peer if self.ends is None else self.ends[parcel.peer]
            peer = dist.get_global_rank(self.group, rank)
            tag = self.tag << _COUNT_BITS | self.posted % (1 << _COUNT_BITS)
            for tensor in parcel.tensors:
                buffer = tensor
                if self.staging:
                    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                    if kind is dist.isend:
                        buffer.copy_(tensor)
                    else:
                        staged.append((buffer, tensor))
                ops.append(dist.P2POp(kind, buffer, peer, self.group, tag=tag))
                names.append((verb, rank))

        for parcel in call.recvs:
            add(dist.irecv, parcel, "receive from")
        for parcel in call.sends:
            add(dist.isend, parcel, "send to")
        self.posted += 1
        if not ops:
            return _Posted(self, call, [], [])
        try:
            works = self._start(ops)
        except RuntimeError as e:
            raise self.failure(call, names[0][0], names[0][1], e) from e
        if len(works) != len(ops):
            peers = sorted({p for _, p in names})
            return _Posted(self, call, [(w, "exchange with", peers[0]) for w in works], staged)
        return _Posted(self, call, [(w, *n) for w, n in zip(works, names, strict=True)], staged)

    def _start(self, ops: list[dist.P2POp]) -> list[dist.Work]:
        if self.ends is None:
            return dist.batch_isend_irecv(ops)
        return [o.op(o.tensor, o.peer, o.group, o.tag) for o in ops]

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
