"""Two GPUs: the tests of tests/torch on CUDA tensors over NCCL and NVLink, with capture and inductor, and 200 steps of training.

One process a rank; each test is about a minute, of which most compiles kernels.
"""

from __future__ import annotations

import pytest
import torch
from worlds import spawn

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, this machine has {torch.cuda.device_count()}"
)


def run(script: str, *arguments: str, world: int = 2) -> None:
    spawn(f"../torch/{script}", world, *arguments, timeout=400, env={"COCCL_TEST_DEVICE": "cuda"})


def test_torchs_signatures_and_messages():
    run("functions_worker.py")


def test_gradients_compiled_graphs_and_capture():
    run("library_worker.py")


def test_inductor():
    run("library_worker.py", "inductor")


def test_checkpointed_regions():
    run("checkpointing_worker.py")


def test_replicas_of_ddp_are_equal_after_200_steps(tmp_path):
    run("ddp_worker.py", str(tmp_path), "200")


def test_weights_of_fsdp2_are_equal_after_200_steps(tmp_path):
    run("fsdp2_worker.py", str(tmp_path), "200")


@pytest.mark.skipif(torch.cuda.device_count() < 4, reason="hybrid sharding needs 4 GPUs")
def test_hybrid_sharding(tmp_path):
    run("fsdp2_worker.py", str(tmp_path), "50", world=4)
