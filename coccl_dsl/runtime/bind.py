"""bind: a collective, a group and a tensor like those to come -> an Op. Everything that can be done once is done here.

Ranks decide nothing alone: settings, texts, versions and plans are compared over the group's store before anything is allocated, and a rank
that cannot bind makes all ranks raise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..codegen.eager import EagerBackend
from ..codegen.launch import Backend
from ..codegen.one_launch_source import PROGRAMS
from ..pipeline import World, op_factor, raw_codec
from ..plan.calibration import Verdict
from ..plan.cut import cut
from ..plan.memory import Layout, doubled, lay_out
from ..plan.one_launch import unshared
from ..plan.ops import Plan
from ..wire.layout import bits_per_value
from .agreement import Meeting
from .dtypes import dtype_name
from .errors import BindError
from .executor import Executor
from .measured import agree_on_table, host_text
from .one_launch import OneLaunchCalls, calls_of, in_one_launch, read_by
from .op import LocalGroup, LocalOp, Op, Settings, Turn
from .simulate import world_of
from .transports.base import Transport
from .transports.torch_p2p import TorchTransport, group_timeout
from .tuning import tuned

if TYPE_CHECKING:
    from ..check.values import Trace
    from ..pipeline import Collective
    from .transports.symm import Mapped

log = logging.getLogger("coccl_dsl")
ROOTED = ("broadcast", "reduce")
TRANSPORTS = ("auto", "symm", "nccl", "torch", "symm+torch", "nccl+collectives", "torch+collectives", "local")


def backend_for(collective: Collective, device: torch.device, name: str = "auto") -> Backend:
    """Triton on CUDA, eager torch elsewhere; `eager` and `triton` can be asked for. A generated module's kernels are used where there are any."""
    if name == "eager" or (name == "auto" and device.type != "cuda"):
        return EagerBackend()
    from ..codegen.triton_backend import TritonBackend
    from .dispatch import kernels_of

    return TritonBackend(kernels_of(collective))


def _whole_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
        "arena_bytes": None,
        "graphs": True,
        "one_launch": None,
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
        if not _whole_number(asked[name]) or asked[name] < 0:
            raise BindError(f"{name}={asked[name]!r}: a whole number that is not negative is wanted")
    if asked["arena_bytes"] is not None and (not _whole_number(asked["arena_bytes"]) or asked["arena_bytes"] <= 0):
        raise BindError(f"arena_bytes={asked['arena_bytes']!r}: a number of bytes is wanted")
    for name in ("fuse", "graphs"):
        if not isinstance(asked[name], bool):
            raise BindError(f"{name}={asked[name]!r} is not True or False")
    if not isinstance(asked["op"], str):
        raise BindError(f"op={asked['op']!r}: the name of a reduction is wanted: 'sum', 'avg' or 'premul(factor)'")
    if asked["root"] and collective.kind not in ROOTED:
        raise BindError(f"root={asked['root']}: `{collective.name}` is {collective.kind}, which has no root")
    if asked["transport"] not in TRANSPORTS:
        raise BindError(f"transport={asked['transport']!r} is not one of {', '.join(TRANSPORTS)}")
    if asked["backend"] not in ("auto", "eager", "triton"):
        raise BindError(f"backend={asked['backend']!r} is not one of auto, eager, triton")
    if asked["one_launch"] is not None and not isinstance(asked["one_launch"], bool):
        raise BindError(f"one_launch={asked['one_launch']!r} is not None, True or False")
    depth = asked["depth"]
    if depth is not None and (not _whole_number(depth) or not 1 <= depth <= 64):
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
        asked["fuse"],
        compressors,
        _min_bytes(collective, asked, dtype_name(like.dtype), compressors),
        asked["arena_bytes"],
        asked["graphs"],
        asked["one_launch"],
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


