"""bind, and the op that it gives: a collective for one group, dtype and capacity, callable with tensors."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..codegen.casts import to_dtype
from ..codegen.eager import EagerBackend
from ..codegen.launch import Backend
from ..pipeline import World, op_factor
from ..plan.ops import Plan
from .agreement import Meeting
from .cut import Cut, cut
from .dtypes import dtype_name
from .errors import BindError
from .executor import Executor
from .simulate import world_of
from .transports.base import Transport, drive
from .transports.local import run_all
from .transports.torch_p2p import TorchTransport, group_timeout
from .tuning import tuned

if TYPE_CHECKING:
    from ..check.values import Trace
    from ..pipeline import Collective

log = logging.getLogger("coccl_dsl")
TRANSPORTS = ("auto", "symm", "nccl", "torch", "local")
_lock = threading.RLock()


@dataclass(frozen=True)
class LocalGroup:
    """All ranks in this process: bind with it, and call the op with one tensor a rank."""

    size: int


@dataclass(frozen=True)
class Settings:
    """What was asked of bind, after defaults."""

    op: str
    capacity: int
    mesh: dict[str, int] | None
    root: int
    seed: int
    depth: int | None
    transport: str
    backend: str
    fuse: bool
    compressors: dict[str, str]
    min_bytes: int = 0


class Work:
    """Result of an async call. `wait()` orders the caller's stream after it and never blocks the host; holds the tensors until then."""

    def __init__(self, result: torch.Tensor, held: tuple[torch.Tensor, ...], done: torch.cuda.Event | None):
        self.result: torch.Tensor = result
        self._held: tuple[torch.Tensor, ...] | None = held
        self._done = done

    def wait(self) -> torch.Tensor:
        if self._done is not None:
            torch.cuda.current_stream(self.result.device).wait_event(self._done)
        self._held = None
        return self.result


def backend_for(collective: Collective, device: torch.device, name: str = "auto") -> Backend:
    """Triton on CUDA, eager torch elsewhere; `eager` and `triton` can be asked for. A generated module's kernels are used where there are any."""
    if name == "eager" or (name == "auto" and device.type != "cuda"):
        return EagerBackend()
    from ..codegen.triton_backend import TritonBackend
    from .dispatch import kernels_of

    return TritonBackend(kernels_of(collective))


def settings_of(collective: Collective, like: torch.Tensor, world: int, options: dict[str, Any]) -> Settings:
    known = {
        "op": "sum",
        "capacity": like.numel(),
        "mesh": None,
        "root": 0,
        "seed": 0,
        "depth": None,
        "transport": "auto",
        "backend": "auto",
        "fuse": True,
        "min_bytes": 0,
    }
    declared = set(collective.program(dtype_name(like.dtype)).codecs)
    compressors = {}
    for name in list(options):
        if name in declared:
            compressors[name] = str(options.pop(name))
        elif name not in known:
            raise BindError(
                f"bind has no argument `{name}`; compressors of `{collective.name}`: {', '.join(sorted(declared)) or 'none'}"
            )
    asked = {**known, **options}
    for name in ("capacity", "root", "seed", "min_bytes"):
        if not isinstance(asked[name], int) or asked[name] < 0:
            raise BindError(f"{name}={asked[name]!r}: a whole number that is not negative is wanted")
    if asked["transport"] not in TRANSPORTS:
        raise BindError(f"transport={asked['transport']!r} is not one of {', '.join(TRANSPORTS)}")
    if asked["backend"] not in ("auto", "eager", "triton"):
        raise BindError(f"backend={asked['backend']!r} is not one of auto, eager, triton")
    depth = asked["depth"]
    if depth is not None and (not isinstance(depth, int) or not 1 <= depth <= 64):
        raise BindError(f"depth={depth!r}: 1 to 64 slices")
    try:
        op_factor(asked["op"], world)
    except ValueError as e:
        raise BindError(str(e)) from None
    return Settings(
        asked["op"],
        asked["capacity"],
        asked["mesh"],
        asked["root"],
        asked["seed"],
        depth,
        asked["transport"],
        asked["backend"],
        bool(asked["fuse"]),
        compressors,
        _min_bytes(collective, asked, dtype_name(like.dtype), compressors),
    )


