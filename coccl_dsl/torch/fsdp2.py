"""FSDP2 (fully_shard) with compressed weights and gradients.

    state = coccl_dsl.torch.apply_fsdp2(model, FSDPPolicy(gradients="int4", weights="int8"))
    state = coccl_dsl.torch.apply_fsdp2(model, "policy.toml")

sets collectives of ours on every FSDPModule of `model`. Weights: "int8", or "weight_delta4", 4-bit differences to what every rank already holds.
Gradients: 8 or 4 bits, "error_feedback(int4)". All ranks get the same bits of a weight, so replicas stay equal; the sharded parameters themselves
are not touched. FSDP calls these on its own streams, so they overlap with compute as its own do.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ..policy import Policy, read_policy
from ..runtime.dispatch import capturing
from ..runtime.dtypes import NAMES, dtype_name
from ..runtime.errors import CollectiveError
from ..runtime.op import Op
from . import traffic
from .calls import Asked, Compressors, binding, bound_op, check, codecs_of, op_text, tell
from .saving import loaded, restart, saved
from .works import completed, issue

ROLE = "fsdp"


@dataclass(frozen=True)
class FSDPPolicy:
    """What is compressed, and how; None leaves torch's own collective.

    gradients  reduce-scatter: "int8", "int4", "error_feedback(int4)", ...; or name in the algorithm's text -> compressor
    weights    all-gather: "int8", "weight_delta4", ...
    replicas   the all-reduce between replicas of hybrid sharding (HSDP)
    algorithm  auto, a shipped algorithm or a file, of each of the three: {"gradients": "reduce_scatter_ring"}
    min_bytes  calls whose input is smaller, in bytes, run torch's own collective
    seed       of stochastic rounding

    What is large: error feedback keeps a float32 error for each element that a rank sends, nearly the module's unsharded gradient;
    weight_delta4 keeps the module's unsharded weights in bfloat16. `apply_fsdp2(...).memory()` tells.
    """

    gradients: Compressors | None = "int8"
    weights: Compressors | None = None
    replicas: Compressors | None = None
    algorithm: dict[str, str] = field(default_factory=dict)
    min_bytes: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = set(self.algorithm) - set(KINDS)
        if unknown:
            raise ValueError(f"algorithm has {', '.join(sorted(unknown))}; it is for {', '.join(KINDS)}")
        if self.min_bytes < 0:
            raise ValueError(f"min_bytes={self.min_bytes} is negative")
        for what, kind in KINDS.items():
            compressor = getattr(self, what)
            if compressor is not None:
                check(kind, compressor, self.algorithm.get(what, "auto"))


KINDS = {"gradients": "reduce_scatter", "weights": "all_gather", "replicas": "all_reduce"}
# What a policy's rules call them: hybrid sharding's replicas are data parallelism.
_RULES = {"gradients": "fsdp.reduce_scatter", "weights": "fsdp.all_gather", "replicas": "dp.all_reduce"}


@dataclass(frozen=True)
class _Wanted:
    """How one kind of call is compressed. dtypes: others run torch's own collective; rule: its number in a policy, or 0."""

    compressor: Compressors
    algorithm: str = "auto"
    min_bytes: int = 0
    max_bytes: int | None = None
    dtypes: tuple[str, ...] = tuple(NAMES.values())
    seed: int = 0
    rule: int = 0


def _wanted(policy: FSDPPolicy | Policy) -> dict[str, _Wanted]:
    """By kind; a kind that is not there is torch's own."""
    if isinstance(policy, Policy):
        return _of_rules(policy)
    made = {}
    for what in KINDS:
        compressor = getattr(policy, what)
        if compressor is not None:
            algorithm = policy.algorithm.get(what, "auto")
            made[what] = _Wanted(compressor, algorithm, policy.min_bytes, seed=policy.seed)
    return made


