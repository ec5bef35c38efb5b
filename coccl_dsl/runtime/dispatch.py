"""torch.ops.coccl.NAME: collectives as torch operators, called with a group's name. Generated modules register theirs here.

    y = torch.ops.coccl.ring_q4(x, group.group_name)

The first call of a kind (group, op, dtype, device, count rounded up to a power of two) binds, collectively: so all ranks call in one order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from .errors import CollectiveError

if TYPE_CHECKING:
    from ..pipeline import Collective

log = logging.getLogger("coccl_dsl")
NAMESPACE = "coccl"
SCHEMA = "(Tensor x, str group_name, str op='sum') -> Tensor"

_Kind = tuple[str, torch.dtype, torch.device, int]


@dataclass
class _Entry:
    """What an operator runs, and the ops bound so far. A bound op holds its group, so groups that were destroyed are looked for and dropped."""

    collective: Collective
    mesh: dict[str, int] | None
    root: int
    handle: Callable[..., torch.Tensor] | None = None
    bound: dict[dist.ProcessGroup, dict[_Kind, Any]] = field(default_factory=dict)


_lock = threading.RLock()
_entries: dict[str, _Entry] = {}
_kernels: WeakKeyDictionary[Collective, Mapping[str, Any]] = WeakKeyDictionary()


def register(
    collective: Collective,
    *,
    kernels: Mapping[str, Any] | None = None,
    mesh: dict[str, int] | None = None,
    root: int = 0,
) -> Callable[..., torch.Tensor]:
    """Register `torch.ops.coccl.NAME(Tensor x, str group_name, str op="sum") -> Tensor` and return it.

    kernels  Triton kernels of a generated module, by `kernel_key`
    mesh     axis name -> size, for collectives over a mesh
    root     group rank, for broadcast and reduce

    A name that is registered already keeps its operator, which runs the newer collective from then on; ops bound before are dropped where the
    two texts differ.
    """
    with _lock:
        _kernels[collective] = kernels or {}
        old = _entries.get(collective.name)
        entry = _Entry(collective, mesh, root)
        if old is not None:
            entry.handle = old.handle
            if _same(old, entry):
                entry.bound = old.bound
            else:
                log.warning("torch.ops.%s.%s now runs another text than before", NAMESPACE, collective.name)
        _entries[collective.name] = entry
        if entry.handle is None:
            entry.handle = _define(collective.name)
        return entry.handle


def kernels_of(collective: Collective) -> Mapping[str, Any]:
    """Kernels that came with the collective; those that are missing are generated."""
    return _kernels.get(collective, {})


def _same(a: _Entry, b: _Entry) -> bool:
    def what(e: _Entry) -> tuple[object, ...]:
        return e.collective.source.text, e.collective.compressors, e.mesh, e.root

    return what(a) == what(b)


def _define(name: str) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, group_name: str, op: str = "sum") -> torch.Tensor:
        return _call(name, x, group_name, op)

    def fake(x: torch.Tensor, group_name: str, op: str = "sum") -> torch.Tensor:
        return x.new_empty(_shape(name, x, _resolve(group_name).size()))

    made = torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=(), schema=SCHEMA)
    made.register_fake(fake)
    return getattr(getattr(torch.ops, NAMESPACE), name)


def _shape(name: str, x: torch.Tensor, world: int) -> tuple[int, ...]:
    """Of the result, as `Op.__call__` gives it."""
    if world == 1:
        return tuple(x.shape)
    match _entries[name].collective.kind:
        case "all_gather":
            return (world * x.shape[0], *x.shape[1:]) if x.dim() else (world,)
        case "reduce_scatter":
            even = x.dim() and x.shape[0] % world == 0
            return (x.shape[0] // world, *x.shape[1:]) if even else (x.numel() // world,)
    return tuple(x.shape)


def _resolve(group_name: str) -> dist.ProcessGroup:
    try:
        return dist.distributed_c10d._resolve_process_group(group_name)  # pyright: ignore
    except (RuntimeError, KeyError, ValueError) as e:
        raise ValueError(f"there is no process group named {group_name!r}; pass group.group_name") from e


def capacity_for(kind: str, count: int, world: int) -> int:
    """`count` rounded up to a power of two, and to what the collective takes."""
    power = 1 << max(0, count - 1).bit_length()
    return -(-power // world) * world if kind in ("reduce_scatter", "all_to_all") else power


def capturing(x: torch.Tensor) -> bool:
    return x.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def forget_destroyed(kept: dict[dist.ProcessGroup, Any]) -> None:
    """Drop what belongs to groups that are no more."""
    for group in [g for g in kept if g not in dist.distributed_c10d._world.pg_map]:
        del kept[group]


def _call(name: str, x: torch.Tensor, group_name: str, op: str) -> torch.Tensor:
    entry, group = _entries[name], _resolve(group_name)
    capacity = capacity_for(entry.collective.kind, x.numel(), group.size())
    kind = (op, x.dtype, x.device, capacity)
    bound = entry.bound.get(group, {}).get(kind)
    if bound is None:
        if capturing(x):
            raise CollectiveError(
                f"torch.ops.{NAMESPACE}.{name} has not been bound for this call, and cannot be under CUDA graph capture: before the capture, "
                f"call torch.ops.{NAMESPACE}.{name}(x, {group_name!r}, {op!r}) once on all ranks with {x.numel()} elements of {x.dtype}"
            )
        with _lock:
            forget_destroyed(entry.bound)
            options: dict[str, Any] = {"op": op, "capacity": capacity, "root": entry.root}
            if entry.mesh is not None:
                options["mesh"] = entry.mesh
            bound = entry.collective.bind(group, like=x, **options)
            entry.bound.setdefault(group, {})[kind] = bound
    y = bound(x)
    # An operator may not return its input, as a group of one does.
    return y.clone() if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and y.numel() else y
