"""Transfers as stores: peers' memory is mapped, Folds write wires into it, an exchange is one small kernel of signals and waits.

Memory comes from torch's symmetric memory (CUDA virtual memory over NVLink / P2P); flags and credits are ours (codegen/signals.py), in the same
allocation: per (level, slice) one counter a source, then one credit counter a peer. All counters only grow.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from ...plan.ops import Credits
from ..agreement import Meeting
from ..errors import CollectiveError, CollectiveTimeout
from ..executor import ExchangeCall
from .base import Done, Pending, Transport

CONTROL_ALIGN = 256
CREDIT = -1


def unavailable(device: torch.device) -> str:
    """Why this rank cannot use mapped memory, or ""."""
    if device.type != "cuda":
        return f"tensors are on {device}"
    if os.environ.get("NCCL_P2P_DISABLE") == "1":
        return "NCCL_P2P_DISABLE=1 asks for no peer access"
    try:
        import torch.distributed._symmetric_memory  # noqa: F401
    except ImportError as e:
        return f"torch has no symmetric memory ({e})"
    return ""


def host_name() -> str:
    """Ranks with equal names can map each other's memory. NCCL_HOSTID set apart means: behave as different hosts."""
    return os.environ.get("NCCL_HOSTID") or socket.gethostname()


def reachable(device: torch.device, others: list[int]) -> str:
    """Why this device cannot reach one of the other devices of its host, or ""."""
    for index in others:
        if index != device.index and not torch.cuda.can_device_access_peer(device.index or 0, index):
            return f"cuda:{device.index} has no peer access to cuda:{index}"
    return ""


class SymmTransport:
    """Over mapped memory of all ranks of `group`. `reserve` gives the arena; `open` must follow on all ranks before the first call."""

    name = "symm"
    streams = 3

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        what: str,
        levels: int,
        depth: int,
        timeout: timedelta,
        inner: Transport | None = None,
    ):
        self.group, self.device, self.what, self.inner = group, device, what, inner
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.levels, self.depth = levels, depth
        self.flags = levels * depth * self.world
        words = self.flags + self.world
        self.control = -(-4 * words // CONTROL_ALIGN) * CONTROL_ALIGN
        self.deadline = int(timeout.total_seconds() * 1e9)
        self.status = torch.zeros(4, dtype=torch.int32).pin_memory()
        self.seen = self.status.numpy()
        self.passed = torch.zeros(words, dtype=torch.int32, device=device)
        self.credits = Credits((), ())
        self._launches: dict[tuple[int, int, bool, bool], Callable[[], None]] = {}
        self.number = 0
        self.tables: list[torch.Tensor] = []

    def describe(self) -> str:
        text = (
            f"symm (mapped memory of {self.world} ranks; credits awaited from {list(self.credits.awaits) or 'nobody'})"
        )
        return text + (f"; other peers over {self.inner.name}" if self.inner is not None else "")

    # ------------------------------------------------------------ memory

    def reserve(self, size: int) -> torch.Tensor:
        """Allocate this rank's arena of `size` bytes and the counters. Local."""
        import torch.distributed._symmetric_memory as symm

        self.size = size
        self.block = symm.empty(self.control + size, dtype=torch.uint8, device=self.device)
        self.block.zero_()
        return self.block[self.control :]

    def open(self, meeting: Meeting, credits: Credits) -> dict[int, torch.Tensor]:
        """Map the peers' arenas. Collective: every rank calls it, with arenas of any size. Returns rank -> uint8 arena."""
        import torch.distributed._symmetric_memory as symm

        sizes = [int(t) for t in meeting.gather("symm size", str(self.size))]
        if max(sizes) != self.size:
            own = self.block
            self.block = symm.empty(self.control + max(sizes), dtype=torch.uint8, device=self.device)
            self.block.zero_()
            del own
        torch.cuda.synchronize(self.device)
        self.handle = symm.rendezvous(self.block, self.group)
        self.credits = credits
        whole = self.control + max(sizes)
        self.peers = {r: self.handle.get_buffer(r, (whole,), torch.uint8) for r in range(self.world) if r != self.rank}
        meeting.gather("symm mapped", "")
        return {r: b[self.control : self.control + sizes[r]] for r, b in self.peers.items()}

    @property
    def arena(self) -> torch.Tensor:
        return self.block[self.control : self.control + self.size]

    # ------------------------------------------------------------ calls

    def begin(self) -> None:
        if self.seen[0]:
            step, peer = int(self.seen[0]) - 1, int(self.seen[1])
            where = "waiting for its memory to be free" if step >= self.levels else f"step {step}"
            raise CollectiveTimeout(
                f"{self.what}: {where}: rank {peer} did not signal within {self.deadline / 1e9:g} s; the op can no longer be used"
            )
        if self.inner is not None:
            self.inner.begin()
        if self.credits.awaits:
            self._signal(CREDIT, 0, (), self.credits.awaits)

    def end(self) -> None:
        if self.credits.grants:
            self._signal(CREDIT, 0, self.credits.grants, ())
        if self.inner is not None:
            self.inner.end()

    def post(self, call: ExchangeCall) -> Pending:
        moved: Pending = Done()
        if call.sends or call.recvs:
            if self.inner is None:
                raise CollectiveError(f"{self.what}: step {call.level} has messages to ranks that are not mapped")
            moved = self.inner.post(call)
        for here, there in call.copies:
            there.copy_(here, non_blocking=True)
        if self.depth == 1:
            self._signal(call.level, call.slice, call.signals, call.waits)
            return moved
        # With slices the wait belongs to the stream of the next level, which `wait` runs on.
        self._signal(call.level, call.slice, call.signals, ())
        return _Waiting(self, call, moved)

    def _signal(self, level: int, slice: int, signals: tuple[int, ...], waits: tuple[int, ...]) -> None:
        """level CREDIT: wait for credits, or grant them."""
        if not signals and not waits:
            return
        key = (level, slice, bool(signals), bool(waits))
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = self._prepare(level, slice, signals, waits)
        launch()

    def _prepare(self, level: int, slice: int, signals: tuple[int, ...], waits: tuple[int, ...]) -> Callable[[], None]:
        from ...codegen.signals import exchange_one, exchange_rows
        from ...codegen.triton_launch import PinnedPointer, frozen

        base = self.flags if level == CREDIT else (level * self.depth + slice) * self.world
        step = self.levels if level == CREDIT else level
        rows = []
        for i in range(max(len(signals), len(waits))):
            signal = self.peers[signals[i]].data_ptr() + 4 * (base + self.rank) if i < len(signals) else 0
            word = base + (waits[i] if i < len(waits) else self.rank)
            wait = self.block.data_ptr() + 4 * word if i < len(waits) else 0
            rows.append(
                (signal, wait, self.passed.data_ptr() + 4 * word, waits[i] if i < len(waits) else self.rank, step)
            )
        rest = (PinnedPointer(self.status), self.number, self.deadline)
        constants = {"LAG": int(level == CREDIT and bool(waits))}
        if len(rows) == 1:
            return frozen(exchange_one, 1, (*rows[0], *rest), constants, self.device)
        table = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self.tables.append(table)
        return frozen(exchange_rows, len(rows), (table, *rest), constants, self.device)


class _Waiting:
    """The waits of one level of one slice, launched on the stream that needs the wires."""

    def __init__(self, transport: SymmTransport, call: ExchangeCall, moved: Pending):
        self.transport, self.call, self.moved = transport, call, moved

    def wait(self) -> None:
        self.moved.wait()
        self.transport._signal(self.call.level, self.call.slice, (), self.call.waits)
