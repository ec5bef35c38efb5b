"""Collectives as functions: pick a shipped algorithm, bind it on the first call of a kind, run it.

    y = coccl_dsl.all_reduce(x, compressor="int4")
    print(coccl_dsl.explain("all_reduce", x, compressor="int4"))

A kind is (collective, group, op, dtype, device, compressor, algorithm, root, count rounded up to a power of two). Its first call binds, which
is collective (for send and recv: of the two ends), so all ranks make first calls in one order. Under CUDA graph capture a first call raises.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist

from ..pipeline import Collective, load
from ..plan.model import CPU, GPU
from ..runtime.agreement import Meeting
from ..runtime.dispatch import capacity_for, capturing, forget_destroyed
from ..runtime.dtypes import dtype_name
from ..runtime.errors import BindError, CollectiveError
from ..runtime.transports.torch_p2p import group_timeout
from ..wire.codec import TYPES
from ..wire.layout import bits_per_value
from .choose import CANDIDATES, Choice, choose, node_runs

Compressors = str | dict[str, str]


@dataclass
class _Group:
    """What is known of a process group: (nodes, ranks a node), and the ops that are bound."""

    nodes: tuple[int, int] | None = None
    ops: dict[tuple[Any, ...], Any] = field(default_factory=dict)


_lock = threading.RLock()
_groups: dict[dist.ProcessGroup, _Group] = {}
_load = lru_cache(maxsize=None)(load)


def all_reduce(
    x: torch.Tensor,
    op: str = "sum",
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    mesh: dict[str, int] | None = None,
) -> Any:
    """The sum (op: sum, avg, premul(f)) of all ranks' x, in the same bits everywhere, as a new tensor; `out=x` is in place.

    x           float32, bfloat16 or float16, any shape; the same on all ranks
    compressor  a compressor for every level, or name in the text -> compressor; levels that the text ships raw stay raw unless named
    algorithm   auto, the name of a shipped algorithm, or a file
    group       None: all ranks
    async_op    True: a `Work`, whose wait() gives the result
    mesh        node=..., local=...: how the group's ranks lie on machines; else found out

    Raises BindError on all ranks where arguments differ or do not fit, TypeError and ValueError for x, CollectiveError when a peer fails.
    """
    return _run("all_reduce", x, group, _Asked(op, compressor, algorithm, mesh), out=out, async_op=async_op)


def reduce_scatter(
    x: torch.Tensor,
    op: str = "sum",
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    mesh: dict[str, int] | None = None,
) -> Any:
    """This rank's shard of the sum, cut along dimension 0 as torch's reduce_scatter_tensor does. Arguments as for `all_reduce`."""
    return _run("reduce_scatter", x, group, _Asked(op, compressor, algorithm, mesh), out=out, async_op=async_op)


def all_gather(
    x: torch.Tensor,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    mesh: dict[str, int] | None = None,
) -> Any:
    """All ranks' x along dimension 0, as torch's all_gather_into_tensor gives them, in the same bits everywhere."""
    return _run("all_gather", x, group, _Asked("sum", compressor, algorithm, mesh), out=out, async_op=async_op)


def all_to_all(
    x: torch.Tensor,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
    mesh: dict[str, int] | None = None,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
    capacity: int | None = None,
    min_bytes: int = 0,
) -> Any:
    """Part i of x goes to rank i; the result holds the parts that came, in rank order.

    input_splits, output_splits  elements of each part, to and from each rank; else even parts
    capacity   with splits: the most elements that any rank sends another, in this call and later ones; the same on all ranks
    min_bytes  parts that take fewer bytes in x's dtype go raw
    """
    if (input_splits is None) != (output_splits is None) or (input_splits is not None) != (capacity is not None):
        raise ValueError("all_to_all with splits takes input_splits, output_splits and capacity together")
    splits = {} if input_splits is None else {"input_splits": input_splits, "output_splits": output_splits}
    asked = _Asked("sum", compressor, algorithm, mesh, min_bytes=min_bytes, pair=capacity)
    return _run("all_to_all", x, group, asked, out=out, async_op=async_op, **splits)


def broadcast(
    x: torch.Tensor,
    root: int = 0,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> Any:
    """The root's x (as the others decompress it), in the same bits everywhere. root: a rank of the group."""
    return _run("broadcast", x, group, _Asked("sum", compressor, algorithm, None, root), out=out, async_op=async_op)