def _bind_local(collective: Collective, group: LocalGroup, like: torch.Tensor, s: Settings) -> LocalOp:
    if s.one_launch:
        raise BindError("one_launch=True needs transport symm, which a LocalGroup does not have")
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
                limit=s.arena_bytes,
            )
        ops.append(Op(collective, world, rank, plan, executor, None, s, like.device, like.dtype))
    return LocalOp(ops)


def _fingerprint(
    collective: Collective, s: Settings, world: World, dtype: str, device: torch.device, plan_text: str
) -> dict[str, str]:
    from .. import __version__

    def digest(text: str) -> str:
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    program = collective.program(dtype, s.compressors)
    return {
        "package": __version__,
        "torch": torch.__version__,
        "device": device.type,
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
        "arena_bytes": str(s.arena_bytes),
        "slices": str(s.depth),
        "transport": s.transport,
        "graphs": str(s.graphs),
        "fuse": str(s.fuse),
        "backend": s.backend,
        "one_launch": str(s.one_launch),
        "plan": digest(plan_text),
    }


def _checked(like: Any) -> torch.Tensor:
    if not isinstance(like, torch.Tensor):
        raise BindError("bind needs like=x: a tensor of the dtype, device and largest size that the op will get")
    dtype_name(like.dtype)
    return like


def _timeout(group: dist.ProcessGroup, like: Any) -> timedelta:
    """The group's, also where `like` is nothing that it could be asked for."""
    devices = [like.device] if isinstance(like, torch.Tensor) else []
    for device in (*devices, *group._device_types):
        try:
            return group_timeout(group, torch.device(device))
        except RuntimeError:  # no backend for that device
            continue
    return dist.distributed_c10d.default_pg_timeout


def _world_text(collective: Collective, world: World, dtype: str, s: Settings, trace) -> str:
    sent = [(m.level, m.source, m.target, [(w.codec, w.extent) for w in m.sent]) for m in trace.messages]
    return json.dumps([sent, [[v.number if v else -1 for v in out] for out in trace.outputs]])


@torch.inference_mode(False)  # what is made here is written to by calls in any mode
def bind_op(collective: Collective, group: Any, like: torch.Tensor | None, options: dict[str, Any]) -> Any:
    """See `Collective.bind`."""
    if isinstance(group, LocalGroup):
        like = _checked(like)
        s = settings_of(collective, like, group.size, dict(options))
        if s.transport not in ("auto", "local"):
            raise BindError(
                f"a LocalGroup moves wires in this process; transport={s.transport!r} is for process groups"
            )
        try:
            return _bind_local(collective, group, like, s)
        except ValueError as e:
            raise BindError(f"bind of `{collective.name}`: {e}") from e
    if collective.kind == "send_recv" and options.keys() & {"source", "target", "tag"}:
        from .pair import bind_pair

        return bind_pair(collective, group, _checked(like), options)
    if not dist.is_initialized():
        raise BindError(
            "torch.distributed is not initialised: call init_process_group first, or bind with group=LocalGroup(n)"
        )
    pg: dist.ProcessGroup = group if group is not None else dist.distributed_c10d._get_default_group()
    rank, count = dist.get_rank(pg), dist.get_world_size(pg)
    if rank < 0:
        raise BindError("this process is not a member of the group")
    if collective.kind == "send_recv" and count > 2:
        raise BindError(
            f"`{collective.name}` is between 2 ranks, the group has {count}: say target= on the sender and source= on the receiver"
        )
    # Whatever is wrong with this rank's arguments, the others hear of it.
    meeting = Meeting(pg, _timeout(pg, like), f"bind of `{collective.name}`")
    made, failure = None, None
    try:
        like = _checked(like)
        dtype = dtype_name(like.dtype)
        s = settings_of(collective, like, count, dict(options))
        world = world_of(collective, count, s.mesh, s.root, s.op)
        trace = collective.trace(world, dtype=dtype, compressors=s.compressors) if count > 1 else None
        made = (like, dtype, s, world, trace)
    except Exception as e:  # the others must hear of it before it is raised here
        failure = BindError(str(e)) if type(e) is ValueError else e
    problem = f"{type(failure).__name__}: {failure}" if failure is not None else ""
    if failure is not None or made is None:
        meeting.tell("settings", problem)
        raise failure or AssertionError
    told = [(r, t) for r, t in enumerate(meeting.gather("settings", problem)) if t]
    if told:
        raise BindError(f"bind of `{collective.name}`: " + "; ".join(f"rank {r}: {t}" for r, t in told))
    like, dtype, s, world, trace = made
    text = _world_text(collective, world, dtype, s, trace) if trace is not None else ""
    meeting.agree(_fingerprint(collective, s, world, dtype, like.device, text))
    if trace is None:
        return Op(collective, world, rank, None, None, None, s, like.device, like.dtype)
    chosen = choose_transport(s.transport, like.device, meeting, bool(collective.axes))
    if s.transport == "auto":
        chosen, s = _as_measured(chosen, s, collective, pg, like, meeting)
    problem, op = "", None
    try:
        wiring = _wiring(pg, like.device, chosen, meeting)
        op = assemble(collective, world, rank, trace, s, like.device, like.dtype, wiring, chosen.note)
    except Exception as e:
        problem = f"{type(e).__name__}: {e}"
        log.debug("bind failed", exc_info=True)
    meeting.report(problem)
    assert op is not None
    op.join(pg)
    if chosen.name.startswith("nccl"):  # which wants captures to be uniform over ranks
        told = [(r, t) for r, t in enumerate(meeting.gather("graphs", op.graphs.why)) if t]
        op.graphs.why = op.graphs.why or (f"rank {told[0][0]}: {told[0][1]}" if told else "")
    log.info("%r: transport %s %s", op, chosen.name, chosen.note)
    return op


