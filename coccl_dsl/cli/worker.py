"""One process of `coccl-compile --run`: binds the collective, calls it on its gradients, writes what it found to FOLDER/RANK.json.

python -m coccl_dsl.cli.worker '{"target": "ring_q4", "world": 4, ...}' 0
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..pipeline import load, op_factor
from ..plan import show
from ..runtime.dtypes import TORCH
from .gradients import gradients
from .run import TIMEOUT, Job


def main(argv: list[str]) -> int:
    job, rank = Job(**json.loads(argv[0])), int(argv[1])
    folder = Path(job.folder)
    try:
        (folder / f"{rank}.json").write_text(json.dumps(_work(job, rank)))
        return 0
    except Exception as e:
        (folder / f"{rank}.error").write_text(str(e) or type(e).__name__)
        raise


def _work(job: Job, rank: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.is_available() and torch.cuda.device_count() >= job.world:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{Path(job.folder) / 'store'}",
        rank=rank,
        world_size=job.world,
        timeout=timedelta(seconds=TIMEOUT / 2),
    )
    try:
        return _measure(job, rank, device)
    finally:
        dist.destroy_process_group()


def _measure(job: Job, rank: int, device: torch.device) -> dict[str, Any]:
    collective = load(job.target, job.compressors)
    split = collective.kind in ("reduce_scatter", "all_to_all")
    tensors: dict[str, torch.Tensor] = {}
    for name, grad in gradients(rank, job.world).items():
        whole = grad.numel() // job.world * job.world if split else grad.numel()
        tensors[name] = grad[:whole].to(TORCH[job.dtype]).to(device)
    largest = max(tensors.values(), key=torch.Tensor.numel)
    options: dict[str, Any] = {"op": job.op, "root": job.root}
    if job.mesh is not None:
        options["mesh"] = job.mesh
    op = collective.bind(like=largest, **options)
    plan = op.plan
    assert plan is not None and op.transport is not None
    first = sorted(name for name, c in plan.codecs.items() if c.first is not None)
    if plan.stateful:  # states belong to tensors of one size, so each call here is a first one
        plan = replace(plan, codecs={name: c.first or c for name, c in plan.codecs.items()})
    groups = []
    for name, x in tensors.items():
        if not plan.stateful:
            op(x)  # the first call of a size prepares it
        _settle(device)
        dist.barrier()
        start = time.perf_counter()
        y = op(x)
        _settle(device)
        seconds = time.perf_counter() - start
        error, exact = _compare(job, rank, collective.kind, x, y)
        sent, plain = show.sent_bytes(plan, x.numel())
        digest = hashlib.sha256(y.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        groups.append(
            {
                "name": name,
                "elements": x.numel(),
                "error": error,
                "exact": exact,
                "sent": sent,
                "plain": plain,
                "digest": digest,
                "seconds": seconds,
            }
        )
    return {
        "groups": groups,
        "device": "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device),
        "transport": f"transport {op.transport.name} over {dist.get_backend()}",
        "first": first,
    }


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _compare(job: Job, rank: int, kind: str, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Sums of squares, in float64: of the difference from the exact result, and of that."""
    everyone = [torch.empty_like(x) for _ in range(job.world)]
    dist.all_gather(everyone, x)
    exact = _exact(job, rank, kind, everyone)
    if exact is None:
        return 0.0, 0.0
    error = float((y.reshape(-1).double() - exact).square().sum())
    return error, float(exact.square().sum())


def _exact(job: Job, rank: int, kind: str, inputs: list[torch.Tensor]) -> torch.Tensor | None:
    """This rank's result in float64, or None where nothing is promised to it."""
    factor = op_factor(job.op, job.world)
    wide = [t.reshape(-1).double() * (1.0 if factor is None else factor) for t in inputs]
    match kind:
        case "all_reduce":
            return torch.stack(wide).sum(0)
        case "reduce":
            return torch.stack(wide).sum(0) if rank == job.root else None
        case "broadcast":
            return wide[job.root]
        case "all_gather":
            return torch.cat(wide)
        case "reduce_scatter":
            return torch.stack(wide).sum(0).chunk(job.world)[rank]
        case "all_to_all":
            return torch.cat([t.chunk(job.world)[rank] for t in wide])
        case _:
            return wide[0] if rank == 1 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
