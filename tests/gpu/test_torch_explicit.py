"""The tests of tests/torch on CUDA tensors over NCCL, with capture and inductor, and 200 steps of training with each hook. Ranks share a GPU where
there are too few (tests/runtime/lone.py): about 4 ms a call then, as their processes take turns.

Worlds run side by side, as most of their time is compiling kernels on the host; each has its own processes and its own limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from lone import environment
from worlds import spawn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, this machine has none")
AT_A_TIME, SECONDS = 5, 240


@dataclass(frozen=True)
class World:
    """script: of tests/torch. arguments: FOLDER is a new folder's path."""

    script: str
    arguments: tuple[str, ...] = ()
    ranks: int = 2


# The longest first.
WORLDS = {
    "weights of FSDP2 are equal after 200 steps": World("fsdp2_worker.py", ("FOLDER", "200")),
    "inductor": World("library_worker.py", ("inductor",)),
    "torch's signatures and messages": World("functions_worker.py"),
    "gradients, compiled graphs and capture": World("library_worker.py"),
    "replicas of DDP are equal after 200 steps": World("ddp_worker.py", ("FOLDER", "200")),
    "hybrid sharding": World("fsdp2_worker.py", ("FOLDER", "50"), ranks=4),
    "checkpointed regions": World("checkpointing_worker.py"),
}


def run(world: World, folder: str) -> None:
    arguments = [folder if a == "FOLDER" else a for a in world.arguments]
    env = {"COCCL_TEST_DEVICE": "cuda", "TORCHINDUCTOR_COMPILE_THREADS": "1", **environment(world.ranks)}
    began = time.monotonic()
    spawn(f"../torch/{world.script}", world.ranks, *arguments, timeout=SECONDS, env=env)
    print(
        f"{world.script} {' '.join(world.arguments)}: {time.monotonic() - began:.0f} s", flush=True
    )  # pytest -s shows it


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future]]:
    """The worlds of the chosen tests, under way."""
    items = [i for i in request.session.items if isinstance(i, pytest.Function) and i.module is request.module]
    chosen = {i.callspec.params["name"] for i in items}
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {
            name: pool.submit(run, world, str(tmp_path_factory.mktemp("world")))
            for name, world in WORLDS.items()
            if name in chosen
        }


@pytest.mark.parametrize("name", WORLDS)
def test_on_gpus(name: str, started: dict[str, Future]):
    started[name].result()
