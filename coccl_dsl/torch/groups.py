"""What the transparent path knows of each process group: its session, and every kind of call with the rules that it meets.

Agreement happens where a group is made (or claimed, or at `enable`), which is collective and in one order on all ranks. From then on a call's
fate is a pure function of what was agreed and of (roles, op, ReduceOp, dtype, count, number of the call), all known to all its ranks alike;
the first call of a kind compiles and binds locally and communicates nothing (design/runtime.md, "Who binds when").
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from ..policy import Call, Policy, Rule
from ..runtime.dispatch import capacity_for, destroyed
from ..runtime.dtypes import NAMES
from ..runtime.errors import BindError, CollectiveError
from ..runtime.session import Session, open_session
from ..runtime.transports.torch_p2p import group_timeout
from . import debug, roles, traffic, works
from .choose import node_runs
from .ddp import DDPState
from .saving import restart
from .selection import Bound, bypassed, select

log = logging.getLogger("coccl_dsl")
MIB = 1 << 20
# How long ranks that have just met wait for one of them that has no policy.
AGREEMENT = timedelta(minutes=5)
# Sizes that go native and are remembered, where every call has another.
MAX_PASSED = 4096


@dataclass(slots=True)
class Kind:
    """One kind of call of a group. choices: rules that may take it, in order; why: the reason where there is none; unfit: why no rule could;
    skipped: the counter of that. calls: so far."""

    role: str
    op: str
    call: Call
    choices: tuple[tuple[str, Rule], ...]
    why: str
    unfit: str
    skipped: list[int]
    generation: int
    calls: int = 0


@dataclass
class GroupState:
    """sessions: by transport. missing: why the group's calls all go native, or "". passed: counters of what goes native whatever else a call
    is, in generation `of`: an op, or None where some rule may be for it; and (op, dtype, elements, role that is running). idle: ops of messages
    between two ranks whose wires are not in flight."""

    pg: dist.ProcessGroup
    desc: str
    device: torch.device | None
    sessions: dict[str, Session]
    missing: str
    of: int = -1
    passed: dict[Hashable, list[int] | None] = field(default_factory=dict)
    idle: dict[Hashable, list[Bound]] = field(default_factory=dict)
    kinds: dict[Hashable, Kind] = field(default_factory=dict)
    ops: dict[Hashable, Bound] = field(default_factory=dict)

    def session_of(self, rule: Rule) -> Session:
        """auto is symm where some rule insists on symm."""
        found = self.sessions.get(rule.transport) or self.sessions.get("symm") or next(iter(self.sessions.values()))
        return self.sessions["torch"] if rule.transport == "torch" else found


Taken = tuple[GroupState, Kind, Rule]


class Groups:
    """All groups of this process, under one policy. look: called with an op as soon as a group is there for which some rule may take it."""

    def __init__(self, policy: Policy, look: Callable[[str], None]):
        self.policy = policy
        self._look, self._looked = look, set[str]()
        self.steps = 0
        self.generation = 0
        self.debug = policy.debug or debug.enabled()
        self.states: dict[dist.ProcessGroup, GroupState] = {}
        self._counts: dict[str, int] = {}
        self._op_states: dict[str, Any] = {}
        self._hooks: WeakValueDictionary[int, DDPState] = WeakValueDictionary()
        self._hook_count = 0
        self._hook_states: dict[int, dict[str, bytes]] = {}
        self._logged: list[str] = []
        # Spawned processes have no RANK, and the last group is gone when the log is written.
        self._rank = int(os.environ.get("RANK", "0"))
        self._lock = threading.RLock()

    # ------------------------------------------------------------ opening and closing

    def open(self, pg: Any) -> None:
        """Agree with the group's other ranks, once. Collective where the group has rules to look for; raises BindError on all its ranks
        where policies or versions differ."""
        if not isinstance(pg, dist.ProcessGroup) or dist.get_rank(pg) < 0:
            return
        self._rank = dist.get_rank()
        for gone in [g for g in self.states if destroyed(g)]:  # aborted, say
            self.close(gone)
        state = self.states.get(pg)
        if state is not None and (state.sessions or pg.size() == 1 or not self._wanted(pg)):
            return
        device = device_of(pg)
        sessions: dict[str, Session] = {}
        missing = ""
        world = pg is dist.group.WORLD
        if pg.size() == 1:
            missing = "group of one"
        elif device is None:
            missing = f"backend {dist.get_backend(pg)} has neither gloo nor nccl"
        elif not self._wanted(pg) and not world:
            missing = "no rule"
        else:
            for transport in self._transports(pg, device):
                sessions[transport] = open_session(
                    pg,
                    device,
                    arena_bytes=self.policy.arena_mib * MIB,
                    terms=self.policy.fields(),
                    transport=transport,
                    timeout=min(group_timeout(pg, device), AGREEMENT),
                )
        if self.policy.problem:  # on all ranks alike, or they would not have agreed
            raise BindError(f"the policy cannot be read:\n{self.policy.problem}")
        if state is None:
            self.states[pg] = GroupState(pg, pg.group_desc, device, sessions, missing)
        else:
            state.sessions, state.missing = sessions, missing
            self.generation += 1
        self._look_for(self.states[pg])

    def _wanted(self, pg: dist.ProcessGroup) -> bool:
        """Whether any rule may take calls of this group; a group that nothing is known of may be claimed later."""
        known = roles.all_roles(pg)
        compressing = [r for r in self.policy.rules if not r.native]
        if not known:
            return bool(compressing)
        return any(s.role in ("*", *known) for r in compressing for s in r.on)

    def _transports(self, pg: dist.ProcessGroup, device: torch.device) -> list[str]:
        """What sessions the group's rules need: they share none, as an arena is mapped or it is not."""
        asked = {r.transport for r in self.policy.rules if not r.native}
        if device.type != "cuda" or not self._wanted(pg):
            return ["torch"]
        if "symm" in asked:
            asked.discard("auto")
        return sorted(asked)

    def close(self, pg: dist.ProcessGroup | None) -> None:
        """Forget a group (None: all of them), before it is destroyed."""
        for gone in [pg] if pg is not None else list(self.states):
            state = self.states.pop(gone, None)
            if state is None:
                continue
            works.alive.forget(gone.group_name)
            if self.policy.log:
                self._logged += lines(state)
            for session in state.sessions.values():
                session.close()
        self.write_log()

    def write_log(self) -> None:
        """Every kind of call so far, a line each, for `coccl-policy explain --log`. Rank 0 alone writes, or each rank where the name has
        {rank} in it."""
        if not self.policy.log:
            return
        if self._rank and "{rank}" not in self.policy.log:
            return
        now = [line for state in list(self.states.values()) for line in lines(state)]
        Path(self.policy.log.format(rank=self._rank)).write_text("".join(f"{line}\n" for line in [*self._logged, *now]))

    def claimed(self, pg: dist.ProcessGroup | None, role: str | None) -> None:
        """A group got a role, on all of its ranks."""
        pg = pg if pg is not None else dist.group.WORLD
        if roles.claim(pg, role) and pg is not None:
            self.generation += 1
            if pg in self.states or pg in dist.distributed_c10d._world.pg_map:
                self.open(pg)
            if pg in self.states:
                self._look_for(self.states[pg])

    # ------------------------------------------------------------ states

    def state_dict(self) -> dict[str, Any]:
        """Steps, numbers of calls, and what ops carry from call to call."""
        counts, ops = dict(self._counts), dict(self._op_states)
        for state in self.states.values():
            counts |= {name_of(state, key): kind.calls for key, kind in state.kinds.items()}
            for key, bound in state.ops.items():
                if bound.carries:
                    ops[name_of(state, key)] = bound.op.state_dict()
        hooks = self._hook_states | {number: hook.state_dict() for number, hook in self._hooks.items()}
        return {"steps": self.steps, "counts": counts, "ops": ops, "hooks": hooks}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """What is not there yet is loaded when its first call comes; what is there and was not then starts anew."""
        self.steps, self._counts, self._op_states = saved["steps"], dict(saved["counts"]), dict(saved["ops"])
        self._hook_states = dict(saved["hooks"])
        for number, hook in self._hooks.items():
            if number in self._hook_states:
                hook.load_state_dict(self._hook_states.pop(number))
            else:
                hook.restart()
        for state in self.states.values():
            for bound in (b for free in state.idle.values() for b in free):
                restart(bound.op)
            for key, kind in state.kinds.items():
                kind.calls = self._counts.pop(name_of(state, key), 0)
            for key, bound in state.ops.items():
                kept = self._op_states.pop(name_of(state, key), None)
                if kept is not None:
                    bound.op.load_state_dict(kept)
                else:
                    restart(bound.op)

    def hooked(self, hook: DDPState) -> None:
        """A DDP got our hook. Hooks are known by their order, the same in every run."""
        number, self._hook_count = self._hook_count, self._hook_count + 1
        self._hooks[number] = hook
        if number in self._hook_states:
            hook.load_state_dict(self._hook_states.pop(number))

    def reset(self, what: str | None = None) -> None:
        """Forget states of compressors; what: of one role's op, `fsdp.all_gather`."""
        for hook in self._hooks.values() if what in (None, "dp.all_reduce") else ():
            hook.reset()
        for state in self.states.values():
            for bound in state.ops.values():
                if what in (None, bound.name):
                    bound.op.reset()

    def memory(self) -> list[traffic.Memory]:
        """Wire memory of each group's session, and states of compressors."""
        held = []
        for state in list(self.states.values()):
            if state.sessions:
                bounds = [*state.ops.values(), *(b for free in state.idle.values() for b in free)]
                held.append(traffic.Memory(f"wires of {state.desc}", wire_memory(bounds)))
                kept = sum(b.state_bytes() for b in bounds)
                if kept:
                    held.append(traffic.Memory(f"states of {state.desc}", kept))
        return held

    # ------------------------------------------------------------ one call

    def _look_for(self, state: GroupState) -> None:
        """Have ops looked at that some rule may now take, or that are logged or compared."""
        for op in sorted(self.policy.ops - self._looked):
            if self._shut(state, op) is None:
                self._looked.add(op)
                self._look(op)

    def shut(self, pg: dist.ProcessGroup, op: str) -> bool:
        """Whether no rule is for this op on this group, whatever its tensors. Counts the call."""
        return self.passes(pg, op, None)

    def passes(self, pg: dist.ProcessGroup, op: str, t: torch.Tensor | None) -> bool:
        """Whether a call goes native whatever else it is: because of its op on this group, or of its input's dtype and size. What costs native calls
        the least: nothing else of the call is looked at. Counts the call."""
        state = self.states.get(pg)
        if state is None:
            return False
        passed = state.passed
        if state.of != self.generation:
            passed.clear()
            state.of = self.generation
        counter = None
        if t is not None:
            now = roles.current()
            counter = passed.get((op, t.dtype, t.numel(), now and now[0]))
        if counter is None:
            if op not in passed:
                passed[op] = self._shut(state, op)
            counter = passed[op]
            if counter is None:
                return False
        counter[0] += 1
        return True

    def _shut(self, state: GroupState, op: str) -> list[int] | None:
        if self.debug or self.policy.log:
            return None
        held = roles.all_roles(state.pg)
        call = Call(held, op, "", None, "", state.desc)
        if not state.missing and any(r.may_take(call) for r in self.policy.rules):
            return None
        found = roles.roles_of(state.pg, op)
        return traffic.native_counter(found[0] if found else state.desc, op, state.missing or "no rule")

    def _never(self, op: str, t: torch.Tensor) -> bool:
        """Whether no rule for this op takes tensors of this dtype and size, on any group. Logging and debugging want to see all calls."""
        name = NAMES.get(t.dtype)
        if self.debug or self.policy.log:
            return False
        rules = [r for r in self.policy.rules if not r.native and any(s.takes(s.role, op, s.direction) for s in r.on)]
        call = Call((), op, name or "", t.numel() * t.element_size())
        return name is None or all(r.misses(call) for r in rules)

    def decide(
        self,
        pg: dist.ProcessGroup,
        op: str,
        t: torch.Tensor,
        count: int | None,
        reduction: int = 0,
        where: Hashable = None,
        direction: str = "",
    ) -> Taken | None:
        """The rule that takes a call, or None for native (which is then on record). count: elements of the input, None where ranks may
        differ; where: what else tells kinds apart (root, peer and tag)."""
        state = self.states.get(pg)
        if state is None:
            traffic.record_native("-", op, "the group was made where coccl_dsl did not see it")
            return None
        why = roles.why_exact()
        if why:
            self.record_native(pg, op, why)
            return None
        # What parts an all_to_all has is compared where they are known.
        if self.debug and op not in ("send", "all_to_all") and t.dtype in NAMES and state.sessions:
            debug.compare(pg, t, f"{op}, ReduceOp {_NAMES.get(reduction, reduction)}")
        running = roles.current()
        if reduction == PREMUL:
            where = (where, roles.premul())
        key = (op, t.dtype, count, reduction, where, direction, running[0] if running else None)
        kind = state.kinds.get(key)
        if kind is None or kind.generation != self.generation:
            kind = self._kind(state, key, kind, t, count, reduction, direction)
        kind.calls += 1
        if not kind.choices:
            kind.skipped[0] += 1
            if count == t.numel() and state.of == self.generation and self._never(op, t):
                if len(state.passed) > MAX_PASSED:
                    state.passed.clear()
                state.passed[op, t.dtype, count, running and running[0]] = kind.skipped
            return None
        now = self.steps if self.policy.steps == "step()" else kind.calls - 1
        for role, rule in kind.choices:
            if now >= rule.after_step:
                kind.role = role or state.desc
                if not rule.native and not (op != "send" and _cannot_be_captured(state, rule)):
                    return state, kind, rule
                if not rule.native:
                    traffic.record_native(
                        kind.role, op, "CUDA-graph capture, and mapped memory is shared with other calls"
                    )
                    return None
                traffic.record_native(kind.role, op, f"rule {rule.number}")
                return None
        traffic.record_native(kind.role, op, f"before after_step of rule {kind.choices[0][1].number}")
        return None

    def record_native(self, pg: dist.ProcessGroup, op: str, why: str) -> None:
        found = roles.roles_of(pg, op)
        traffic.record_native(found[0] if found else pg.group_desc, op, why)

    def _kind(
        self,
        state: GroupState,
        key: Hashable,
        old: Kind | None,
        t: torch.Tensor,
        count: int | None,
        reduction: int,
        direction: str,
    ) -> Kind:
        op = key[0]  # pyright: ignore
        found = roles.roles_of(state.pg, op)
        name = NAMES.get(t.dtype)
        size = None if count is None else count * t.element_size()
        call = Call(found, op, name or str(t.dtype).removeprefix("torch."), size, direction, state.desc)
        choices: tuple[tuple[str, Rule], ...] = ()
        why = odd = unfit(t, count, reduction)
        why = why or state.missing
        if not why and state.device is not None and t.device.type != state.device.type:
            why = f"{t.device.type} tensors of a group whose backend of choice is for {state.device.type}"
        if not why:
            choices, why = self.policy.meets(call)
            mapped = [r for _, r in choices if r.transport == "symm" and t.device.type != "cuda"]
            if mapped:
                choices, why = (), f"rule {mapped[0].number} is for symm, which is for CUDA tensors"
            unnamed = [r for _, r in choices if r.stateful and roles.current() is None]
            if unnamed:
                choices, why = (), f"rule {unnamed[0].number} keeps a state: {op} outside FSDP2 and our DDP hook"
            if (
                choices
                and count is not None
                and all(r.native or self._bypassed(state, r, op, t, count) for _, r in choices)
            ):
                choices, why = (), "torch's own was measured to be quicker (coccl-bench --calibrate)"
        role = choices[0][0] if choices else (found[0] if found else state.desc)
        kind = Kind(
            role or state.desc,
            op,
            call,
            choices,
            why,
            odd,
            traffic.native_counter(role or state.desc, op, why),
            self.generation,
            old.calls if old else 0,
        )
        if self._counts and old is None:
            kind.calls = self._counts.pop(name_of(state, key), 0)
        with self._lock:
            state.kinds[key] = kind
        return kind

    def _bypassed(self, state: GroupState, rule: Rule, op: str, t: torch.Tensor, count: int) -> bool:
        session, size = state.session_of(rule), state.pg.size()
        nodes = node_runs(session.hosts) or (size, 1)
        capacity = capacity_for(op, count, size)
        return bypassed(rule, op, t.dtype, capacity, size, nodes, t.device, session.measured)

    def bound(
        self,
        state: GroupState,
        rule: Rule,
        op: str,
        t: torch.Tensor,
        count: int,
        reduce_op: str = "sum",
        **options: Any,
    ) -> Bound:
        """The op for a call that `rule` takes; the first of its kind binds it, locally."""
        if state.device != t.device:
            raise CollectiveError(
                f"{op} on {t.device}, but coccl_dsl agreed on {state.device} for this group: call torch.cuda.set_device(local_rank) before "
                f"init_process_group, or pass device_id="
            )
        kind = {"send": "send_recv"}.get(op, op)
        capacity = capacity_for(kind, count, state.pg.size())
        running = roles.current()
        role = running[0] if running else state.desc
        # A state belongs to the parameters that it was made for.
        owner = (running[1], count) if rule.stateful and running else None
        key = (rule.number, op, t.dtype, reduce_op, capacity, owner, tuple(sorted(options.items())))
        found = state.ops.get(key) if op != "send" else None  # a message in flight has an op of its own
        if found is None:
            if t.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise CollectiveError(
                    f"this {op} of {count} elements of {t.dtype} has not been called yet, and cannot be bound under CUDA graph capture: call it "
                    f"once before the capture"
                )
            found = self._bind(state, rule, kind, t, capacity, reduce_op, options, f"{role}.{op}")
            if self._op_states and (kept := self._op_states.pop(name_of(state, key), None)) is not None:
                found.op.load_state_dict(kept)
            if op != "send":
                with self._lock:
                    state.ops[key] = found
        return found

    def _bind(
        self,
        state: GroupState,
        rule: Rule,
        kind: str,
        t: torch.Tensor,
        capacity: int,
        reduce_op: str,
        options: dict[str, Any],
        name: str,
    ) -> Bound:
        session = state.session_of(rule)
        size = state.pg.size()
        nodes = node_runs(session.hosts) or (size, 1)
        chosen = select(rule, kind, t.dtype, capacity, size, nodes, t.device, session.measured)
        if chosen.mesh is not None:
            options = {**options, "mesh": chosen.mesh}
        op = session.bind(
            chosen.collective,
            dtype=t.dtype,
            capacity=capacity,
            compressors=chosen.compressors,
            op=reduce_op,
            **options,
        )
        log.debug("%s of %s: %r", kind, state.desc, op)
        return Bound(op, chosen.collective.name, rule.compressor_text, name)


