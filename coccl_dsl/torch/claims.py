"""Who owns a group: small wrappers around DDP, FSDP, tensor parallel, pipeline stages and DeviceMesh say so (facts/torch_integration.md, 7).

Constructors of these are called by all ranks of the group, in one order with its collectives, so a claim is known to all of them alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..policy import Rule
from ..runtime.dispatch import resolve
from . import roles
from .calls import op_text
from .ddp import DDPState, ddp_hook
from .p2p import mark
from .patches import Patches

if TYPE_CHECKING:
    from .groups import Groups


# What FSDP2 calls with PREMUL_SUM.
SCATTERING = (
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
)


_lives = count()  # of policies in force
_MEGATRON_MESSAGES = {
    "tensor_send_next": "forward",
    "tensor_recv_prev": "forward",
    "tensor_send_prev": "backward",
    "tensor_recv_next": "backward",
}


def install(patches: Patches, groups: Groups) -> None:
    """Wrap what is imported, and what will be."""
    own = _Claims(patches, groups)
    for name in SCATTERING if "reduce_scatter" in groups.policy.ops else ():
        patches.wrap(dist.ProcessGroup, name, own.premul)
    patches.wrap(dist.ProcessGroup, "_start_coalescing", own.coalescing_starts)
    patches.wrap(dist.ProcessGroup, "_end_coalescing", own.coalescing_ends)
    patches.wrap((dist.distributed_c10d, dist), "_coalescing_manager", own.coalescing_manager)
    patches.on_import("torch.distributed.device_mesh", own.device_mesh)
    patches.on_import("torch.nn.parallel.distributed", own.ddp)
    patches.on_import("torch.distributed.fsdp._fully_shard._fsdp_param_group", own.fsdp2)
    patches.on_import("torch.distributed.fsdp.fully_sharded_data_parallel", own.fsdp1)
    patches.on_import("torch.distributed.pipelining.stage", own.pipeline)
    patches.on_import("megatron.core.pipeline_parallel.p2p_communication", own.megatron)
    patches.on_import("torch.distributed.tensor.parallel.api", own.tensor_parallel)
    patches.on_import("torch.distributed.tensor.parallel", own.tensor_parallel)
    patches.on_import("torch.distributed.tensor._api", own.full_tensor)
    patches.on_import("torch.distributed._state_dict_utils", own.state_dicts)
    patches.on_import("torch.distributed.fsdp._state_dict_utils", own.fsdp1_state)


class _Claims:
    def __init__(self, patches: Patches, groups: Groups):
        self.patches, self.groups = patches, groups
        # Of FSDP2's groups of parameters, which are made in one order in every run: their states are saved under these. They begin anew with
        # each `enable`, so that a run that goes on in this process finds them, too.
        self.life, self.numbers = next(_lives), count(1)

    def premul(self, native):
        """Operators see that an op is PREMUL_SUM, and not its factor."""

        def call(pg: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            options = kwargs.get("opts", args[-1] if args else None)
            asked = getattr(options, "reduceOp", None)
            if asked is None or asked != dist.ReduceOp.PREMUL_SUM:
                return native(pg, *args, **kwargs)
            with roles.premultiplied(op_text(asked)):
                return native(pg, *args, **kwargs)

        return call

    def coalescing_starts(self, native):
        """From here to the end a backend holds messages back, so that an op of several steps cannot run."""

        def call(pg: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            made = native(pg, *args, **kwargs)
            roles.coalesce(1)
            return made

        return call

    def coalescing_ends(self, native):
        def call(pg: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            try:
                return native(pg, *args, **kwargs)
            finally:
                roles.coalesce(-1)

        return call

    def coalescing_manager(self, native):
        """torch's own does not come to the end of a region whose body raises."""

        @contextmanager
        def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with roles.coalescing(), native(*args, **kwargs) as manager:
                yield manager

        return call

    def device_mesh(self, module: ModuleType) -> None:
        """A dimension that spans the whole world reuses the default group, whose description says nothing."""

        def make(native):
            def call(sub_layout: Any, rank_map: Any, dim_name: str, *args: Any, **kwargs: Any) -> Any:
                name = native(sub_layout, rank_map, dim_name, *args, **kwargs)
                if name is not None:
                    pg = resolve(name)
                    self.groups.claimed(pg, roles.role_of_name(dim_name))
                return name

            return call

        self.patches.wrap(module.DeviceMesh, "_init_one_process_group", make)

    def ddp(self, module: ModuleType) -> None:
        def make(native):
            def call(model: Any, *args: Any, **kwargs: Any) -> None:
                mesh, group = kwargs.get("device_mesh"), kwargs.get("process_group")
                if group is None and len(args) > 6:
                    group = args[6]
                # Before: its constructor sends the parameters around already.
                self.groups.claimed(mesh.get_group() if mesh is not None and mesh.ndim == 1 else group, "dp")
                native(model, *args, **kwargs)
                self.groups.claimed(model.process_group, "dp")

            return call

        self.patches.wrap(module.DistributedDataParallel, "__init__", make)
        rule = self.groups.policy.rule_of("dp", "all_reduce")
        if rule is not None and rule.stateful:
            own = module.DistributedDataParallel
            self.patches.wrap(own, "register_comm_hook", self._hooked(rule))
            self.patches.wrap(own, "_register_builtin_comm_hook", self._built_in(rule))
            self.patches.wrap(own, "forward", self._with_hook(rule))

    def _state(self, model: Any, rule: Rule) -> DDPState:
        """What a compressor with a state becomes: the state of DDP's hook, which knows the parameters."""
        inner = rule.compressor_text.removeprefix("error_feedback(").removesuffix(")")
        state = DDPState(inner, rule.algorithm, model.process_group, error_feedback=True, after_step=rule.after_step)
        self.groups.hooked(state)
        return state

    def _hooked(self, rule: Rule):
        """torch's hooks that only average, in the gradients' or a narrower dtype, give way to ours; others are left alone."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as known

        averaging = (known.allreduce_hook, known.bf16_compress_hook, known.fp16_compress_hook)

        def make(native):
            def call(model: Any, state: Any, hook: Any) -> Any:
                if hook in averaging and (state or dist.group.WORLD) == model.process_group:
                    model._check_comm_hook(hook)
                    state, hook = self._state(model, rule), ddp_hook
                return native(model, state, hook)

            return call

        return make

    def _built_in(self, rule: Rule):
        """Both of torch's only average."""

        def make(native):
            def call(model: Any, comm_hook_type: Any) -> None:
                model.register_comm_hook(self._state(model, rule), ddp_hook)

            return call

        return make

    def _with_hook(self, rule: Rule):
        """A DDP without a hook gets ours at its first forward."""

        def make(native):
            def call(model: Any, *args: Any, **kwargs: Any) -> Any:
                if not model._comm_hooks:
                    model.register_comm_hook(self._state(model, rule), ddp_hook)
                return native(model, *args, **kwargs)

            return call

        return make

    def fsdp2(self, module: ModuleType) -> None:
        def make(native):
            def call(own: Any, *args: Any, **kwargs: Any) -> None:
                native(own, *args, **kwargs)
                self._own_groups(own)

            return call

        def within(native):
            def call(own: Any, *args: Any, **kwargs: Any) -> Any:
                if getattr(own, "coccl_dsl_number", (-1, 0))[0] != self.life:  # made before enable
                    self._own_groups(own)
                with roles.running("fsdp", own.coccl_dsl_number[1]):
                    return native(own, *args, **kwargs)

            return call

        self.patches.wrap(module.FSDPParamGroup, "__init__", make)
        for name in ("unshard", "post_backward"):
            self.patches.wrap(module.FSDPParamGroup, name, within)

    def _own_groups(self, own: Any) -> None:
        """own: an FSDPParamGroup."""
        own.coccl_dsl_number = (self.life, next(self.numbers))
        info = own.mesh_info
        shard, replicate = (getattr(info, f"{w}_process_group", None) for w in ("shard", "replicate"))
        if shard is not None:
            self.groups.claimed(shard, "fsdp")
            roles.says_when(shard, "fsdp")
        if replicate is not None:
            self.groups.claimed(replicate, "dp")

    def fsdp1(self, module: ModuleType) -> None:
        def make(native):
            def call(own: Any, *args: Any, **kwargs: Any) -> None:
                native(own, *args, **kwargs)
                self.groups.claimed(own.process_group, "fsdp")
                roles.says_when(own.process_group, "fsdp", always=False)
                inter = getattr(own, "_inter_node_pg", None)
                if inter is not None:
                    self.groups.claimed(inter, "dp")

            return call

        self.patches.wrap(module.FullyShardedDataParallel, "__init__", make)

    def pipeline(self, module: ModuleType) -> None:
        def make(native):
            def call(own: Any, *args: Any, **kwargs: Any) -> None:
                native(own, *args, **kwargs)
                self.groups.claimed(own.group, "pp")

            return call

        def marked(direction: str):
            def make(native):
                def call(own: Any, *args: Any, **kwargs: Any) -> Any:
                    ops = native(own, *args, **kwargs)
                    for op in ops:
                        mark(op.tensor, direction)
                    return ops

                return call

            return make

        stage = module._PipelineStageBase
        self.patches.wrap(stage, "__init__", make)
        for name, direction in (("fwd", "forward"), ("bwd", "backward")):
            for verb in ("send", "recv"):
                self.patches.wrap(stage, f"get_{name}_{verb}_ops", marked(direction))

    def megatron(self, module: ModuleType) -> None:
        """Megatron-core's messages: what goes to the next stage or comes from the one before is forward."""

        def make(native):
            def call(*args: Any, **kwargs: Any) -> Any:
                for name, direction in _MEGATRON_MESSAGES.items():
                    if kwargs.get(name) is not None:
                        mark(kwargs[name], direction)
                return native(*args, **kwargs)

            return call

        for name in ("_batched_p2p_ops", "_p2p_ops"):
            self.patches.wrap(module, name, make)

    def tensor_parallel(self, module: ModuleType) -> None:
        """Dimensions without names, too."""

        def make(native):
            def call(model: Any, device_mesh: Any = None, *args: Any, **kwargs: Any) -> Any:
                from torch.distributed.device_mesh import _mesh_resources

                mesh = device_mesh if device_mesh is not None else _mesh_resources.get_current_mesh()
                if mesh.ndim == 1 and getattr(mesh, "mesh_dim_names", None) is None:
                    self.groups.claimed(mesh.get_group(), "tp")
                return native(model, device_mesh, *args, **kwargs)

            return call

        self.patches.wrap(module, "parallelize_module", make)

    def full_tensor(self, module: ModuleType) -> None:
        """Whole tensors are for checkpoints and for people to look at."""
        self.patches.wrap(module.DTensor, "full_tensor", _exactly("DTensor.full_tensor"))

    def state_dicts(self, module: ModuleType) -> None:
        """What torch.distributed.checkpoint.state_dict gathers, sends around and hands out with."""
        for name in ("_iterate_state_dict", "_broadcast_tensors", "_distribute_tensors"):
            self.patches.wrap(module, name, _exactly("state_dict"))

    def fsdp1_state(self, module: ModuleType) -> None:
        def make(native):
            @contextmanager
            def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
                with roles.exact("FSDP1 state_dict"), native(*args, **kwargs) as given:
                    yield given

            return call

        self.patches.wrap(module, "_unshard_fsdp_state_params", make)


def _exactly(why: str):
    def make(native):
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # a graph has no context of a thread
                return native(*args, **kwargs)
            with roles.exact(why):
                return native(*args, **kwargs)

        return call

    return make
