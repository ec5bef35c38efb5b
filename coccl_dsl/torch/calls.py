"""From what a call asks for to the op that runs it: pick a shipped algorithm, bind it on the first call of a kind, keep it.

A kind is (collective, group, op, dtype, device, compressor, algorithm, root, count rounded up to a power of two). Its first call binds, which
is collective (for send and recv: of the two ends), so all ranks make first calls in one order. Under CUDA graph capture a first call raises.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..diagnostics import CompileError
from ..pipeline import Collective
from ..plan.calibration import NATIVE
from ..plan.show import sent_bytes
from ..policy.read import rebound
from ..runtime.agreement import Meeting
from ..runtime.dispatch import binding_lock, capacity_for, capturing, forget_destroyed, of_groups, refuse_states
from ..runtime.dtypes import dtype_name
from ..runtime.errors import BindError, CollectiveError
from ..runtime.measured import Measured, agree_on_table, host_text
from ..runtime.op import Op
from ..runtime.transports.torch_p2p import group_timeout
from ..wire.codec import DTYPES, Codec
from . import debug, traffic
from .choose import CANDIDATES, Choice, node_runs
from .native import NativeOp
from .selection import loaded, quickest

Compressors = str | dict[str, str]
ReduceOp = str | dist.ReduceOp | dist.ReduceOp.RedOpType


@dataclass
class _Group:
    """What is known of a process group: (nodes, ranks a node), the calibration table, and the ops that are bound."""

    nodes: tuple[int, int] | None = None
    measured: Measured | None = None
    ops: dict[tuple[Any, ...], Any] = field(default_factory=dict)


_lock = threading.RLock()
_groups: dict[dist.ProcessGroup, _Group] = of_groups()
_sizes: WeakKeyDictionary[Op, dict[int, tuple[int, int]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Asked:
    """What a call asks for. pair: capacity of a pair of an uneven all_to_all. ends: (source or target, peer, tag) of a send_recv."""

    op: str = "sum"
    compressor: Compressors = "int8"
    algorithm: str = "auto"
    mesh: dict[str, int] | None = None
    root: int = 0
    min_bytes: int = 0
    pair: int | None = None
    ends: tuple[str, int, int] | None = None
    seed: int = 0

    def key(self, kind: str, x: torch.Tensor, capacity: int) -> tuple[Any, ...]:
        def frozen(v: str | dict[str, Any] | None) -> Any:
            return tuple(sorted(v.items())) if isinstance(v, dict) else v

        rest = (self.op, self.algorithm, self.root, self.min_bytes, self.ends, frozen(self.mesh), self.seed)
        return kind, frozen(self.compressor), x.dtype, x.device, capacity, *rest


# ---------------------------------------------------------------- arguments


def op_text(op: ReduceOp) -> str:
    """sum, avg or premul(f), of a text or a torch ReduceOp. Raises ValueError naming any other."""
    if isinstance(op, str):
        return op
    kind: Any = getattr(op, "op", op)
    if kind == dist.ReduceOp.SUM:
        return "sum"
    if kind == dist.ReduceOp.AVG:
        return "avg"
    if kind == dist.ReduceOp.PREMUL_SUM:
        state: Any = op.__getstate__()  # `op.factor` is newer than torch 2.11
        factor = state[1] if isinstance(state, tuple) else None
        if factor is None or (isinstance(factor, torch.Tensor) and factor.numel() != 1):
            raise ValueError("PREMUL_SUM takes one factor here: torch.distributed.ReduceOp.PREMUL_SUM(0.125)")
        return f"premul({float(factor)!r})"
    name = getattr(kind, "name", str(kind))
    raise ValueError(f"ReduceOp.{name} is not available: compressed collectives take SUM, AVG and PREMUL_SUM")


def member(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group, or all ranks. Raises BindError where this process is not in it."""
    if not dist.is_initialized():
        raise BindError("torch.distributed is not initialised: call init_process_group first")
    pg = group if group is not None else dist.group.WORLD
    if pg is None or dist.get_rank(pg) < 0:
        raise BindError("this process is not a member of the group")
    return pg


def packed(v: dict[str, Any] | str | None) -> str:
    """Compressors or a mesh as the one text that an operator's schema takes."""
    return v if isinstance(v, str) else json.dumps(v) if v else ""