def _of_rules(policy: Policy) -> dict[str, _Wanted]:
    """Of the first rule for each kind. Raises ValueError for what only `enable` can do, and where there is no rule."""
    if policy.problem:
        raise ValueError(f"the policy cannot be read:\n{policy.problem}")
    for name in ("log", "debug", "debug_every"):
        if getattr(policy, name):
            raise ValueError(f"the policy has {name}, which apply_fsdp2 does not do: use coccl_dsl.enable(policy)")
    made: dict[str, _Wanted] = {}
    for what, selector in _RULES.items():
        role, op = selector.split(".")
        rule = policy.rule_of(role, op)
        if rule is None or rule.native:
            continue
        odd = {
            "group": rule.group is not None,
            "after_step": rule.after_step > 0,
            "transport": rule.transport != "auto",
        }
        if any(odd.values()):
            names = " and ".join(name for name, there in odd.items() if there)
            raise ValueError(
                f"rule {rule.number}, which is for {selector}, has {names}, which apply_fsdp2 does not do: use coccl_dsl.enable(policy)"
            )
        compressor = rule.compressor if isinstance(rule.compressor, str) else dict(rule.compressor)
        check(KINDS[what], compressor, rule.algorithm)
        made[what] = _Wanted(compressor, rule.algorithm, rule.min_bytes, rule.max_bytes, rule.dtypes, rule=rule.number)
    if not made:
        raise ValueError(f"no rule of the policy compresses {', '.join(_RULES.values())}")
    return made


class _Calls:
    """One module's calls of one kind. A compressor with a state, or one that draws call numbers, has ops of its own; the others share."""

    def __init__(self, module: str, what: str, wanted: _Wanted):
        self.module, self.what, self.kind, self.wanted = module, what, KINDS[what], wanted
        self.ops: dict[str, Op] = {}
        self.waiting: dict[str, dict[str, torch.Tensor]] = {}
        self._own: dict[torch.dtype, bool] = {}
        self._count: int | None = None

    def native(self, x: torch.Tensor) -> str:
        """Why torch's own collective is to run, or ""."""
        if x.dtype not in NAMES and (x.element_size() == 1 or not x.dtype.is_floating_point):
            return f"{str(x.dtype).removeprefix('torch.')} buffer"
        of_rule = f" of rule {self.wanted.rule}" if self.wanted.rule else ""
        if x.dtype in NAMES and NAMES[x.dtype] not in self.wanted.dtypes:
            return f"rule {self.wanted.rule} is not for {NAMES[x.dtype]}"
        if x.nbytes < self.wanted.min_bytes:
            return f"below min_bytes{of_rule}"
        if self.wanted.max_bytes is not None and x.nbytes > self.wanted.max_bytes:
            return f"above max_bytes{of_rule}"
        return ""

    def run(self, x: torch.Tensor, out: torch.Tensor, group: dist.ProcessGroup, op: str) -> None:
        dtype_name(x.dtype)
        bound = self._op(x, group, op)
        bound(x, out=out)
        tell(ROLE, bound, x.numel())

    def _op(self, x: torch.Tensor, group: dist.ProcessGroup, op: str) -> Op:
        asked = Asked(op, self.wanted.compressor, self.wanted.algorithm, seed=self.wanted.seed)
        if x.dtype not in self._own:
            codecs = codecs_of(x.dtype, *binding(self.kind, x, group, asked)).values()
            self._own[x.dtype] = any(c.stateful or c.stochastic for c in codecs)
        if not self._own[x.dtype]:
            return bound_op(self.kind, x, group, asked)
        key = f"{op} {dtype_name(x.dtype)}[{x.numel()}] on {group.size()} ranks"
        if key not in self.ops:
            self.ops[key] = self._bind(key, x, group, asked)
        return self.ops[key]

    def _bind(self, key: str, x: torch.Tensor, group: dist.ProcessGroup, asked: Asked) -> Op:
        if capturing(x):
            raise CollectiveError(
                f"{self.what} of `{self.module}` were not reduced before the CUDA graph capture: run one step before it"
            )
        collective, options = binding(self.kind, x, group, asked)
        made = collective.bind(group, like=x, **options | {"capacity": x.numel()})
        if made.states("error"):
            if self._count not in (None, x.numel()):
                raise CollectiveError(
                    f"gradients of `{self.module}` with error feedback: this backward reduces {x.numel()} elements, an earlier one {self._count}, as "
                    "some parameters had no gradient. Call set_reduce_scatter_unused_params(True) on the model (torch >= 2.13), or use a compressor without a state"
                )
            self._count = x.numel()
        if self.waiting and not self.ops and key not in self.waiting:
            raise ValueError(
                f"the state that was loaded for {self.what} of `{self.module}` is of {', '.join(self.waiting)}, not of {key}: call reset()"
            )
        if key in self.waiting:
            made.load_state_dict(self.waiting.pop(key))
        return made


