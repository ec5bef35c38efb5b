"""torch.ops.coccl.NAME: collectives of a .coll text as torch operators, called with a group's name. Generated modules register theirs here.

    y = torch.ops.coccl.ring_q4(x, group.group_name)            a new tensor; differentiable
    torch.ops.coccl.ring_q4_(x, group.group_name)               in place (all_reduce, broadcast, reduce)
    torch.ops.coccl.shards_out(x, out, group.group_name)        into out (the other kinds)

A rank that has no result (of reduce and send_recv) gets zeros from the functional form.

The first call of a kind (group, op, dtype, device, count rounded up to a power of two) binds, collectively: so all ranks call in one order.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..pipeline import load, op_factor
from .dtypes import dtype_name
from .errors import BindError, CollectiveError
from .operators import NAMESPACE, Arguments, define, fresh, gathered, resolve, scattered

if TYPE_CHECKING:
    from ..diagnostics import Source
    from ..pipeline import Collective
    from ..wire.scope import Scope

log = logging.getLogger("coccl_dsl")

# Operators of `coccl_dsl.torch.library`.
RESERVED = frozenset(
    f"{name}{form}"
    for name in (
        "all_reduce reduce_scatter_tensor all_gather_into_tensor all_to_all_single broadcast reduce send recv".split()
    )
    for form in ("", "_", "_out")
)
_ADJOINTS = {
    "all_gather": "reduce_scatter_direct",
    "reduce_scatter": "all_gather_direct",
    "broadcast": "tree_reduce",
    "reduce": "tree_broadcast",
}

_Kind = tuple[str, torch.dtype, torch.device, int]


@dataclass
class _Entry:
    """What an operator runs, and the ops bound so far."""

    collective: Collective
    mesh: dict[str, int] | None
    root: int
    adjoint: Collective | None
    texts: tuple[frozenset[str], ...]
    handle: Callable[..., torch.Tensor] | None = None
    bound: dict[tuple[dist.ProcessGroup, str], dict[_Kind, Any]] = field(default_factory=dict)


_lock = threading.RLock()
_binding: WeakKeyDictionary[dist.ProcessGroup, threading.RLock] = WeakKeyDictionary()
_entries: dict[str, _Entry] = {}
_kernels: WeakKeyDictionary[Collective, Mapping[str, Any]] = WeakKeyDictionary()
_caches: list[dict[dist.ProcessGroup, Any]] = []


def register(
    collective: Collective,
    *,
    kernels: Mapping[str, Any] | None = None,
    mesh: dict[str, int] | None = None,
    root: int = 0,
    adjoint: Collective | None = None,
) -> Callable[..., torch.Tensor]:
    """Register `torch.ops.coccl.NAME(Tensor x, str group_name, str op="sum") -> Tensor` with its in-place form, and return it.

    kernels  Triton kernels of a generated module, by `kernel_key`
    mesh     axis name -> size, for collectives over a mesh
    root     group rank, for broadcast and reduce
    adjoint  what backward runs: a reduce_scatter for an all_gather, an all_gather for a reduce_scatter, a reduce for a broadcast, a broadcast
             for a reduce; a shipped one with 8-bit wires unless given. all_reduce and all_to_all run themselves; send_recv has no backward

    A name that is registered already keeps its operator, which runs the newer collective from then on; ops bound before are dropped where the
    two texts differ. Raises ValueError for a name that torch.ops.coccl has for another purpose, and for an adjoint of another kind.
    """
    name, kind = collective.name, collective.kind
    if name in RESERVED:
        raise ValueError(f"torch.ops.{NAMESPACE}.{name} is a collective of coccl_dsl's own; give yours another name")
    if adjoint is not None:
        wanted = load(_ADJOINTS[kind]).kind if kind in _ADJOINTS else None
        if adjoint.kind != wanted:
            raise ValueError(
                f"adjoint of `{name}` : {kind}: {wanted or 'it takes none'}, not `{adjoint.name}` : {adjoint.kind}"
            )
    with _lock:
        _kernels[collective] = kernels or {}
        old = _entries.get(name)
        if old is not None and old.collective.kind != kind:
            raise ValueError(f"torch.ops.{NAMESPACE}.{name} is {old.collective.kind} already, and cannot become {kind}")
        entry = _Entry(
            collective, mesh, root, adjoint, tuple(_texts(c) for c in (collective, adjoint) if c is not None)
        )
        if old is not None:
            entry.handle = old.handle
            if _same(old, entry):
                entry.bound = old.bound
            else:
                log.warning("torch.ops.%s.%s now runs another text than before", NAMESPACE, name)
        _entries[name] = entry
        if entry.handle is None:
            entry.handle = _define(name, kind)
        return entry.handle


def kernels_of(collective: Collective) -> Mapping[str, Any]:
    """Kernels that came with the collective; those that are missing are generated."""
    return _kernels.get(collective, {})


def _same(a: _Entry, b: _Entry) -> bool:
    def what(e: _Entry) -> tuple[object, ...]:
        return e.texts, e.collective.compressors, e.mesh, e.root, e.adjoint and e.adjoint.compressors

    return what(a) == what(b)


def _texts(collective: Collective) -> frozenset[str]:
    """Of the collective and of the compressors in it."""
    codecs = collective.program().codecs.values()
    named = {word for codec in codecs for word in re.findall(r"\w+", codec.name)}
    comps = {source.text for name, source in sources_of(collective.scope) if name in named}
    return frozenset({collective.source.text, *comps})


def sources_of(scope: Scope) -> Iterator[tuple[str, Source]]:
    """Compressors that a scope has found so far, with where they are from."""
    seen, waiting = {id(scope)}, [scope]
    while waiting:
        for name, (definition, inner) in waiting.pop().known.items():
            yield name, definition.span.source
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)


def _define(name: str, kind: str) -> Callable[..., torch.Tensor]:
    arguments = "str group_name, str op='sum'"

    def run(x: torch.Tensor, a: Arguments) -> torch.Tensor:
        y = fresh(_call(name, x, a), x)
        receiver = {"reduce": _entries[name].root, "send_recv": 1}.get(kind)
        return y if receiver in (None, resolve(a["group_name"]).rank()) else y.zero_()

    def into(x: torch.Tensor, a: Arguments) -> None:
        _call(name, x, a, a.get("out", x))

    def shape(x: torch.Tensor, a: Arguments) -> tuple[Any, ...]:
        if kind not in ("all_gather", "reduce_scatter"):
            return tuple(x.shape)
        return (gathered if kind == "all_gather" else scattered)(x, resolve(a["group_name"]).size())

    into_x = kind in ("all_reduce", "broadcast", "reduce")
    define(f"{name}_" if into_x else f"{name}_out", arguments, into, writes="x" if into_x else "out")
    backward = None if kind == "send_recv" else _adjoint(name, kind)
    return define(name, arguments, run, shape=shape, adjoint=backward)


def _adjoint(name: str, kind: str) -> Callable[[Arguments, torch.Tensor], torch.Tensor]:
    def backward(a: Arguments, g: torch.Tensor) -> torch.Tensor:
        handle = getattr(getattr(torch.ops, NAMESPACE), name)
        if kind in ("all_reduce", "all_to_all"):
            return handle(g, a["group_name"], a["op"])
        factor = op_factor(a["op"], resolve(a["group_name"]).size())
        g = g if factor is None else g * factor
        return getattr(getattr(torch.ops, NAMESPACE), f"{name}_backward")(g, a["group_name"])

    if kind in _ADJOINTS:

        def run(g: torch.Tensor, a: Arguments) -> torch.Tensor:
            y = fresh(_call(name, g, a, backward=True), g)
            return y.zero_() if kind == "broadcast" and resolve(a["group_name"]).rank() != _entries[name].root else y

        def shape(g: torch.Tensor, a: Arguments) -> tuple[Any, ...]:
            if kind in ("broadcast", "reduce"):
                return tuple(g.shape)
            return (scattered if kind == "all_gather" else gathered)(g, resolve(a["group_name"]).size())

        define(f"{name}_backward", "str group_name", run, shape=shape)
    return backward


def capacity_for(kind: str, count: int, world: int) -> int:
    """`count` rounded up to a power of two, and to what the collective takes."""
    power = 1 << max(0, count - 1).bit_length()
    return -(-power // world) * world if kind in ("reduce_scatter", "all_to_all") else power


def capturing(x: torch.Tensor) -> bool:
    return x.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def of_groups() -> dict[dist.ProcessGroup, Any]:
    """A cache by group. Ops hold their group, which a weak key would therefore keep: `forget_destroyed` lets go of it."""
    _caches.append(made := {})
    return made


def forget_destroyed() -> None:
    """Drop all that belongs to groups that are no more: after `destroy_process_group`, and, as groups may be aborted too, before a bind."""
    with _lock:
        caches: list[dict[Any, Any]] = [*_caches, *(e.bound for e in _entries.values())]
        gone = [(c, key) for c in caches for key in list(c) if destroyed(key[0] if isinstance(key, tuple) else key)]
        # Ops let go of memory that what was enqueued last may still use.
        if gone and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        for cache, key in gone:
            cache.pop(key, None)


def replace_everywhere(original: Any, made: Any) -> None:
    """Put `made` in the place of a function, also where it was imported by name before."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        for name in [n for n, v in list(names.items()) if v is original] if isinstance(names, dict) else ():
            setattr(module, name, made)


