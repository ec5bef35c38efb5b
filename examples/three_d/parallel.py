"""A stage of the model on a mesh pp x dp x tp: FSDP2 or DDP, the 1F1B schedule, gradient clipping, and whether replicas are equal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PretrainedConfig

from .models import Stage, materialize, split, whole

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def layers_of(layers: int, stage: int, stages: int) -> range:
    """The blocks of one stage, as even as can be."""
    return range(layers * stage // stages, layers * (stage + 1) // stages)


def build(
    config: PretrainedConfig,
    mesh: DeviceMesh,
    device: torch.device,
    data: str,
    dtype: str,
    weights: str,
    reduce: str,
    bucket_mb: int,
    seed: int,
) -> nn.Module:
    """This rank's stage with random weights, sharded by FSDP2 (data = "fsdp") or replicated by DDP ("ddp"), part by part, so that no rank ever
    holds more than one part whole under FSDP2. dtype: of the computation; weights: of the parameters; reduce: of gradients on their way."""
    pp, dp, tp = (mesh[name] for name in ("pp", "dp", "tp"))
    stage = Stage(config, layers_of(config.num_hidden_layers, pp.get_local_rank(), pp.size()))
    mixed = MixedPrecisionPolicy(param_dtype=DTYPES[dtype], reduce_dtype=DTYPES[reduce])
    # A pipeline runs forward and backward in turns: gathering weights for each would send them once a microbatch.
    keep = pp.size() > 1
    for name, part in stage.parts():
        materialize(part.to(DTYPES[weights]), name, config, tp.size(), device, seed)
        if name.startswith("blocks."):
            if tp.size() > 1:
                split(part, tp)
            if data == "fsdp":
                if tp.size() > 1:
                    fully_shard(whole(part), mesh=dp, mp_policy=mixed, reshard_after_forward=not keep)
                fully_shard(part, mesh=dp, mp_policy=mixed, reshard_after_forward=not keep)
    if stage.rotary is not None:
        stage.rotary.to(device)
    if data == "fsdp":
        fully_shard(stage, mesh=dp, mp_policy=mixed, reshard_after_forward=False)
        return stage
    model = DistributedDataParallel(
        stage, process_group=dp.get_group(), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
    )
    if reduce == "bf16":
        model.register_comm_hook(dp.get_group(), bf16_compress_hook)
    return model


class Steps:
    """Forward and backward of a batch: through a 1F1B schedule where there are several stages, else at once."""

    def __init__(
        self,
        model: nn.Module,
        config: PretrainedConfig,
        mesh: DeviceMesh,
        device: torch.device,
        microbatches: int,
        micro: tuple[int, int],
        dtype: torch.dtype,
        autocast: bool,
    ):
        """micro: rows and tokens of a microbatch."""
        self.model, self.microbatches = model, microbatches
        self.context: Callable[[], AbstractContextManager] = (
            (lambda: torch.autocast(device.type, dtype)) if autocast else nullcontext
        )
        pp = mesh["pp"]
        self.stage, self.stages = pp.get_local_rank(), pp.size()
        self.last = self.stage == self.stages - 1
        self.schedule = None
        if self.stages > 1:
            # Shapes are said, so that stages need not send each other any.
            between = (
                torch.float32 if autocast else dtype
            )  # autocast leaves sums of branches in the embedding's float32
            hidden = torch.empty(*micro, config.hidden_size, dtype=between, device="meta", requires_grad=True)
            tokens = torch.empty(micro, dtype=torch.int64, device="meta")
            logits = torch.empty(*micro, config.vocab_size, dtype=dtype, device="meta", requires_grad=True)
            made = PipelineStage(
                model,
                self.stage,
                self.stages,
                device,
                input_args=tokens if self.stage == 0 else hidden,
                output_args=logits if self.last else hidden,
                group=pp.get_group(),
            )
            if dist.get_backend() == "fake" and hasattr(made, "_warmup_backward_result"):
                # From torch 2.13 on stages vote whether all know their shapes, in messages that this backend does not deliver.
                made._warmup_backward_result = lambda received_result=None: torch.ones(1, dtype=torch.int32)
            self.schedule = Schedule1F1B(made, microbatches, loss_fn=_loss)

    def train(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """Gradients of a batch, and its loss in the last stage."""
        with self.context():
            if self.schedule is not None:
                return self._through(self.schedule.step, tokens, targets)
            loss = _loss(self.model(tokens), targets)
        loss.backward()
        return loss.detach()

    def evaluate(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """Its loss alone, in the last stage."""
        with torch.no_grad(), self.context():
            if self.schedule is not None:
                loss = self._through(self.schedule.eval, tokens, targets)
            else:
                loss = _loss(self.model(tokens), targets)
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return loss

    def _through(self, run: Callable, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        inputs = (tokens,) if self.stage == 0 else ()
        run(*inputs, **({"target": targets, "losses": losses} if self.last else {}))
        return torch.stack(losses).mean().detach() if self.last else None


def _loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def by_mesh(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters of one mesh together: torch's functions over lists of DTensors want them so."""
    groups: dict[object, list[nn.Parameter]] = {}
    for p in parameters:
        groups.setdefault(p.device_mesh if isinstance(p, DTensor) else None, []).append(p)
    return list(groups.values())


