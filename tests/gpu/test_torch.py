"""The transparent path on two GPUs: everything that users call, over NCCL and NVLink, with streams, captures and 200 steps of training."""

from __future__ import annotations

import pytest
import torch
from worlds import spawn

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, this machine has {torch.cuda.device_count()}"
)
OF_GPUS = (
    "CUDA-graph capture",
    "streams and freed tensors",
    "batches and single messages in both directions",
    "_coalescing_manager with a device",
    "each transport, in passes too",
    "replicas after many steps",
)


def run(*names: str, **env: str) -> list[str]:
    return spawn(
        "../torch/transparent_gpu.py",
        2,
        *([";".join(names)] if names else []),
        timeout=500,
        env={"COCCL_TEST_DEVICE": "cuda", **env},
    )


def test_everything_that_users_call_is_right():
    run()


@pytest.mark.parametrize("name", OF_GPUS)
def test_what_only_gpus_have(name: str):
    run(name)


@pytest.mark.full
def test_inductor():
    run("torch.compile(fullgraph=True)", COCCL_TEST_FULL="1")
