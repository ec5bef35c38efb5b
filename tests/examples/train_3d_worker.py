"""Runs of examples/train_3d.py on one world of gloo processes, one after the other. Arguments: folder, steps, MODEL:MESH for each model.

Writes FOLDER/found.json: {model: {run: what its last log line said, and "losses", the training loss of each step}}.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

import forks
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import train_3d  # noqa: E402

import coccl_dsl  # noqa: E402
import coccl_dsl.torch.transparent  # noqa: E402
from coccl_dsl.policy import read_policy_text  # noqa: E402
from coccl_dsl.torch import traffic  # noqa: E402

# The dimension that a policy is for, by its place in the mesh; None: any.
POLICIES = {"off": None, "dp": 0, "tp": 1, "pp": 2, "3d": None}
TEXT = train_3d.Text(1 << 21)
# DDP's hook has states of its own, and rounding at random goes on from a saved number.
FEEDBACK = """
[[rule]]
on = "dp.all_reduce"
compressor = "error_feedback(int4)"
[[rule]]
on = ["pp.send"]
compressor = "int8(round=stochastic)"
"""


class World:
    """Runs of one model on one mesh."""

    def __init__(self, folder: Path, model: str, mesh: tuple[int, int, int], steps: int):
        self.folder, self.model, self.mesh, self.steps = folder, model, mesh, steps
        self.found: dict[str, dict] = {}

    def run(self, name: str, policy: str | None = None, **options: object) -> None:
        """One run in a life of torch.distributed of its own. policy: a file of policies/, or a text."""
        began, rank = time.process_time(), int(os.environ["RANK"])
        stem = f"{self.model} {name}"
        log = self.folder / f"{stem}.jsonl"
        given = dict(
            model=self.model, mesh=self.mesh, steps=self.steps, batch=16, length=32, lr=3e-3, warmup=5, dtype="f32", log_every=1,
            validation_batches=2, check_replicas=True, json=log,
        )  # fmt: skip
        o = train_3d.Options(**given | options)  # pyright: ignore
        traffic.reset()
        if policy is not None:
            coccl_dsl.enable(read_policy_text(policy) if "\n" in policy else ROOT / "policies" / f"{policy}.toml")
        store = f"file://{self.folder}/{stem}.store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        told = train_3d.Run(o, torch.device("cpu"), TEXT).train()
        coccl_dsl.disable()
        dist.destroy_process_group()
        if rank == 0:
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            losses = [line["loss"] for line in lines if line["kind"] == "step"]
            self.found[name] = {**told, "losses": losses, "cpu_seconds": time.process_time() - began}
            print(stem, f"{time.process_time() - began:.1f} s of rank 0", told["validation_loss"], flush=True)


def cases(folder: Path, model: str, mesh: tuple[int, int, int], steps: int) -> dict[str, dict]:
    world, half = World(folder, model, mesh, steps), steps // 2
    world.run("native")
    for policy, dimension in POLICIES.items():
        if dimension is not None and mesh[dimension] == 1:
            continue
        # The whole of `3d` leaves the checkpoint from which `resumed` goes on.
        extra = {"checkpoint": folder / model, "checkpoint_every": half} if policy == "3d" else {}
        world.run(policy, policy, **extra)
    world.run("resumed", "3d", resume=folder / model / f"step_{half}")
    if mesh[1] == 1:
        world.run("ddp native", data="ddp")
        world.run("ddp off", "off", data="ddp")
        saved = folder / f"{model} ddp"
        world.run("ddp", FEEDBACK, data="ddp", checkpoint=saved, checkpoint_every=half)
        world.run("ddp resumed", FEEDBACK, data="ddp", resume=saved / f"step_{half}")
    return world.found


def main() -> None:
    torch.set_num_threads(1)
    folder, found = Path(sys.argv[1]), {}
    for model, mesh in (given.split(":") for given in sys.argv[3:]):
        found[model] = cases(folder, model, train_3d._mesh(mesh), int(sys.argv[2]))
    if int(os.environ["RANK"]) == 0:
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    ranks = math.prod(train_3d._mesh(sys.argv[3].split(":")[1]))
    forks.fork_world(ranks, main, 1500)