def _min_bytes(collective: Collective, asked: dict[str, Any], dtype: str, compressors: dict[str, str]) -> int:
    if not asked["min_bytes"]:
        return 0
    if collective.kind != "all_to_all":
        raise BindError(
            f"min_bytes is for all_to_all, whose pairs differ in size; `{collective.name}` is {collective.kind}"
        )
    kept = [name for name, codec in collective.program(dtype, compressors).codecs.items() if codec.stateful]
    if kept or not asked["fuse"]:
        reason = (
            f"compressor `{kept[0]}` keeps a state for each pair"
            if kept
            else "fuse=False keeps what it would leave out"
        )
        raise BindError(f"min_bytes is not available here: {reason}")
    return asked["min_bytes"]


class Op:
    """A bound collective. Call it with a tensor of the bound dtype and device, of at most `capacity` elements.

    plan       this rank's Plan, or None in a group of one
    transport  the one that is used
    """

    def __init__(
        self,
        collective: Collective,
        world: World,
        rank: int,
        plan: Plan | None,
        executor: Executor | None,
        transport: Transport | None,
        settings: Settings,
        device: torch.device,
        dtype: torch.dtype,
        note: str = "",
    ):
        self.note = note
        self.collective, self.world, self.rank, self.plan = collective, world, rank, plan
        self._executor, self.transport, self.settings = executor, transport, settings
        self.device, self.dtype = device, dtype
        self._side: torch.cuda.Stream | None = None
        self._last: torch.cuda.Stream | None = None

    @property
    def slices(self) -> int:
        """Slices in flight."""
        return self._executor.depth if self._executor is not None else 1

    def __repr__(self) -> str:
        return f"Op({self.collective.name}, rank {self.rank} of {self.world.count}, {self.settings.op}, {dtype_name(self.dtype)})"

    def __call__(
        self,
        x: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        async_op: bool = False,
        input_splits: Sequence[int] | None = None,
        output_splits: Sequence[int] | None = None,
    ) -> Any:
        """Run the collective on `x`.

        x      any shape; not contiguous tensors are copied first. reduce_scatter and all_to_all take a multiple of the world's size.
        out    where the result goes: contiguous, of the result's size; `out=x` is in place where torch has such a form. Else a new tensor.
        input_splits, output_splits   all_to_all only: elements to and from each rank

        Returns the result, or with async_op a `Work`. Raises TypeError / ValueError for arguments that do not fit, CollectiveError and
        CollectiveTimeout when a peer fails.
        """
        splits = None
        if input_splits is not None or output_splits is not None:
            if self.collective.kind != "all_to_all" or input_splits is None or output_splits is None:
                raise ValueError("input_splits and output_splits belong together, and to all_to_all")
            splits = (tuple(input_splits), tuple(output_splits))
        with torch.no_grad(), _lock:
            return self._call(x, out, async_op, splits)

    def _call(self, x: torch.Tensor, out: torch.Tensor | None, async_op: bool, splits) -> Any:
        self._check(x, "x")
        flat = x.detach().contiguous().reshape(-1)
        if self._executor is None:
            return self._alone(flat, x, out, async_op)
        prepared_cut = self._executor.prepare(flat.numel(), splits).cut
        result = self._result(x, out, prepared_cut)
        y = result.reshape(-1)
        if out is not None:
            self._check_alias(flat, y, prepared_cut)
        assert self.transport is not None
        if self.device.type != "cuda":
            drive(self._executor, self.transport, flat, y, flat.numel(), splits)
            return Work(result, (), None) if async_op else result
        caller = torch.cuda.current_stream(self.device)
        if not async_op:
            self._order(caller)
            drive(self._executor, self.transport, flat, y, flat.numel(), splits)
            return result
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)
        self._side.wait_stream(caller)
        self._order(self._side)
        with torch.cuda.stream(self._side):
            drive(self._executor, self.transport, flat, y, flat.numel(), splits)
            done = self._side.record_event()
        return Work(result, (flat, y, x), done)

    def _order(self, stream: torch.cuda.Stream) -> None:
        """Calls of one op share buffers, so they run one after the other whatever their streams."""
        if self._last is not None and self._last != stream and not torch.cuda.is_current_stream_capturing():
            stream.wait_stream(self._last)
        self._last = stream

    def _alone(self, flat: torch.Tensor, x: torch.Tensor, out: torch.Tensor | None, async_op: bool) -> Any:
        factor = self.world.factor
        v = (
            flat.float()
            if factor is None
            else flat.float() * torch.full((), factor, dtype=torch.float32, device=flat.device)
        )
        made = to_dtype(v, dtype_name(self.dtype)).reshape(x.shape)
        if out is not None:
            self._check(out, "out")
            if out.numel() != made.numel() or not out.is_contiguous():
                raise ValueError(
                    f"out has {out.numel()} elements (contiguous: {out.is_contiguous()}), the result {made.numel()}"
                )
            made = out.copy_(made.reshape(out.shape))
        return Work(made, (), None) if async_op else made

    def _check(self, t: torch.Tensor, name: str) -> None:
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name} is {type(t).__name__}, a tensor is wanted")
        if t.dtype != self.dtype:
            raise TypeError(f"{name} is {t.dtype}, the op is bound for {self.dtype}")
        if t.device != self.device:
            raise ValueError(f"{name} is on {t.device}, the op is bound on {self.device}")

    def _result(self, x: torch.Tensor, out: torch.Tensor | None, made: Cut) -> torch.Tensor:
        count = made.output_count
        if out is None:
            return torch.empty(self._shape(x, count), dtype=self.dtype, device=self.device)
        self._check(out, "out")
        if out.numel() != count:
            raise ValueError(f"out has {out.numel()} elements, the result {count}")
        if not out.is_contiguous():
            raise ValueError("out is not contiguous; give a contiguous tensor, or none")
        return out.detach()

    def _shape(self, x: torch.Tensor, count: int) -> tuple[int, ...]:
        n = self.world.count
        match self.collective.kind:
            case "all_gather":
                return (n * x.shape[0], *x.shape[1:]) if x.dim() else (n,)
            case "reduce_scatter":
                return (x.shape[0] // n, *x.shape[1:]) if x.dim() and x.shape[0] % n == 0 else (count,)
        return tuple(x.shape) if x.numel() == count else (count,)

    def _check_alias(self, x: torch.Tensor, y: torch.Tensor, made: Cut) -> None:
        """Disjoint, or torch's in-place form: chunks that share memory stand at the same place."""
        size = x.element_size()
        low, high = x.data_ptr(), x.data_ptr() + x.numel() * size
        start, end = y.data_ptr(), y.data_ptr() + y.numel() * size
        if high <= start or end <= low or x.numel() == 0 or y.numel() == 0:
            return
        assert self.plan is not None
        aliases = self.plan.buffers.aliases
        same = [i for i, a in enumerate(aliases) if a >= 0]
        if same and all(low + made.inputs[aliases[i]] * size == start + made.outputs[i] * size for i in same):
            return
        raise ValueError("out overlaps x in a way that torch's in-place forms do not have")

    # ------------------------------------------------------------ state and explanation

    def reset(self) -> None:
        """Forget the states of stateful compressors. Collective: call it on all ranks."""
        if self._executor is not None:
            self._executor.reset()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """States, versions and call number, as copies."""
        return self._executor.state_dict() if self._executor is not None else {}

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        """Load what `state_dict` gave. Collective: call it on all ranks. Raises ValueError naming what does not fit."""
        if self._executor is not None:
            self._executor.load_state_dict(saved)

    def flags(self) -> dict[str, int]:
        """Counters since bind (waits for the device): `version`, wires of another state's version; each `flag` of the compressors."""
        if self._executor is None:
            return {}
        values = self._executor.flags.tolist()
        return dict(zip(("version", *self._executor.flag_names), values, strict=True))

    def explain(self) -> str:
        """Which plan runs, over what, and what it costs."""
        from ..plan.show import summary

        lines = [repr(self)]
        if self.plan is None or self._executor is None or self.transport is None:
            return "\n".join([*lines, "a group of one: the input times the op's factor; nothing is sent"])
        describe = getattr(self.transport, "describe", None)
        lines.append(f"transport: {describe() if describe else self.transport.name} {self.note}".rstrip())
        lines.append(
            f"kernels: {type(self._executor.backend).__name__}, slices: {self.slices}, wire memory: {self._executor.arena.numel()} bytes"
        )
        return "\n".join(lines) + "\n" + summary(self.plan, self.settings.capacity)


class LocalOp:
    """A collective bound to a LocalGroup: called with one tensor a rank, gives one result a rank."""

    def __init__(self, ops: list[Op]):
        self.ops = ops

    def __call__(
        self,
        xs: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor] | None = None,
        splits: Sequence[Sequence[int]] | None = None,
    ) -> list[torch.Tensor]:
        """splits: all_to_all only; splits[i][j] elements go from rank i to rank j."""
        if len(xs) != len(self.ops):
            raise ValueError(f"{len(xs)} tensors for {len(self.ops)} ranks")
        with torch.no_grad():
            if len(self.ops) == 1:
                return [self.ops[0](xs[0], outs[0] if outs else None)]
            flats, results = [], []
            columns = (
                None
                if splits is None
                else [(tuple(splits[r]), tuple(row[r] for row in splits)) for r in range(len(xs))]
            )
            for r, (op, x) in enumerate(zip(self.ops, xs, strict=True)):
                op._check(x, f"x of rank {op.rank}")
                assert op._executor is not None
                flat = x.detach().contiguous().reshape(-1)
                made = op._executor.prepare(flat.numel(), columns[r] if columns else None).cut
                result = op._result(x, outs[r] if outs else None, made)
                if outs:
                    op._check_alias(flat, result.reshape(-1), made)
                flats.append(flat)
                results.append(result)
            executors = [op._executor for op in self.ops if op._executor is not None]
            run_all(executors, flats, [r.reshape(-1) for r in results], [f.numel() for f in flats], columns)
            return results

    def reset(self) -> None:
        for op in self.ops:
            op.reset()