def reduce(
    x: torch.Tensor,
    root: int = 0,
    op: str = "sum",
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> Any:
    """On the root the sum of all ranks' x; what the others get is unspecified."""
    return _run("reduce", x, group, _Asked(op, compressor, algorithm, None, root), out=out, async_op=async_op)


def send(
    x: torch.Tensor,
    target: int,
    compressor: Compressors = "int8",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    tag: int = 0,
) -> Any:
    """Send x to rank `target` of the group, which calls `recv` with a tensor of the same size. Nobody else takes part."""
    return _run(
        "send_recv",
        x,
        group,
        _Asked("sum", compressor, "send_recv", None, ends=("target", target, tag)),
        async_op=async_op,
    )


def recv(
    x: torch.Tensor,
    source: int,
    compressor: Compressors = "int8",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    tag: int = 0,
) -> Any:
    """Receive into x, which is also the result, what rank `source` of the group sends with `send`."""
    return _run(
        "send_recv",
        x,
        group,
        _Asked("sum", compressor, "send_recv", None, ends=("source", source, tag)),
        async_op=async_op,
    )


def explain(
    collective: str,
    x: torch.Tensor,
    compressor: Compressors = "int8",
    algorithm: str = "auto",
    group: dist.ProcessGroup | None = None,
    *,
    op: str = "sum",
    root: int = 0,
    mesh: dict[str, int] | None = None,
) -> str:
    """Which algorithm a call would run, why, and, where it is bound, over what. The first call for a group is collective."""
    if collective not in CANDIDATES or collective == "send_recv":
        raise ValueError(f"{collective!r} is not one of {', '.join(k for k in CANDIDATES if k != 'send_recv')}")
    pg, asked = _group(group), _Asked(op, compressor, algorithm, mesh, root)
    if pg.size() == 1:
        return f"{collective}: a group of one; the result is the input times the op's factor"
    name, choice, capacity = _pick(collective, x, pg, asked)
    told = f"{collective}: {choice.text()}" if choice else f"{collective}: {name}, as asked for"
    bound = _groups[pg].ops.get(asked.key(collective, x, capacity)) if pg in _groups else None
    return told + "\n" + (bound.explain() if bound is not None else "not bound yet: the first call binds it")


@dataclass(frozen=True)
class _Asked:
    """What a call asks for. pair: capacity of a pair of an uneven all_to_all. ends: (source or target, peer, tag) of a send_recv."""

    op: str
    compressor: Compressors
    algorithm: str
    mesh: dict[str, int] | None
    root: int = 0
    min_bytes: int = 0
    pair: int | None = None
    ends: tuple[str, int, int] | None = None

    def key(self, kind: str, x: torch.Tensor, capacity: int) -> tuple[Any, ...]:
        def frozen(v: str | dict[str, Any] | None) -> Any:
            return tuple(sorted(v.items())) if isinstance(v, dict) else v

        rest = (self.op, self.algorithm, self.root, self.min_bytes, self.ends, frozen(self.mesh))
        return kind, frozen(self.compressor), x.dtype, x.device, capacity, *rest


def _group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    if not dist.is_initialized():
        raise BindError("torch.distributed is not initialised: call init_process_group first")
    pg = group if group is not None else dist.group.WORLD
    if pg is None or dist.get_rank(pg) < 0:
        raise BindError("this process is not a member of the group")
    return pg


def _run(kind: str, x: torch.Tensor, group: dist.ProcessGroup | None, asked: _Asked, **call: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x is {type(x).__name__}, a tensor is wanted")
    pg = _group(group)
    with _lock:
        capacity = _capacity(kind, x, pg, asked)
        kept = _groups.get(pg)
        op = kept.ops.get(asked.key(kind, x, capacity)) if kept else None
        if op is None:
            op = _first(kind, x, pg, asked)
    return op(x, **call)


def _capacity(kind: str, x: torch.Tensor, pg: dist.ProcessGroup, asked: _Asked) -> int:
    return asked.pair * pg.size() if asked.pair is not None else capacity_for(kind, x.numel(), pg.size())


def _first(kind: str, x: torch.Tensor, pg: dist.ProcessGroup, asked: _Asked) -> Any:
    """Bind the first call of a kind."""
    name = {"send_recv": "send" if asked.ends and asked.ends[0] == "target" else "recv"}.get(kind, kind)
    if capturing(x):
        raise CollectiveError(
            f"coccl_dsl.{name} has not been bound for this call, and cannot be under CUDA graph capture: before the capture, call coccl_dsl.{name} "
            f"once on all ranks with the same arguments and {x.numel()} elements of {x.dtype}"
        )
    forget_destroyed(_groups)
    algorithm, _, capacity = _pick(kind, x, pg, asked)
    collective = _load(algorithm)
    if collective.kind != kind:
        raise BindError(f"algorithm={algorithm!r} is {collective.kind}, not {kind}")
    options: dict[str, Any] = {
        "op": asked.op,
        "capacity": capacity,
        **_bound(collective, asked.compressor, dtype_name(x.dtype)),
    }
    if collective.axes:
        options["mesh"] = _mesh(collective, pg, x, asked)
    if kind in ("broadcast", "reduce"):
        options["root"] = asked.root
    if asked.min_bytes:
        options["min_bytes"] = asked.min_bytes
    if asked.ends is not None:
        options[asked.ends[0]], options["tag"] = asked.ends[1:]
    op = collective.bind(pg, like=x, **options)
    _groups.setdefault(pg, _Group()).ops[asked.key(kind, x, capacity)] = op
    return op


def _bound(collective: Collective, compressor: Compressors, dtype: str) -> dict[str, str]:
    """Compressor of the text -> what it is bound to."""
    shipped = collective.program(dtype).codecs
    if isinstance(compressor, dict):
        unknown = compressor.keys() - shipped.keys()
        if unknown:
            raise BindError(
                f"`{collective.name}` has no compressor {', '.join(sorted(unknown))}; it has {', '.join(sorted(shipped))}"
            )
        return dict(compressor)
    levels = [n for n, c in shipped.items() if not c.cast]
    return dict.fromkeys(levels if levels and compressor != "raw" else shipped, compressor)


def _pick(kind: str, x: torch.Tensor, pg: dist.ProcessGroup, asked: _Asked) -> tuple[str, Choice | None, int]:
    """The algorithm, why (None where it was named), and the capacity. All of it from what all ranks know."""
    capacity = _capacity(kind, x, pg, asked)
    if asked.algorithm != "auto" or pg.size() == 1:
        return (asked.algorithm if asked.algorithm != "auto" else CANDIDATES[kind][0].name), None, capacity
    if asked.pair is not None:  # uneven parts go straight to their ranks
        return "all_to_all_direct", None, capacity
    nodes, local = _nodes(pg, x.device, asked.mesh)
    dtype = dtype_name(x.dtype)
    ratio = max(
        bits_per_value(codec) / TYPES[dtype][0]
        for codec in _load(CANDIDATES[kind][0].name)
        .program(dtype, _flat_compressors(kind, asked.compressor, dtype))
        .codecs.values()
    )
    plain = capacity * x.element_size() * (pg.size() if kind == "all_gather" else 1)
    links = GPU if x.device.type == "cuda" else CPU
    choice = choose(kind, nodes, local, plain, ratio, links, asked.compressor == "raw")
    return choice.name, choice, capacity


def _flat_compressors(kind: str, compressor: Compressors, dtype: str) -> dict[str, str]:
    """The compressor that counts, on the first candidate's text: the one that is given, or the last named (between nodes)."""
    text = compressor if isinstance(compressor, str) else compressor[max(compressor)]
    return dict.fromkeys(_load(CANDIDATES[kind][0].name).program(dtype).codecs, text)


def _mesh(collective: Collective, pg: dist.ProcessGroup, x: torch.Tensor, asked: _Asked) -> dict[str, int]:
    if asked.mesh is not None:
        return asked.mesh
    return dict(zip(collective.axes, _nodes(pg, x.device, None), strict=True))


def _nodes(pg: dist.ProcessGroup, device: torch.device, mesh: dict[str, int] | None) -> tuple[int, int]:
    """(nodes, ranks a node): as given, or from where the ranks run, which the first call for a group finds out, collectively."""
    n = pg.size()
    if mesh is not None:
        sizes = tuple(mesh.values())
        if len(sizes) != 2 or sizes[0] * sizes[1] != n:
            raise BindError(f"mesh={mesh} is not node=..., local=... of {n} ranks")
        return sizes
    kept = _groups.setdefault(pg, _Group())
    if kept.nodes is None:
        # torchrun's nodes are nodes to us, wherever they run; NCCL_HOSTID says so to NCCL.
        from ..runtime.transports.symm import host_name

        own = f"{host_name()}/{os.environ.get('GROUP_RANK', '')}"
        hosts = Meeting(pg, group_timeout(pg, device), "finding the hosts of a group").gather("host", own)
        kept.nodes = node_runs(hosts) or (n, 1)
    return kept.nodes