def is_split(p: torch.Tensor) -> bool:
    """Whether tensor parallelism has split it: its ranks then hold different parts."""
    if not isinstance(p, DTensor):
        return False
    names = p.device_mesh.mesh_dim_names or ()
    return any(name == "tp" and place.is_shard() for name, place in zip(names, p.placements, strict=True))


def clip(parameters: list[nn.Parameter], limit: float, mesh: DeviceMesh, replicated: bool) -> torch.Tensor:
    """Scale gradients to a norm of at most `limit` over the whole model, and return the norm. replicated: by DDP, else sharded.

    `clip_grad_norm_` takes neither parameters of several meshes nor pipeline stages. What several ranks hold alike counts once; the sum goes
    in float64, which no policy compresses.
    """
    total = torch.zeros((), dtype=torch.float64, device=mesh.device_type)
    for p in parameters:
        if p.grad is not None:
            grad = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
            holders = (1 if is_split(p) else mesh["tp"].size()) * (mesh["dp"].size() if replicated else 1)
            total += torch.linalg.vector_norm(grad, dtype=torch.float32).double().square() / holders
    dist.all_reduce(total)
    norm = total.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0).float()
    for p in parameters:
        if p.grad is not None:
            (p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad).mul_(scale)
    return norm


def replicas_differ(model: nn.Module, mesh: DeviceMesh) -> list[str]:
    """Names of parameters that ranks do not hold bit for bit alike where they should: across tp what is not split, across dp the replicas
    of DDP or what FSDP2 gathers for computing."""
    sharded = [m for m in model.modules() if isinstance(m, FSDPModule)]
    found = []

    def look(groups: tuple[str, ...]) -> None:
        for name, p in model.named_parameters():
            local = (p.to_local() if isinstance(p, DTensor) else p).detach().contiguous()
            bits = local.view({2: torch.int16, 4: torch.int32}[local.element_size()]).int()
            for group in groups:
                if group == "tp" and is_split(p):
                    continue
                low, high = bits.clone(), bits.clone()
                dist.all_reduce(low, dist.ReduceOp.MIN, mesh[group].get_group())
                dist.all_reduce(high, dist.ReduceOp.MAX, mesh[group].get_group())
                if not torch.equal(low, high):
                    found.append(f"{name} over {group}")

    look(("tp",) if sharded else ("dp", "tp"))
    if sharded:
        for m in sharded:
            m.unshard()
        look(("dp", "tp"))
        for m in sharded:
            m.reshard()
    return found
