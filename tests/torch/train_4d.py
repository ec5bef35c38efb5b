"""A training script as users write them: DDP, FSDP2 with tensor parallelism, a 1F1B pipeline with DDP. Public APIs of torch, nothing of ours.

Runs on 4 processes under torchrun, over gloo, or with DEVICE=cuda over NCCL; each writes its weights to OUT.RANK.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH = 32
DEVICE = os.environ.get("DEVICE", "cpu")


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(DEVICE)


def data(step, part, rows=8):
    g = torch.Generator().manual_seed(1000 * step + part)
    return torch.randn(rows, WIDTH, generator=g).to(DEVICE), torch.randn(rows, WIDTH, generator=g).to(DEVICE)


def train(model, part, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(steps):
        x, y = data(step, part)
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(mlp())
    train(model, rank)
    return [p.detach().clone() for p in model.parameters()]


def fsdp_tp():
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp_shard", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(mlp(), mlp(), nn.Identity())
    for block in model[:2]:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp_shard"])
    fully_shard(model, mesh=mesh["dp_shard"])
    train(model, mesh["dp_shard"].get_local_rank())
    return [p.detach().full_tensor() for p in model.parameters()]


def pipeline():
    mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("pp", "dp"))
    torch.manual_seed(0)
    stages = [mlp(), mlp()]
    index, part = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    model = DistributedDataParallel(stages[index], process_group=mesh["dp"].get_group())
    device = torch.device(DEVICE, torch.cuda.current_device()) if DEVICE == "cuda" else torch.device("cpu")
    stage = PipelineStage(model, index, 2, device, group=mesh["pp"].get_group())
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, target: (out - target).square().mean())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(3):
        x, y = data(step, part, 16)
        schedule.step(x) if index == 0 else schedule.step(target=y)
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def main():
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    rank = dist.get_rank()
    weights = {"ddp": ddp(rank), "fsdp_tp": fsdp_tp(), "pipeline": pipeline()}
    torch.save(weights, f"{os.environ['OUT']}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
