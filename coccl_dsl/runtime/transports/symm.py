"""Transfers as stores: peers' memory is mapped, Folds write wires into it, an exchange is one small kernel of signals and waits.

Memory comes from torch's symmetric memory (CUDA virtual memory over NVLink / P2P); flags and credits are ours (codegen/signals.py), in the same
allocation: per (level, slice) one counter a source, then one counter a peer for the reuse of the arena. All counters only grow.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...codegen.one_launch_source import PROGRAMS, Control
from ...plan.ops import Plan
from ..agreement import Meeting
from ..errors import CollectiveError, CollectiveTimeout
from ..executor import ExchangeCall
from .base import Done, Pending, Transport

CONTROL_ALIGN = 256
REUSE = -1
REUSE_STEP = 1 << 16


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


class Mapped:
    """One allocation of each rank of a group, mapped by those of its host: counters, then an arena. `reserve` is local, `open` collective.

    hosts: of each rank, in order.

    shared: ops of any kind take turns in it. Then each call that does not follow one of the same op begins with a barrier: everyone has read
    what the call before left here.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        levels: int,
        depth: int,
        timeout: timedelta,
        hosts: Sequence[str],
        shared: bool = False,
    ):
        self.group, self.device, self.levels, self.depth, self.shared = group, device, levels, depth, shared
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.near = [r for r, host in enumerate(hosts) if host == hosts[self.rank]]
        self.reuse = levels * depth * self.world
        words = self.reuse + self.world
        self.control = -(-4 * words // CONTROL_ALIGN) * CONTROL_ALIGN
        self.deadline = int(timeout.total_seconds() * 1e9)
        self.status = torch.zeros(4, dtype=torch.int32, device="cpu").pin_memory()
        self.seen = self.status.numpy()
        self.passed = torch.zeros(words, dtype=torch.int32, device=device)
        self.user: SymmTransport | None = None

    def reserve(self, size: int) -> torch.Tensor:
        """Allocate an arena of `size` bytes and the counters."""
        self.size = size
        self._allocate(size)
        return self.arena

    def _allocate(self, size: int) -> None:
        import torch.distributed._symmetric_memory as symm

        self.block = symm.empty(self.control + size, dtype=torch.uint8, device=self.device)
        self.block.zero_()

    def open(self, meeting: Meeting) -> None:
        """Map the peers' arenas, which may be of any size: rank -> uint8 tensor, in `arenas`."""
        sizes = [int(t) for t in meeting.gather("symm size", str(self.size))]
        if max(sizes) != self.size:
            self._allocate(max(sizes))
        torch.cuda.synchronize(self.device)
        self.handle = self._rendezvous(meeting)
        whole = self.control + max(sizes)
        self.blocks = {
            r: self.handle.get_buffer(i, (whole,), torch.uint8) for i, r in enumerate(self.near) if r != self.rank
        }
        meeting.gather("symm mapped", "")
        self.arenas = {r: b[self.control : self.control + sizes[r]] for r, b in self.blocks.items()}

    def _rendezvous(self, meeting: Meeting) -> Any:
        import torch.distributed._symmetric_memory as symm
        from torch._C._distributed_c10d import _register_process_group, _SymmetricMemory

        if len(self.near) == self.world:
            return symm.rendezvous(self.block, self.group)
        # torch wants a registered group. Ranks of one host are none, and bind makes no communicator: this one has a store and nothing else.
        name: Any = f"{self.group.group_name}/coccl_dsl/{meeting.number}/{self.near[0]}"
        store = dist.distributed_c10d.PrefixStore(f"symm/{self.near[0]}", meeting.store)
        rank, size = self.near.index(self.rank), len(self.near)
        self.local = dist.ProcessGroup(store, rank, size)
        self.local._set_group_name(name)
        _register_process_group(name, self.local)
        _SymmetricMemory.set_group_info(name, rank, size, store)
        return _SymmetricMemory.rendezvous(self.block, name)

    @property
    def arena(self) -> torch.Tensor:
        return self.block[self.control : self.control + self.size]


class SymmTransport:
    """One op over mapped memory.

    credits   the ranks whose credit this one awaits before a call's first store, and those that it grants one after its last read
    reuses    whether any rank's plan has credits: in a shared arena a barrier stands for them
    """

    name = "symm"
    streams = 3

    def __init__(
        self,
        memory: Mapped,
        what: str,
        plan: Plan,
        depth: int,
        reuses: bool,
        inner: Transport | None = None,
    ):
        assert plan.levels <= memory.levels and depth <= memory.depth and plan.credits is not None
        self.memory, self.what, self.inner = memory, what, inner
        self.levels, self.depth = plan.levels, depth
        self.credits, self.reuses = plan.credits, reuses
        self.others = tuple(r for r in memory.near if r != memory.rank)
        self._launches: dict[tuple[int, int, bool, bool], Callable[[], None]] = {}
        self.no_graphs = "it shares its wire memory with other ops" if memory.shared else ""
        if inner is not None:
            self.no_graphs = "some of its messages go over another transport"
        self.number = 0
        self.tables: list[torch.Tensor] = []
        self.one_launch = False

    def describe(self) -> str:
        waits = (
            "an arena shared by the group's ops"
            if self.memory.shared
            else f"credits awaited from {list(self.credits.awaits) or 'nobody'}"
        )
        if self.one_launch:
            waits = f"calls are one launch each, of {PROGRAMS} programs"
        text = f"symm (mapped memory of {len(self.memory.near)} ranks; {waits})"
        return text + (f"; other peers over {self.inner.name}" if self.inner is not None else "")

    # ------------------------------------------------------------ calls of one launch

    def rows(self, level: int, signals: tuple[int, ...], waits: tuple[int, ...]) -> torch.Tensor:
        """The table of an exchange inside a kernel (signals.meet). Counters are one a level, source and program."""
        m = self.memory

        def counter(owner: int, source: int) -> int:
            block = m.block if owner == m.rank else m.blocks[owner]
            return block.data_ptr() + 4 * (level * m.world + source) * PROGRAMS

        rows = []
        for i in range(max(len(signals), len(waits), 1)):
            signal = counter(signals[i], m.rank) if i < len(signals) else 0
            wait, peer = (counter(m.rank, waits[i]), waits[i]) if i < len(waits) else (0, m.rank)
            rows.append((signal, wait, peer))
        return torch.tensor(rows, dtype=torch.int64, device=m.device)

    def control(self) -> Control:
        """Of the op's kernels, which begin, wait and end by themselves."""
        m = self.memory
        self.one_launch = True
        return Control(m.passed[:PROGRAMS], m.status, self.number, min(max(1, m.deadline // 1_000_000), 2**31 - 1))

    # ------------------------------------------------------------ calls

    def check(self) -> None:
        memory = self.memory
        if memory.seen[0]:
            step, peer = int(memory.seen[0]) - 1, int(memory.seen[1])
            where = "waiting for memory to be free" if step == REUSE_STEP else f"step {step}"
            raise CollectiveTimeout(
                f"{self.what}: {where}: rank {peer} did not signal within {memory.deadline / 1e9:g} s; the op can no longer be used"
            )

    def begin(self) -> None:
        memory = self.memory
        self.check()
        if self.inner is not None:
            self.inner.begin()
        if not memory.shared:
            self._signal(REUSE, 0, (), self.credits.awaits)
            return
        if torch.cuda.is_current_stream_capturing():
            raise CollectiveError(
                f"{self.what} shares its memory with other ops, which a graph's replays could not be ordered with: bind an op of its own to capture it"
            )
        if memory.user is not self or self.reuses:
            self._signal(REUSE, 0, self.others, self.others)
        memory.user = self

    def end(self) -> None:
        if not self.memory.shared:
            self._signal(REUSE, 0, self.credits.grants, ())
        if self.inner is not None:
            self.inner.end()

    def replayed(self) -> None:
        pass

    def post(self, call: ExchangeCall) -> Pending:
        moved: Pending = Done()
        if self.inner is not None:  # also with nothing to move, as it counts the levels that all ranks post
            moved = self.inner.post(call)
        elif call.sends or call.recvs:
            raise CollectiveError(f"{self.what}: step {call.level} has messages to ranks that are not mapped")
        for here, there in call.copies:
            there.copy_(here, non_blocking=True)
        if self.depth == 1:
            self._signal(call.level, call.slice, call.signals, call.waits)
            return moved
        # With slices the wait belongs to the stream of the next level, which `wait` runs on.
        self._signal(call.level, call.slice, call.signals, ())
        return _Waiting(self, call, moved)

    def _signal(self, level: int, slice: int, signals: tuple[int, ...], waits: tuple[int, ...]) -> None:
        """level REUSE: wait for credits, or grant them, or both: a barrier."""
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

        m = self.memory
        base = m.reuse if level == REUSE else (level * m.depth + slice) * m.world
        step = REUSE_STEP if level == REUSE else level
        rows = []
        for i in range(max(len(signals), len(waits))):
            signal = m.blocks[signals[i]].data_ptr() + 4 * (base + m.rank) if i < len(signals) else 0
            peer = waits[i] if i < len(waits) else m.rank
            wait = m.block.data_ptr() + 4 * (base + peer) if i < len(waits) else 0
            rows.append((signal, wait, m.passed.data_ptr() + 4 * (base + peer), peer, step))
        rest = (PinnedPointer(m.status), self.number, m.deadline)
        # The first call of an op finds its own memory unused.
        constants = {"LAG": int(level == REUSE and not signals)}
        if len(rows) == 1:
            return frozen(exchange_one, 1, (*rows[0], *rest), constants, m.device)
        table = torch.tensor(rows, dtype=torch.int64, device=m.device)
        self.tables.append(table)
        return frozen(exchange_rows, len(rows), (table, *rest), constants, m.device)


class _Waiting:
    """The waits of one level of one slice, launched on the stream that needs the wires."""

    def __init__(self, transport: SymmTransport, call: ExchangeCall, moved: Pending):
        self.transport, self.call, self.moved = transport, call, moved

    def wait(self) -> None:
        self.moved.wait()
        self.transport._signal(self.call.level, self.call.slice, (), self.call.waits)