@dataclass(frozen=True)
class Chosen:
    """The transport that all ranks use; note: why it is not a faster one; hosts: where each rank runs, for symm and symm+torch."""

    name: str
    note: str = ""
    hosts: tuple[str, ...] = ()


def choose_transport(asked: str, device: torch.device, meeting: Meeting, mesh: bool = False) -> Chosen:
    """`auto` is symm where all ranks can map each other's memory; else, over a mesh, symm+torch where the ranks of each host can; else torch.

    Raises BindError on all ranks when what was asked for cannot be had.
    """
    if asked not in ("auto", "symm", "symm+torch") or device.type != "cuda":
        if asked.startswith("symm"):
            raise BindError(f"transport={asked!r} needs CUDA tensors, like is on {device}")
        return Chosen("torch" if asked == "auto" else asked)
    from .transports.symm import host_name, reachable, unavailable

    told = [
        json.loads(t) for t in meeting.gather("device", json.dumps([host_name(), device.index, unavailable(device)]))
    ]
    hosts = tuple(t[0] for t in told)
    problem = next((f"rank {r}: {t[2]}" for r, t in enumerate(told) if t[2]), "")
    if not problem and asked == "symm" and len(set(hosts)) > 1:
        problem = f"the ranks are on {len(set(hosts))} hosts"
    if not problem and asked == "symm+torch" and min(hosts.count(h) for h in hosts) == 1:
        problem = "a rank is alone on its host"
    places = [(t[0], t[1]) for t in told]
    if (
        not problem
        and len(set(places)) < len(places)
        and os.environ.get("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES") != "1"
    ):
        problem = "several ranks share a device"
    if not problem:
        near = [index for host, index in places if host == host_name()]
        reasons = meeting.gather("peer access", reachable(device, near))
        problem = next((f"rank {r}: {t}" for r, t in enumerate(reasons) if t), "")
    if not problem and len(set(hosts)) == 1:
        return Chosen("symm", "", hosts)
    together = min(hosts.count(h) for h in hosts) > 1
    if not problem and (asked == "symm+torch" or (asked == "auto" and mesh and together)):
        return Chosen("symm+torch", "", hosts)
    problem = problem or f"the ranks are on {len(set(hosts))} hosts"
    if asked != "auto":
        raise BindError(f"transport={asked!r} is not available: {problem}")
    return Chosen("torch", f"(not symm: {problem})")