def _watch_destruction() -> None:
    native = dist.distributed_c10d.destroy_process_group
    if hasattr(native, "coccl_dsl"):
        return

    @wraps(native)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        try:
            native(*args, **kwargs)
        finally:
            forget_destroyed()

    destroy_process_group.coccl_dsl = True  # pyright: ignore
    replace_everywhere(native, destroy_process_group)


_watch_destruction()


def binding_lock(group: dist.ProcessGroup) -> threading.RLock:
    """Held while ops of the group are bound, which waits for the other ranks. One for all groups would let threads of several ranks that bind for
    two groups wait for each other."""
    with _lock:
        return _binding.setdefault(group, threading.RLock())


def destroyed(group: dist.ProcessGroup) -> bool:
    return group not in dist.distributed_c10d._world.pg_map


def refuse_states(collective: Collective, dtype: str, compressors: Mapping[str, Any], what: str) -> None:
    """Raises BindError, by name, for a compressor with a state: a functional call does not say whose state it is."""
    own = collective.program(dtype).codecs
    codecs = collective.program(dtype, {k: str(v) for k, v in compressors.items() if k in own}).codecs
    kept = next((name for name, codec in codecs.items() if codec.stateful), None)
    if kept is not None:
        raise BindError(
            f"{what}: compressor `{codecs[kept].name}` keeps a state from call to call, and this call does not say for which tensor. Bind an op of "
            f"its own, coccl_dsl.compile({collective.name!r}, ...).bind(like=x), or use coccl_dsl.torch.DDPState or apply_fsdp2, which keep one for "
            "each bucket or module"
        )