class _Comm:
    """FSDP's protocol: memory from torch's own allocator."""

    def __init__(self, calls: _Calls):
        self.calls = calls

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Comm):
    """Called on FSDP's all-gather stream; `input_tensor` is this rank's part of `output_tensor`."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        reason = self.calls.native(input_tensor)
        if reason:
            traffic.record_native(ROLE, "all_gather", reason)
            return _native_gather(output_tensor, input_tensor, group=group, async_op=async_op)

        def run() -> None:
            self.calls.run(input_tensor, output_tensor, group, "sum")

        if async_op:
            return issue(group, input_tensor.device, True, run, [output_tensor], (input_tensor, output_tensor))
        return run()


class _ReduceScatter(_Comm):
    """Called on FSDP's reduce-scatter stream, which it orders its own work after: what is returned is not waited for."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        reason = self.calls.native(input_tensor)
        if reason:
            traffic.record_native(ROLE, "reduce_scatter", reason)
            return _native_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
        self.calls.run(input_tensor, output_tensor, group, op_text(op))
        return completed([output_tensor], output_tensor.device) if async_op else None


class _Replicas:
    """The group of replicas as FSDP uses it in torch.distributed.all_reduce, which its custom collectives leave out; else the group itself."""

    def __init__(self, calls: _Calls, group: dist.ProcessGroup):
        self.calls, self.group = calls, group

    def __getattr__(self, name: str) -> Any:
        if name == "group":  # not there yet, in a copy that is being made
            raise AttributeError(name)
        return getattr(self.group, name)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        (x,) = tensors
        reason = self.calls.native(x)
        if reason:
            traffic.record_native(ROLE, "all_reduce", reason)
            return self.group.allreduce(tensors, options)
        self.calls.run(x, x, self.group, op_text(options.reduceOp))
        return completed([x], x.device) if options.asyncOp else None