def _cannot_be_captured(state: GroupState, rule: Rule) -> bool:
    """Replays of a user's graph could not be ordered with other calls, whose wires lie in the same mapped memory. All ranks capture alike."""
    return state.session_of(rule).transport == "symm" and torch.cuda.is_current_stream_capturing()


def wire_memory(bounds: list[Bound]) -> int:
    """Bytes of distinct storages that the ops' wires lie in."""
    arenas = [b.op._executor.arena for b in bounds if b.op._executor is not None]
    return sum({a.untyped_storage().data_ptr(): a.untyped_storage().nbytes() for a in arenas}.values())


def name_of(state: GroupState, key: Any) -> str:
    """A kind of call, or an op, by a name that outlives the process."""
    ranks = dist.get_process_group_ranks(state.pg)
    return repr((state.desc, ranks, key))


def lines(state: GroupState) -> list[str]:
    """The group's kinds of calls as JSON."""
    made = []
    for kind in list(state.kinds.values()):
        call = asdict(kind.call)
        made.append(json.dumps({**call, "calls": kind.calls, "ranks": state.pg.size(), "native": kind.unfit}))
    return made


PREMUL = 8
_REDUCTIONS = {0: "sum", 1: "avg"}
_NAMES = {
    0: "SUM",
    1: "AVG",
    2: "PRODUCT",
    3: "MIN",
    4: "MAX",
    5: "BAND",
    6: "BOR",
    7: "BXOR",
    PREMUL: "PREMUL_SUM without its factor",
}