def _call(
    name: str, x: torch.Tensor, a: Arguments, out: torch.Tensor | None = None, *, backward: bool = False
) -> torch.Tensor:
    entry, group, op = _entries[name], resolve(a["group_name"]), a.get("op", "sum")
    collective = entry.collective
    if backward:
        collective = entry.adjoint = entry.adjoint or load(_ADJOINTS[collective.kind])
    capacity = capacity_for(collective.kind, x.numel(), group.size())
    kind = (op, x.dtype, x.device, capacity)
    with binding_lock(group):
        bound = entry.bound.get((group, collective.kind), {}).get(kind)
        if bound is None:
            if capturing(x):
                raise CollectiveError(
                    f"torch.ops.{NAMESPACE}.{name} has not been bound for this call, and cannot be under CUDA graph capture: before the capture, "
                    f"call torch.ops.{NAMESPACE}.{name}(x, {a['group_name']!r}, {op!r}) once on all ranks with {x.numel()} elements of {x.dtype}"
                )
            refuse_states(collective, dtype_name(x.dtype), {}, f"torch.ops.{NAMESPACE}.{name}")
            options: dict[str, Any] = {"op": op, "capacity": capacity, "root": entry.root}
            if entry.mesh is not None and collective.axes:
                options["mesh"] = entry.mesh
            bound = collective.bind(group, like=x, **options)
            forget_destroyed()
            with _lock:
                entry.bound.setdefault((group, collective.kind), {})[kind] = bound
    return bound(x, out=out)
