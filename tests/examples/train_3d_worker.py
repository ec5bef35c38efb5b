"""Runs of examples/train_3d.py on one world of gloo processes, one after the other. Arguments: folder, mesh, steps, models.

Writes FOLDER/found.json: {run: what its last log line said, and "losses", the training loss of each step}.
"""

from __future__ import annotations

import json
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

POLICIES = ("off", "dp", "tp", "pp", "3d")
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
    def __init__(self, folder: Path, mesh: tuple[int, int, int], steps: int):
        self.folder, self.mesh, self.steps = folder, mesh, steps
        self.found: dict[str, dict] = {}

    def run(self, name: str, policy: str | None = None, **options: object) -> None:
        """One run in a life of torch.distributed of its own. policy: a file of policies/, or a text."""
        began, rank = time.process_time(), int(os.environ["RANK"])
        log = self.folder / f"{name}.jsonl"
        given = dict(
            mesh=self.mesh, steps=self.steps, batch=16, length=32, lr=3e-3, warmup=5, dtype="f32", log_every=1,
            validation_batches=2, check_replicas=True, json=log,
        )  # fmt: skip
        o = train_3d.Options(**given | options)  # pyright: ignore
        traffic.reset()
        if policy is not None:
            coccl_dsl.enable(read_policy_text(policy) if "\n" in policy else ROOT / "policies" / f"{policy}.toml")
        store = f"file://{self.folder}/{name}.store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        told = train_3d.Run(o, torch.device("cpu"), TEXT).train()
        coccl_dsl.disable()
        dist.destroy_process_group()
        if rank == 0:
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            losses = [line["loss"] for line in lines if line["kind"] == "step"]
            self.found[name] = {**told, "losses": losses, "cpu_seconds": time.process_time() - began}
            print(name, f"{time.process_time() - began:.1f} s of rank 0", told["validation_loss"], flush=True)


def main() -> None:
    torch.set_num_threads(1)
    folder, models = Path(sys.argv[1]), sys.argv[4].split(",")
    dp, tp, pp = train_3d._mesh(sys.argv[2])
    world = World(folder, (dp, tp, pp), int(sys.argv[3]))
    half = world.steps // 2
    for model in models:
        world.run(f"{model} native", model=model)
        for policy in POLICIES:
            extra = {"checkpoint": folder / model, "checkpoint_every": half} if policy == "3d" else {}
            world.run(f"{model} {policy}", policy, model=model, **extra)
        world.run(f"{model} resumed", "3d", model=model, resume=folder / model / f"step_{half}")
    if int(os.environ["RANK"]) == 0:
        (folder / "found.json").write_text(json.dumps(world.found))


if __name__ == "__main__":
    ranks = 1
    for size in train_3d._mesh(sys.argv[2]):
        ranks *= size
    forks.fork_world(ranks, main, 900)
