"""Which parallel dimension a process group serves, with no change to training code (facts/torch_integration.md, section 7).

Best first: who runs the collective (FSDP2 says so while it does), who claimed the group (DDP, FSDP, tensor parallel, pipeline stages, the
dimensions of a DeviceMesh), then the group's description. All of these are the same on all ranks of the group, for each of its calls.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

# Likeliest roles of an op's group where it has several: a whole-world group may serve DDP, FSDP and a pipeline at once.
_LIKELY = {
    "all_reduce": ("dp", "tp"),
    "reduce_scatter": ("fsdp", "tp", "dp", "cp"),
    "all_gather": ("fsdp", "tp", "dp", "cp"),
    "all_to_all": ("ep", "cp", "tp"),
    "broadcast": ("dp", "fsdp", "tp"),
    "reduce": ("dp", "tp"),
    "send": ("pp", "cp"),
}
# Dimensions of a mesh: torch's tutorials, torchtitan (b5bcd76) and its older flattened ones.
_MESH = {
    "dp": "dp|ddp|data|batch|replicate|dp_replicate|data_parallel",
    "fsdp": "fsdp|efsdp|shard|dp_shard|dp_shard_cp|dp_shard_mod_ep|dp_shard_in_ep|zero|fsdp_reduce_scatter",
    "tp": "tp|tensor|tensor_parallel|etp|sp",
    "pp": "pp|pipe|pipeline|stage|pipeline_parallel",
    "ep": "ep|expert|expert_parallel",
    "cp": "cp|context|context_parallel|ulysses|ring",
}
# Megatron-core (d98e8a6). What mixes dimensions (MODEL_PARALLEL_GROUP, EMBEDDING_GROUP, ..) and the _GLOO twins have no role.
_MEGATRON = {
    "dp": r"(INTRA_PARTIAL_|EXPERT_|INTRA_PARTIAL_EXPERT_)?DATA_PARALLEL_GROUP(_WITH_CP)?(_AG)?|INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
    "tp": r"TENSOR_MODEL_PARALLEL_GROUP|EXPERT_TENSOR_PARALLEL_GROUP",
    "pp": r"PIPELINE_MODEL_PARALLEL_GROUP",
    "ep": r"EXPERT_MODEL_PARALLEL_GROUP",
    "cp": r"CONTEXT_PARALLEL_GROUP|HIERARCHICAL_CONTEXT_PARALLEL_GROUP(S|_L\d+)?",
}
_BY_DESC = [(re.compile(rf"(mesh_)?({names})|{_MEGATRON.get(role, names)}"), role) for role, names in _MESH.items()]

_claims: WeakKeyDictionary[dist.ProcessGroup, dict[str, None]] = WeakKeyDictionary()
# Groups whose FSDP2 says when it runs: what else runs on them is not FSDP's, whatever their name.
_says_when: WeakKeyDictionary[dist.ProcessGroup, str] = WeakKeyDictionary()


class _Running(threading.local):
    """What this thread is doing. Defaults of a class are found sooner than getattr finds that there is nothing."""

    now: tuple[str, Any] | None = None
    exact = ""
    depth = 0
    premul: str | None = None


_running = _Running()


def role_of_name(desc: str) -> str | None:
    """Role of a group by its description, if that says one."""
    return next((role for pattern, role in _BY_DESC if pattern.fullmatch(desc)), None)


def claim(pg: dist.ProcessGroup | None, role: str | None) -> bool:
    """Say that a group (None: the world) serves a role. True where that is new."""
    pg = pg if pg is not None else dist.group.WORLD
    if pg is None or role is None or not isinstance(pg, dist.ProcessGroup):
        return False
    held = _claims.setdefault(pg, {})
    new = role not in held
    held[role] = None
    return new


def says_when(pg: dist.ProcessGroup, role: str, always: bool = True) -> None:
    """The role's calls on this group are all made within `running`; always=False: not all of them, whoever says so."""
    if _says_when.get(pg) != "":
        _says_when[pg] = role if always else ""


def roles_of(pg: dist.ProcessGroup, op: str) -> tuple[str, ...]:
    """What the group may be for in a call of `op`, likeliest first; empty where nothing says."""
    now = current()
    held = all_roles(pg)
    if now is not None and now[0] in held:
        return (now[0],)
    held = tuple(r for r in held if r != _says_when.get(pg))
    likely = tuple(r for r in _LIKELY[op] if r in held)
    return likely or held


def all_roles(pg: dist.ProcessGroup) -> tuple[str, ...]:
    """Every role that a group has so far."""
    named = role_of_name(pg.group_desc)
    return tuple({**_claims.get(pg, {}), **({named: None} if named else {})})


@contextmanager
def running(role: str, owner: Any) -> Iterator[None]:
    """While it lasts, this thread's collectives on groups with this role are for it. owner: whose parameters they are for."""
    before = current()
    _running.now = (role, owner)
    try:
        yield
    finally:
        _running.now = before


def current() -> tuple[str, Any] | None:
    """(role, owner) of the innermost `running` of this thread."""
    return _running.now


@contextmanager
def exact(why: str) -> Iterator[None]:
    """While it lasts, this thread's collectives go native."""
    before = _running.exact
    _running.exact = why
    try:
        yield
    finally:
        _running.exact = before


def why_exact() -> str:
    """What asks this thread's collectives to go native, or ""."""
    return _running.exact or ("inside a coalescing region" if _running.depth else "")


def coalesce(change: int) -> None:
    """This thread enters (1) or leaves (-1) a region in which the backend holds messages back."""
    _running.depth = max(0, _running.depth + change)


@contextmanager
def coalescing() -> Iterator[None]:
    """What regions it enters, this thread has left again afterwards: one that raises is never left by itself."""
    before = _running.depth
    try:
        yield
    finally:
        _running.depth = before


@contextmanager
def premultiplied(op: str) -> Iterator[None]:
    """While it lasts, PREMUL_SUM in this thread is `premul(factor)`."""
    before = _running.premul
    _running.premul = op
    try:
        yield
    finally:
        _running.premul = before


def premul() -> str | None:
    """What PREMUL_SUM is, where a Python caller said it."""
    return _running.premul