def _bind_local(collective: Collective, group: LocalGroup, like: torch.Tensor, s: Settings) -> LocalOp:
    world = world_of(collective, group.size, s.mesh, s.root, s.op)
    dtype = dtype_name(like.dtype)
    ops = []
    trace = collective.trace(world, dtype=dtype, compressors=s.compressors) if group.size > 1 else None
    for rank in range(group.size):
        plan = executor = None
        if trace is not None:
            plan = collective.plan(world, rank, dtype=dtype, compressors=s.compressors, trace=trace, fuse=s.fuse)
            executor = Executor(
                plan,
                backend_for(collective, like.device, s.backend),
                like.device,
                s.capacity,
                world.factor,
                s.seed,
                tuned(plan, 0, s.depth).depth,
                min_bytes=s.min_bytes,
            )
        ops.append(Op(collective, world, rank, plan, executor, None, s, like.device, like.dtype))
    return LocalOp(ops)


def _fingerprint(collective: Collective, s: Settings, world: World, dtype: str, plan_text: str) -> dict[str, str]:
    from .. import __version__

    def digest(text: str) -> str:
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    program = collective.program(dtype, s.compressors)
    return {
        "package": __version__,
        "torch": torch.__version__,
        "collective": f"{collective.name} ({digest(collective.source.text)})",
        "compressors": json.dumps(
            {n: f"{c.name} ({digest(c.text)})" for n, c in program.codecs.items()}, sort_keys=True
        ),
        "world": str(world.sizes),
        "op": s.op,
        "dtype": dtype,
        "capacity": str(s.capacity),
        "root": str(s.root),
        "seed": str(s.seed),
        "min_bytes": str(s.min_bytes),
        "slices": str(s.depth),
        "transport": s.transport,
        "plan": digest(plan_text),
    }