def reduction_of(code: int) -> str | None:
    """sum, avg or premul(f) of a ReduceOp's number; None where there is no such compressed reduction."""
    return roles.premul() if code == PREMUL else _REDUCTIONS.get(code)


def unfit(t: torch.Tensor, count: int | None, reduction: int) -> str:
    """Why a tensor cannot be compressed at all, or ""."""
    if t.dtype not in NAMES:
        return str(t.dtype).removeprefix("torch.")
    if reduction_of(reduction) is None:
        return f"ReduceOp {_NAMES.get(reduction, reduction)}"
    if t.layout != torch.strided:
        return "sparse"
    if t.device.type not in ("cpu", "cuda"):
        return f"on {t.device.type}"
    return "empty" if count == 0 else ""


def device_of(pg: dist.ProcessGroup) -> torch.device | None:
    """The device whose tensors may be compressed: of the nccl backend if the group has one, else of gloo."""
    backends = {}
    for device in pg._device_types:
        name = pg._get_backend(device).name()
        backends.setdefault(name.lower(), device)
    if "nccl" in backends and torch.cuda.is_available():
        bound = getattr(pg, "bound_device_id", None)
        if bound is not None:
            return bound
        index = torch.cuda.current_device()
        if index == 0 and "LOCAL_RANK" in os.environ:  # set_device often comes after init_process_group
            index = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
        return torch.device("cuda", index)
    if "gloo" in backends:
        return torch.device("cpu")
    return None