def _as_measured(
    chosen: Chosen, s: Settings, collective: Collective, group: dist.ProcessGroup, like: torch.Tensor, meeting: Meeting
) -> tuple[Chosen, Settings]:
    """The transport and the slices that the calibration table finds best for this algorithm, or as they were where it knows of none."""
    hosts = meeting.gather("host", host_text())
    measured = agree_on_table(meeting, group, like.device, hosts)
    name = dtype_name(like.dtype)
    codecs = collective.program(name, s.compressors).codecs.values()
    table = measured.in_force
    if table is None or not codecs:
        return chosen, s
    elements = s.capacity * (len(hosts) if collective.kind == "all_gather" else 1)
    bits = max(bits_per_value(c) for c in codecs)

    def best(transports: set[str]) -> Verdict | None:
        item, names = like.element_size(), [collective.name]
        return table.decide(measured.place, collective.kind, elements, item, bits, names, transports, native=False)

    own = {"torch", "torch+collectives"}
    over_nccl = {"nccl", "nccl+collectives"}
    possible = own | over_nccl | {chosen.name} if like.device.type == "cuda" else own
    verdict = best(possible)
    if verdict is not None and verdict.best.transport in over_nccl:
        from .transports.nccl import unavailable

        if any(meeting.gather("nccl", unavailable())):
            verdict = best(possible - over_nccl)
    if verdict is None:
        return chosen, s
    way = verdict.best
    note = f"(as measured: {way})"
    if way.transport == chosen.name:
        chosen = replace(chosen, note=note)
    else:
        chosen = Chosen(way.transport, note)
    return chosen, s if s.depth is not None else replace(s, depth=way.slices)


@dataclass
class Wiring:
    """What an op's wires move through: `memory` where peers' memory is mapped (given how many counters each peer has at a level of a slice),
    `transport` to other ranks (it makes one, of a name for diagnostics and a number of slices). hosts: of each rank, where peers' memory is
    mapped on some only. arena gives local wire memory of so many bytes; turn orders the ops that share it. collectives: levels that are
    all-gathers are issued as such."""

    transport: Callable[[str, int], Transport] | None = None
    memory: Callable[[Plan, Layout, int], Mapped] | None = None
    arena: Callable[[int], torch.Tensor] | None = None
    turn: Turn | None = None
    hosts: tuple[str, ...] | None = None
    collectives: bool = False


