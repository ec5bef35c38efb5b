"""Bits over every transport, races, lifetimes, faults, on two GPUs. On one GPU ranks share it: all but what runs over NCCL. Else skipped."""

from __future__ import annotations

import pytest
import torch
import workers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, this machine has none")
TRANSPORTS = ["symm", "torch", "nccl"] if torch.cuda.device_count() > 1 else ["symm", "torch"]
PLANS = ["two_shot", "ring", "reduce_scatter_direct", "all_gather_direct", "all_to_all_direct", "one_shot", "send_recv"]
BREAKS = [
    "two_shot!level:0",
    "two_shot!level:1",
    "ring!level:0",
    "reduce_scatter_direct!level:0",
    "reduce_scatter_direct!credits",
    "all_gather_direct!level:0",
    "all_gather_direct!credits",
    "all_to_all_direct!credits",
    "one_shot!credits",
    "send_recv!level:0",
    "send_recv!credits",
    "two_shot+all_gather_direct+ring@4096!turns",
    "reduce_scatter_direct@4096!turns",
]
SHARED = "two_shot+all_gather_direct+reduce_scatter_direct+ring+all_to_all_direct"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_every_transport_equals_simulate(dtype):
    print(workers.launch("equality", 2, "--transports", *TRANSPORTS, "--dtypes", dtype, timeout=400))


def test_slices_change_no_bit():
    print(
        workers.launch(
            "equality",
            2,
            "--transports",
            *(t for t in TRANSPORTS if t != "torch"),
            "--algorithms",
            "two_shot",
            "ring",
            "all_gather_direct",
            "all_to_all_direct",
            "--compressors",
            "int8",
            "--dtypes",
            "bfloat16",
            "--depths",
            "2",
            "3",
        )
    )


@pytest.mark.parametrize("world", [3, 4, 8])
def test_more_ranks_than_gpus(world):
    algorithms = [
        "two_shot",
        "ring",
        "one_shot",
        "all_gather_direct",
        "reduce_scatter_direct",
        "halving_doubling",
        "three_shot",
        "sdp4bit",
    ]
    print(
        workers.launch(
            "equality",
            world,
            "--transports",
            "symm",
            "--algorithms",
            *algorithms,
            "--compressors",
            "int8",
            "--dtypes",
            "bfloat16",
            timeout=400,
        )
    )


def test_mapped_memory_inside_hosts_and_torch_between():
    print(workers.launch("mixed", 4))


def test_state_and_stochastic_rounding():
    print(workers.launch("stateful", 2))


def test_lifetimes_graphs_and_bind():
    print(workers.launch("lifetimes", 2))


def test_a_missing_peer_is_named():
    print(workers.launch("faults", 2, timeout=120))


def test_random_delays_change_no_bit():
    interleaved = "two_shot+all_gather_direct+reduce_scatter_direct+ring"
    shared = [f"{SHARED}@4096", f"{SHARED}/2@4096", f"{SHARED}@100"]
    print(workers.launch("races.py", 2, *PLANS, *(f"{p}/2" for p in PLANS), interleaved, *shared, timeout=300))


def test_random_delays_on_four_ranks():
    print(workers.launch("races.py", 4, "two_shot", "all_gather_direct+ring", f"{SHARED}@200", "--calls", "60"))


def test_every_wait_and_credit_is_needed():
    print(workers.launch("races.py", 2, *BREAKS, timeout=300))