def _world_text(collective: Collective, world: World, dtype: str, s: Settings, trace) -> str:
    sent = [(m.level, m.source, m.target, [(w.codec, w.extent) for w in m.sent]) for m in trace.messages]
    return json.dumps([sent, [[v.number if v else -1 for v in out] for out in trace.outputs]])


def bind_op(collective: Collective, group: Any, like: torch.Tensor | None, options: dict[str, Any]) -> Any:
    """See `Collective.bind`."""
    if not isinstance(like, torch.Tensor):
        raise BindError("bind needs like=x: a tensor of the dtype, device and largest size that the op will get")
    dtype = dtype_name(like.dtype)
    if isinstance(group, LocalGroup):
        s = settings_of(collective, like, group.size, dict(options))
        if s.transport not in ("auto", "local"):
            raise BindError(
                f"a LocalGroup moves wires in this process; transport={s.transport!r} is for process groups"
            )
        return _bind_local(collective, group, like, s)
    if collective.kind == "send_recv" and options.keys() & {"source", "target", "tag"}:
        from .pair import bind_pair

        return bind_pair(collective, group, like, options)
    if not dist.is_initialized():
        raise BindError(
            "torch.distributed is not initialised: call init_process_group first, or bind with group=LocalGroup(n)"
        )
    pg: dist.ProcessGroup = group if group is not None else dist.group.WORLD
    rank, count = dist.get_rank(pg), dist.get_world_size(pg)
    if rank < 0:
        raise BindError("this process is not a member of the group")
    if collective.kind == "send_recv" and count > 2:
        raise BindError(
            f"`{collective.name}` is between 2 ranks, the group has {count}: say target= on the sender and source= on the receiver"
        )
    meeting = Meeting(pg, group_timeout(pg, like.device), f"bind of `{collective.name}`")
    problem, made = "", None
    try:
        s = settings_of(collective, like, count, dict(options))
        world = world_of(collective, count, s.mesh, s.root, s.op)
        trace = collective.trace(world, dtype=dtype, compressors=s.compressors) if count > 1 else None
        made = (s, world, trace)
    except Exception as e:  # the others must hear of it before it is raised here
        problem = f"{type(e).__name__}: {e}"
        failure: Exception = BindError(str(e)) if type(e) is ValueError else e
    if made is None:
        try:
            meeting.gather("settings", problem)
        finally:
            raise failure  # noqa: B012 - this rank's own reason says more than that others wait
    told = [(r, t) for r, t in enumerate(meeting.gather("settings", problem)) if t]
    if told:
        raise BindError(f"bind of `{collective.name}`: " + "; ".join(f"rank {r}: {t}" for r, t in told))
    s, world, trace = made
    text = _world_text(collective, world, dtype, s, trace) if trace is not None else ""
    meeting.agree(_fingerprint(collective, s, world, dtype, text))
    if trace is None:
        return Op(collective, world, rank, None, None, None, s, like.device, like.dtype)
    name, note = _choose(s, like.device, meeting)
    problem, op = "", None
    try:
        op = _assemble(collective, pg, world, rank, trace, s, like, name, note, meeting)
    except Exception as e:
        problem = f"{type(e).__name__}: {e}"
        log.debug("bind failed", exc_info=True)
    meeting.report(problem)
    assert op is not None
    log.info("%r: transport %s %s", op, name, note)
    return op