def unpacked(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


def check(kind: str, compressor: Compressors, algorithm: str) -> None:
    """Raises BindError or CompileError for an algorithm of another kind, and for compressors that there are not or that take no dtype."""
    collective = loaded(CANDIDATES[kind][0].name if algorithm == "auto" else algorithm)
    if collective.kind != kind:
        raise BindError(f"algorithm={algorithm!r} is {collective.kind}, not {kind}")
    # Which text `auto` takes is not known yet, nor the names of its compressors.
    several = isinstance(compressor, dict) and algorithm == "auto"
    for one in compressor.values() if isinstance(compressor, dict) and several else [compressor]:
        problem = None
        for dtype in DTYPES:
            try:
                collective.program(dtype, _rebound(collective, one, dtype))
                break
            except CompileError as e:
                problem = problem or e
        else:
            raise problem or AssertionError


# ---------------------------------------------------------------- kinds


def bound_op(
    kind: str,
    x: torch.Tensor,
    group: dist.ProcessGroup | None,
    asked: Asked,
    splits: dict[str, Any] | None = None,
    native: bool = False,
) -> Any:
    """The op of this kind of call, which is bound on the first. splits: of the call, for debug mode alone. native: a `NativeOp` will do, where
    torch's own collective was measured to be quicker."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x is {type(x).__name__}, a tensor is wanted")
    pg = member(group)
    if debug.enabled() and kind != "send_recv" and pg.size() > 1:
        what = f"{kind} ({asked.op}, {asked.compressor}, {asked.algorithm}, root {asked.root})"
        debug.compare(pg, x, what, (splits["input_splits"], splits["output_splits"]) if splits else None)
    native = native and not splits
    with binding_lock(pg):
        op = found(kind, x, pg, asked, native)
        return op if op is not None else _first(kind, x, pg, asked, native)


def _capacity(kind: str, x: torch.Tensor, pg: dist.ProcessGroup, asked: Asked) -> int:
    return asked.pair * pg.size() if asked.pair is not None else capacity_for(kind, x.numel(), pg.size())


def _first(kind: str, x: torch.Tensor, pg: dist.ProcessGroup, asked: Asked, native: bool) -> Any:
    """Bind the first call of a kind."""
    name = {"send_recv": "send" if asked.ends and asked.ends[0] == "target" else "recv"}.get(kind, kind)
    if capturing(x):
        raise CollectiveError(
            f"coccl_dsl.{name} has not been bound for this call, and cannot be under CUDA graph capture: before the capture, call coccl_dsl.{name} "
            f"once on all ranks with the same arguments and {x.numel()} elements of {x.dtype}"
        )
    forget_destroyed()
    collective, options = binding(kind, x, pg, asked)
    refuse_states(collective, dtype_name(x.dtype), options, f"coccl_dsl.{name}")
    _, choice, capacity = pick(kind, x, pg, asked, native)
    if choice is not None and choice.name == NATIVE:
        op = NativeOp(kind, pg, asked.op, choice.text())
    else:
        op = collective.bind(pg, like=x, **options)
    _known(pg).ops[_key(kind, x, capacity, asked, native)] = op
    return op


def _key(kind: str, x: torch.Tensor, capacity: int, asked: Asked, native: bool) -> tuple[Any, ...]:
    # Deterministic algorithms take no choice from what was measured.
    return *asked.key(kind, x, capacity), native, torch.are_deterministic_algorithms_enabled()


def _known(pg: dist.ProcessGroup) -> _Group:
    with _lock:
        return _groups.setdefault(pg, _Group())


def binding(kind: str, x: torch.Tensor, pg: dist.ProcessGroup, asked: Asked) -> tuple[Collective, dict[str, Any]]:
    """The collective of this kind of call and the options to bind it with. Collective where hosts have to be found."""
    algorithm, _, capacity = pick(kind, x, pg, asked)
    collective = loaded(algorithm)
    if collective.kind != kind:
        raise BindError(f"algorithm={algorithm!r} is {collective.kind}, not {kind}")
    options: dict[str, Any] = {
        "op": asked.op,
        "capacity": capacity,
        **_rebound(collective, asked.compressor, dtype_name(x.dtype)),
    }
    if collective.axes:
        options["mesh"] = _mesh(collective, pg, x, asked)
    if kind in ("broadcast", "reduce"):
        options["root"] = asked.root
    if asked.min_bytes:
        options["min_bytes"] = asked.min_bytes
    if asked.seed:
        options["seed"] = asked.seed
    if asked.ends is not None:
        options[asked.ends[0]], options["tag"] = asked.ends[1:]
    return collective, options


def codecs_of(dtype: torch.dtype, collective: Collective, options: dict[str, Any]) -> dict[str, Codec]:
    """The compressors of a collective bound with `options`."""
    own = collective.program(dtype_name(dtype)).codecs.keys() & options.keys()
    return collective.program(dtype_name(dtype), {name: options[name] for name in own}).codecs


def tell(role: str, op: Op, count: int) -> None:
    """Tell the report of one call."""
    kind = op.collective.kind
    if op.plan is None:
        traffic.record_native(role, kind, "a group of one")
        return
    known = _sizes.setdefault(op, {})
    if count not in known:
        known[count] = sent_bytes(op.plan, count)
    wire, raw = known[count]
    names = ", ".join(sorted(set(op.settings.compressors.values())))
    traffic.record(role, kind, op.collective.name, names, raw, wire)


def found(kind: str, x: torch.Tensor, pg: dist.ProcessGroup, asked: Asked, native: bool = False) -> Any:
    """The op of this kind of call, or None where it is not bound yet."""
    kept = _groups.get(pg)
    return kept.ops.get(_key(kind, x, _capacity(kind, x, pg, asked), asked, native)) if kept else None


def _rebound(collective: Collective, compressor: Compressors, dtype: str) -> dict[str, str]:
    """Compressor of the text -> what it is bound to."""
    shipped = collective.program(dtype).codecs
    if isinstance(compressor, dict):
        unknown = compressor.keys() - shipped.keys()
        if unknown:
            raise BindError(
                f"`{collective.name}` has no compressor {', '.join(sorted(unknown))}; it has {', '.join(sorted(shipped))}"
            )
        return dict(compressor)
    return rebound(collective, compressor, dtype)


def pick(
    kind: str, x: torch.Tensor, pg: dist.ProcessGroup, asked: Asked, native: bool = False
) -> tuple[str, Choice | None, int]:
    """The algorithm, why (None where it was named), and the capacity. All of it from what all ranks know. native: it may be NATIVE."""
    capacity = _capacity(kind, x, pg, asked)
    if asked.mesh is not None:
        _check_mesh(asked.mesh, asked.algorithm, pg.size())
    if asked.algorithm != "auto" or pg.size() == 1:
        return (asked.algorithm if asked.algorithm != "auto" else CANDIDATES[kind][0].name), None, capacity
    if asked.pair is not None:  # uneven parts go straight to their ranks
        return "all_to_all_direct", None, capacity
    # The compressor that counts: the one that is given, or the last named that compresses (between nodes).
    given = asked.compressor
    named = [] if isinstance(given, str) else [given[k] for k in sorted(given) if given[k] != "raw"]
    text = given if isinstance(given, str) else (named or ["raw"])[-1]
    nodes = _nodes(pg, x.device, asked.mesh)
    measured = _met(pg, x.device).measured if asked.mesh is None and isinstance(given, str) else None
    choice = quickest(kind, dtype_name(x.dtype), capacity, pg.size(), nodes, x.device, text, measured, native)
    return choice.name, choice, capacity


def _mesh(collective: Collective, pg: dist.ProcessGroup, x: torch.Tensor, asked: Asked) -> dict[str, int]:
    if asked.mesh is not None:
        return asked.mesh
    return dict(zip(collective.axes, _nodes(pg, x.device, None), strict=True))


def _check_mesh(mesh: dict[str, int], algorithm: str, n: int) -> None:
    """Raises BindError for a mesh that is not the algorithm's, by the names of its axes, or not of n ranks."""
    axes = ("node", "local") if algorithm == "auto" else loaded(algorithm).axes
    if not axes:
        raise BindError(f"mesh={mesh}: `{algorithm}` runs on ranks, which have no mesh; leave mesh= away")
    whole = all(isinstance(size, int) and size > 0 for size in mesh.values())
    if set(mesh) != set(axes) or not whole or prod(mesh.values()) != n:
        raise BindError(f"mesh={mesh} is not {', '.join(f'{a}=...' for a in axes)} of {n} ranks")


def _nodes(pg: dist.ProcessGroup, device: torch.device, mesh: dict[str, int] | None) -> tuple[int, int]:
    """(nodes, ranks a node): as given and checked, or from where the ranks run, which the first call for a group finds out, collectively."""
    if mesh is not None:
        return mesh["node"], mesh["local"]
    kept = _met(pg, device)
    assert kept.nodes is not None
    return kept.nodes


def _met(pg: dist.ProcessGroup, device: torch.device) -> _Group:
    """What the group's ranks told each other. Collective where they have not yet."""
    kept = _known(pg)
    if kept.nodes is None:
        meeting = Meeting(pg, group_timeout(pg, device), "finding the hosts of a group")
        hosts = meeting.gather("host", host_text())
        kept.measured = agree_on_table(meeting, pg, device, hosts)
        kept.nodes = node_runs(hosts) or (pg.size(), 1)
    return kept