# torch 2.13 renames these, and warns of the old names.
_native_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_native_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class FSDPState:
    """What `apply_fsdp2` has set: states of compressors by module, to be saved with the model.

    `state_dict()` holds this rank's part under its rank's name, for torch.save and torch.distributed.checkpoint alike.
    """

    def __init__(self, calls: dict[str, _Calls]):
        self._calls = calls
        _states.add(self)

    def memory(self) -> int:
        """Bytes of the states."""
        return sum(t.nbytes for c in self._calls.values() for op in c.ops.values() for t in op.states())

    def reset(self, module: str = "") -> None:
        """Forget the states, of one module or of all. Call it on all ranks, after new weights were loaded for one."""
        for calls in self._calls.values():
            if module in ("", calls.module):
                calls.waiting.clear()
                for op in calls.ops.values():
                    op.reset()
        if module and all(c.module != module for c in self._calls.values()):
            raise ValueError(
                f"`{module}` is not one of the modules: {', '.join(sorted({c.module for c in self._calls.values()}))}"
            )

    def state_dict(self) -> dict[str, bytes]:
        """This rank's part, under its rank's name."""
        kept = {
            name: {key: op.state_dict() for key, op in c.ops.items()} | c.waiting for name, c in self._calls.items()
        }
        return {f"rank{dist.get_rank()}": saved({"world": dist.get_world_size(), "calls": kept})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` gave, before or after the first step. Call it on all ranks. Raises ValueError where it is of other ranks or
        another model."""
        name = f"rank{dist.get_rank()}"
        if name not in state:
            raise ValueError(f"the saved state has no part {name!r}; it has {', '.join(sorted(state)) or 'none'}")
        told = loaded(state[name])
        if told["world"] != dist.get_world_size():
            raise ValueError(
                f"the state was saved by {told['world']} ranks and cannot be loaded by {dist.get_world_size()}: call reset()"
            )
        if told["calls"].keys() != self._calls.keys():
            raise ValueError(
                f"the state is another model's: {', '.join(sorted(told['calls'].keys() ^ self._calls.keys()))} differ"
            )
        for calls_name, kept in told["calls"].items():
            calls = self._calls[calls_name]
            for key, op in calls.ops.items():
                if key in kept:
                    op.load_state_dict(kept.pop(key))
                else:
                    restart(op)
            calls.waiting = kept


def apply_fsdp2(model: nn.Module, policy: FSDPPolicy | Policy | str | Path | None = None) -> FSDPState:
    """Set compressed collectives on every FSDPModule of `model` (after fully_shard; again to change them), and return their state.

    policy  an FSDPPolicy; or what `enable` takes, a policy or its file: its rules for fsdp.reduce_scatter and fsdp.all_gather, and for hybrid
            sharding's dp.all_reduce. Rules for anything else are not looked at, arena_mib neither

    Raises CompileError for a file with mistakes, with line and column; ValueError for a policy that has none of these rules, or one with what only
    `enable` does (group, after_step, transport; log, debug, debug_every); ValueError for a model without FSDPModules, and for one of them that has several groups of parameters or collectives of its own
    (set_symm_mem_for_comm, set_allocate_memory_from_process_group_for_comm, set_custom_all_gather).
    """
    if isinstance(policy, str | Path):
        policy = read_policy(policy)
    policy = FSDPPolicy() if policy is None else policy
    if not isinstance(policy, FSDPPolicy | Policy):
        raise TypeError(
            f"policy is {type(policy).__name__}: an FSDPPolicy, a coccl_dsl.policy.Policy or the path of its file is wanted"
        )
    wanted = _wanted(policy)
    modules = [(name or "model", m) for name, m in model.named_modules() if isinstance(m, FSDPModule)]
    if not modules:
        raise ValueError("the model has no FSDPModule: call fully_shard on its parts first")
    groups = {name: found for name, m in modules if (found := _group_of(name, m)) is not None}
    made: dict[str, _Calls] = {}
    for name, module in modules:
        if name not in groups:
            continue
        for what, how in wanted.items():
            made[f"{name}.{what}"] = _Calls(name, what, how)
        _set(module, groups[name], made, name)
    return FSDPState(made)


def _set(module: FSDPModule, group: Any, made: dict[str, _Calls], name: str) -> None:
    weights, gradients, replicas = (made.get(f"{name}.{what}") for what in ("weights", "gradients", "replicas"))
    gather: Any = _AllGather(weights) if weights else _default("AllGather")
    scatter: Any = _ReduceScatter(gradients) if gradients else _default("ReduceScatter")
    module.set_custom_all_gather(gather)
    module.set_custom_reduce_scatter(scatter)
    mesh = group.mesh_info
    own = getattr(mesh, "replicate_process_group", None)
    if own is None:
        return
    native = own.group if isinstance(own, _Replicas) else own
    if replicas is not None or native is not own:
        group.mesh_info = copy.copy(mesh)
        group.mesh_info.replicate_process_group = native if replicas is None else _Replicas(replicas, native)


def _default(name: str) -> Any:
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    return getattr(_fsdp_collectives, f"Default{name}")()


def _group_of(name: str, module: FSDPModule) -> Any:
    """The module's one group of parameters, or None where it has none."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # torch 2.11
        groups = [g for g in [state._fsdp_param_group] if g is not None]
    if len(groups) > 1:
        raise ValueError(
            f"`{name}` has {len(groups)} groups of parameters (shard_placement_fn), and FSDP takes custom collectives for one only"
        )
    for group in groups:
        for comm in (group._all_gather_comm, group._reduce_scatter_comm):
            if not isinstance(comm, _Comm) and not type(comm).__name__.startswith("Default"):
                raise ValueError(
                    f"`{name}` has {type(comm).__name__} already: it can have that or a compressed collective, not both"
                )
    return groups[0] if groups else None


_states: WeakSet[FSDPState] = WeakSet()


def _memory() -> list[traffic.Memory]:
    return [traffic.Memory("compressors of FSDP2", held) for s in _states if (held := s.memory())]


traffic.hold(_memory)