def _choose(s: Settings, device: torch.device, meeting: Meeting) -> tuple[str, str]:
    """The transport that all ranks use, and why it is not a faster one. Raises BindError on all ranks when what was asked for cannot be had."""
    if s.transport not in ("auto", "symm") or device.type != "cuda":
        if s.transport == "symm":
            raise BindError(f"transport='symm' needs CUDA tensors, like is on {device}")
        return ("torch" if s.transport == "auto" else s.transport), ""
    from .transports.symm import host_name, reachable, unavailable

    told = [
        json.loads(t) for t in meeting.gather("device", json.dumps([host_name(), device.index, unavailable(device)]))
    ]
    hosts = {t[0] for t in told}
    problem = next((f"rank {r}: {t[2]}" for r, t in enumerate(told) if t[2]), "")
    if not problem and len(hosts) > 1:
        problem = f"the ranks are on {len(hosts)} hosts"
    devices = [t[1] for t in told]
    if (
        not problem
        and len(set(devices)) < len(devices)
        and os.environ.get("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES") != "1"
    ):
        problem = "several ranks share a device"
    if not problem:
        reasons = meeting.gather("peer access", reachable(device, devices))
        problem = next((f"rank {r}: {t}" for r, t in enumerate(reasons) if t), "")
    if not problem:
        return "symm", ""
    if s.transport == "symm":
        raise BindError(f"transport='symm' is not available: {problem}")
    return "torch", f"(not symm: {problem})"