def assemble(
    collective: Collective,
    world: World,
    rank: int,
    trace: Trace,
    s: Settings,
    device: torch.device,
    dtype: torch.dtype,
    wiring: Wiring,
    note: str = "",
) -> Op:
    """This rank's op: plan, memory and transport, compiled and prepared for its capacity. Communicates only as the wiring does."""
    name = dtype_name(dtype)
    what = f"`{collective.name}` on rank {rank}"
    backend = backend_for(collective, device, s.backend)
    calls: OneLaunchCalls | None = None
    if wiring.memory is not None:
        from ..codegen.triton_backend import TritonBackend
        from .transports.symm import SymmTransport

        plans = collective.mapped_plans(
            world, dtype=name, compressors=s.compressors, trace=trace, fuse=s.fuse, hosts=wiring.hosts
        )
        whole = cut(plans[0], _whole(plans[0], s.capacity))
        # Of one plan, as all ranks need the same number of slices.
        size = max(whole.input_count, whole.output_count) * dtype.itemsize
        best = tuned(plans[0], size, s.depth)
        read = max(read_by(p, cut(p, s.capacity).lengths, dtype.itemsize) for p in plans)
        one = in_one_launch(plans, s.one_launch, read, _beside_one_launch(s, wiring, backend, best.depth))
        if one:
            plans = [unshared(p) for p in plans]
        raw = raw_codec(name)
        layouts = [lay_out(p, raw, s.capacity, best.depth, s.min_bytes, s.arena_bytes) for p in plans]
        if one:
            layouts = [doubled(layout) for layout in layouts]
        plan = plans[rank]
        memory = wiring.memory(plan, layouts[rank], PROGRAMS if one else 1)
        reuses = any(p.credits is not None and (p.credits.awaits or p.credits.grants) for p in plans)
        inner = wiring.transport(what, best.depth) if wiring.transport is not None else None
        mapped = SymmTransport(memory, what, plan, best.depth, reuses, inner)
        if one:
            assert isinstance(backend, TritonBackend)
            longest = max(n for layout in layouts for n in layout.largest.values())
            calls = calls_of(backend, mapped, plans, rank, longest)
        transport: Transport = mapped
        arena = memory.arena
        arenas = memory.arenas
    else:
        assert wiring.transport is not None
        if s.one_launch:
            raise BindError("one_launch=True needs transport symm")
        plan = collective.plan(
            world,
            rank,
            dtype=name,
            compressors=s.compressors,
            trace=trace,
            fuse=s.fuse,
            collectives=wiring.collectives,
        )
        best = tuned(plan, 0, s.depth)
        transport, arena, layouts, arenas = wiring.transport(what, best.depth), None, [], {}
    executor = Executor(
        plan,
        backend,
        device,
        s.capacity,
        world.factor,
        s.seed,
        best.depth,
        (lambda _: arena) if arena is not None else wiring.arena,
        best.far_programs,
        s.min_bytes,
        s.arena_bytes,
        calls,
    )
    if arenas:
        executor.connect(arenas, {r: (plans[r], layouts[r]) for r in arenas})
    if plan.kind != "send_recv":
        executor.warm(_whole(plan, s.capacity))
    return Op(collective, world, rank, plan, executor, transport, s, device, dtype, note, wiring.turn)


def _beside_one_launch(s: Settings, wiring: Wiring, backend: Backend, depth: int) -> str:
    """What of an op's settings keeps its calls from being one launch each, or ""."""
    if wiring.turn is not None:
        return "the op shares its wire memory with others"
    if isinstance(backend, EagerBackend):
        return "its kernels are torch's"
    for name in ("min_bytes", "arena_bytes"):
        if getattr(s, name):
            return f"{name} is given"
    return f"it runs in {depth} slices" if depth > 1 else ""


def _whole(plan: Plan, capacity: int) -> int:
    """The largest count within the capacity that the collective takes."""
    if plan.kind in ("reduce_scatter", "all_to_all"):
        return capacity // plan.world * plan.world
    return capacity


def _wiring(group: dist.ProcessGroup, device: torch.device, chosen: Chosen, meeting: Meeting) -> Wiring:
    """Of an op with memory of its own."""
    name = chosen.name
    if name == "local":
        raise BindError("transport='local' is for group=LocalGroup(n)")
    if name.startswith("symm"):
        from .transports.symm import Mapped

        def memory(plan: Plan, layout: Layout, counters: int) -> Mapped:
            levels = max(plan.levels, 1) * counters
            made = Mapped(group, device, levels, layout.depth, meeting.timeout, chosen.hosts)
            made.reserve(layout.size)
            made.open(meeting)
            return made

        if name == "symm":
            return Wiring(memory=memory)
        return Wiring(lambda what, _: TorchTransport(group, device, what), memory, hosts=chosen.hosts)
    collectives = name.endswith("+collectives")
    if name.startswith("nccl"):
        if device.type != "cuda":
            raise BindError(f"transport={name!r} needs CUDA tensors, like is on {device}")
        from .transports.nccl import NcclTransport

        return Wiring(
            lambda what, depth: NcclTransport(group, device, what, meeting, depth, collectives),
            collectives=collectives,
        )
    return Wiring(lambda what, _: TorchTransport(group, device, what, collectives=collectives), collectives=collectives)
