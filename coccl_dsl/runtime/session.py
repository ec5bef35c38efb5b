"""What the ranks of a group agree on once, so that ops bind afterwards without another word.

    session = open_session(group, device)              collective, where all ranks do the same thing: when the group is made
    op = session.bind(collective, dtype=..., capacity=...)     local
    session.close()                                    local, where all ranks do the same thing

Two groups that ranks first use in different orders would deadlock if first uses were collective (design/runtime.md, Agreement). All ops of a
session share one arena of a fixed size; calls that need more wire memory run in passes. They take turns: see `Turn` and `Mapped`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist

from .agreement import Meeting
from .bind import Wiring, assemble, choose_transport, settings_of
from .dtypes import dtype_name
from .errors import BindError, CollectiveError
from .measured import Measured, agree_on_table, host_text
from .op import Op, Turn
from .simulate import world_of
from .transports.torch_p2p import TorchTransport, group_timeout

if TYPE_CHECKING:
    from ..pipeline import Collective
    from ..plan.memory import Layout
    from ..plan.ops import Plan
    from .transports.symm import Mapped

ARENA_BYTES = 256 << 20
# Of ops in a shared arena, whose counters are laid out before any op is known. A plan with more levels runs over torch's own backend.
MAX_LEVELS, MAX_DEPTH = 64, 4


class Session:
    """See `open_session`.

    transport   symm or torch; note says why it is not a faster one
    hosts       where each rank runs: equal texts, one machine
    measured    the calibration table that all ranks go by
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        arena_bytes: int,
        transport: str,
        note: str,
        hosts: list[str],
        memory: Mapped | None,
        measured: Measured,
    ):
        self.group, self.device, self.arena_bytes = group, device, arena_bytes
        self.transport, self.note, self.hosts = transport, note, hosts
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.measured = measured
        self.turn = Turn(device)
        self._memory = memory
        self._local: torch.Tensor | None = None
        self._ops: WeakSet[Op] = WeakSet()
        self.closed = False

    def close(self) -> None:
        """Free the arena, the mappings of peers' memory, and what the session's ops keep; a second time does nothing. Ops raise CollectiveError from
        then on, and `bind` raises BindError.

        Local: it waits for what this rank has enqueued on the device, and peers keep what they have mapped of this rank until they close theirs. A
        peer that makes another call waits for this rank until its deadline, so all ranks close at the same place in their calls. Graphs that the
        user captured with the session's ops in them must not be replayed afterwards.

        Raises CollectiveError under CUDA graph capture.
        """
        name = f"the session of group {self.group.group_name!r} was closed"
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise CollectiveError(
                f"the session of group {self.group.group_name!r} cannot be closed under CUDA graph capture"
            )
        with self.turn.lock:
            if self.closed:
                return
            if self.device.type == "cuda" and len(self._ops):
                torch.cuda.synchronize(self.device)
            self.closed = True
            for op in list(self._ops):
                op.close(f"{name}; bind it anew in another session")
            self._ops.clear()
            self._memory = self._local = None

    @torch.inference_mode(False)
    def bind(
        self,
        collective: Collective,
        *,
        dtype: torch.dtype,
        capacity: int,
        compressors: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Op:
        """An op for tensors of `dtype` and up to `capacity` elements. Local: all ranks bind the same in the end, in any order.

        options   op, mesh, root, min_bytes, depth, seed, fuse, backend as for `Collective.bind`; for send_recv source or target, and tag

        Raises BindError on this rank, and so, as it depends on nothing else, on all.
        """
        if self.closed:
            raise BindError(f"the session of group {self.group.group_name!r} is closed: open another")
        for name in ("transport", "arena_bytes", "capacity"):
            if name in options:
                raise BindError(f"{name} is the session's own")
        made = self._bind(collective, dtype, {**options, **(compressors or {}), "capacity": capacity})
        self._ops.add(made)
        return made

    def _bind(self, collective: Collective, dtype: torch.dtype, given: dict[str, Any]) -> Op:
        if self._memory is not None and (given.get("depth") or 1) > MAX_DEPTH:
            raise BindError(f"depth={given['depth']}: at most {MAX_DEPTH} slices in a session's arena")
        like = torch.empty(0, dtype=dtype, device=self.device)
        if collective.kind == "send_recv":
            from .pair import bind_pair

            return bind_pair(collective, self.group, like, given)
        s = settings_of(collective, like, self.world, {**given, "arena_bytes": self.arena_bytes})
        try:
            world = world_of(collective, self.world, s.mesh, s.root, s.op)
            if self.world == 1:
                return Op(collective, world, self.rank, None, None, None, s, self.device, dtype)
            trace = collective.trace(world, dtype=dtype_name(dtype), compressors=s.compressors)
            wiring = self._wiring(trace.levels)
            op = assemble(collective, world, self.rank, trace, s, self.device, dtype, wiring, self.note)
            op.join(self.group)
            return op
        except ValueError as e:
            raise BindError(f"bind of `{collective.name}`: {e}") from e

    def _wiring(self, levels: int) -> Wiring:
        memory = self._memory
        if memory is None or levels > MAX_LEVELS:
            return Wiring(
                lambda what, _: TorchTransport(self.group, self.device, what), arena=self._arena, turn=self.turn
            )

        def shared(plan: Plan, layout: Layout, counters: int) -> Mapped:
            return memory

        return Wiring(memory=shared, turn=self.turn)

    @torch.inference_mode(False)
    def _arena(self, size: int) -> torch.Tensor:
        if self._local is None:
            self._local = torch.empty(self.arena_bytes, dtype=torch.uint8, device=self.device)
        return self._local


@torch.inference_mode(False)
def open_session(
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    arena_bytes: int = ARENA_BYTES,
    terms: Mapping[str, str] | None = None,
    transport: str = "auto",
    timeout: timedelta | None = None,
) -> Session:
    """Agree, and map memory where it can be. Collective: all ranks of `group` call it, at the same place in their order of collective calls.

    arena_bytes   wire memory of the session's ops together
    terms         what else must be the same everywhere (a policy's text): name -> value
    transport     auto, symm, or torch: torch's own backend of the group
    timeout       for the ranks to come; the group's own unless given

    Raises BindError on all ranks, naming ranks and field, where they differ.
    """
    from .. import __version__

    if transport not in ("auto", "symm", "torch"):
        raise BindError(f"transport={transport!r}: a session runs over auto, symm or torch")
    if arena_bytes <= 0:
        raise BindError(f"arena_bytes={arena_bytes}: a number of bytes is wanted")
    meeting = Meeting(group, timeout or group_timeout(group, device), f"session of group {group.group_name!r}")
    own = {
        "package": __version__,
        "torch": torch.__version__,
        "device": device.type,
        "arena_bytes": str(arena_bytes),
        "transport": transport,
        **(terms or {}),
    }
    meeting.agree(own)
    hosts = meeting.gather("host", host_text())
    measured = agree_on_table(meeting, group, device, hosts)
    if dist.get_world_size(group) == 1:
        return Session(group, device, arena_bytes, "torch", "", hosts, None, measured)
    chosen = choose_transport(transport, device, meeting)
    memory, problem = None, ""
    try:
        if chosen.name == "symm":
            from .transports.symm import Mapped

            memory = Mapped(group, device, MAX_LEVELS, MAX_DEPTH, meeting.timeout, chosen.hosts, shared=True)
            memory.reserve(arena_bytes)
            memory.open(meeting)
    except Exception as e:
        problem = f"{type(e).__name__}: {e}"
    meeting.report(problem)
    return Session(group, device, arena_bytes, chosen.name, chosen.note, hosts, memory, measured)