def _assemble(
    collective: Collective,
    pg: dist.ProcessGroup,
    world: World,
    rank: int,
    trace: Trace,
    s: Settings,
    like: torch.Tensor,
    name: str,
    note: str,
    meeting: Meeting,
) -> Op:
    """Plan, memory and transport of this rank."""
    device, dtype = like.device, dtype_name(like.dtype)
    what = f"`{collective.name}` on rank {rank}"
    backend = backend_for(collective, device, s.backend)
    if name == "symm":
        from .transports.symm import SymmTransport

        plan = collective.mapped_plans(world, dtype=dtype, compressors=s.compressors, trace=trace, fuse=s.fuse)[rank]
        assert plan.credits is not None
        whole = cut(plan, _whole(plan, s.capacity))
        best = tuned(plan, max(whole.input_count, whole.output_count) * like.element_size(), s.depth)
        transport = SymmTransport(pg, device, what, max(plan.levels, 1), best.depth, meeting.timeout)
        executor = Executor(
            plan,
            backend,
            device,
            s.capacity,
            world.factor,
            s.seed,
            best.depth,
            transport.reserve,
            best.far_programs,
            s.min_bytes,
        )
        arenas = transport.open(meeting, plan.credits)
        executor.arena = transport.arena
        tables = [json.loads(t) for t in meeting.gather("places", json.dumps(executor.incoming()))]
        executor.connect(arenas, {r: t for r, t in enumerate(tables) if r != rank})
    else:
        plan = collective.plan(world, rank, dtype=dtype, compressors=s.compressors, trace=trace, fuse=s.fuse)
        executor = Executor(
            plan,
            backend,
            device,
            s.capacity,
            world.factor,
            s.seed,
            tuned(plan, 0, s.depth).depth,
            min_bytes=s.min_bytes,
        )
        transport = _transport(pg, device, what, name, meeting)
    if plan.kind != "send_recv":
        executor.prepare(_whole(plan, s.capacity))
        if s.min_bytes:  # a call may have pairs of both sorts, and nothing is compiled after bind
            executor.prepare(min(plan.world, _whole(plan, s.capacity)))
    return Op(collective, world, rank, plan, executor, transport, s, device, like.dtype, note)


def _whole(plan: Plan, capacity: int) -> int:
    """The largest count within the capacity that the collective takes."""
    if plan.kind in ("reduce_scatter", "all_to_all"):
        return capacity // plan.world * plan.world
    return capacity


def _transport(group: dist.ProcessGroup, device: torch.device, what: str, name: str, meeting: Meeting) -> Transport:
    if name == "local":
        raise BindError("transport='local' is for group=LocalGroup(n)")
    if name == "nccl":
        if device.type != "cuda":
            raise BindError(f"transport='nccl' needs CUDA tensors, like is on {device}")
        from .transports.nccl import NcclTransport

        return NcclTransport(group, device, what, meeting)
    return TorchTransport(group, device, what)
