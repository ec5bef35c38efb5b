"""Bits over every transport, own graphs, races, lifetimes, faults, on two GPUs. On one GPU ranks share it, and NCCL takes each for a host of its
own and goes over sockets. Without a GPU all are skipped."""

from __future__ import annotations

import pytest
import torch
import workers

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, this machine has none")
SHARED_GPU = torch.cuda.device_count() < 2
PLANS = ["two_shot", "ring", "reduce_scatter_direct", "all_gather_direct", "all_to_all_direct", "one_shot", "send_recv"]
ONE_LAUNCH = ["two_shot", "one_shot", "all_gather_direct", "reduce_scatter_direct", "all_to_all_direct"]
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
    "two_shot^!level:0",
    "two_shot^!level:1",
    "one_shot^!level:0",
    "one_shot^!turns",
    "reduce_scatter_direct^!turns",
]
SHARED = "two_shot+all_gather_direct+reduce_scatter_direct+ring+all_to_all_direct"


def over_nccl(transport: str) -> bool:
    """Whether the ranks of a test have to be hosts of their own."""
    return SHARED_GPU and transport != "symm"


@pytest.mark.parametrize("transport", ["symm", "torch", "nccl", "torch+collectives", "nccl+collectives"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_every_transport_equals_simulate(dtype, transport):
    print(
        workers.launch(
            "equality", 2, "--transports", transport, "--dtypes", dtype, timeout=400, hosts=over_nccl(transport)
        )
    )


@pytest.mark.parametrize("transport", ["symm", "nccl"])
def test_slices_change_no_bit(transport):
    print(
        workers.launch(
            "equality",
            2,
            "--transports",
            transport,
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
            hosts=over_nccl(transport),
        )
    )


@pytest.mark.parametrize("transport", ["symm", "nccl"])
def test_graphs_of_an_op_s_own_calls(transport):
    print(workers.launch("own_graphs", 2, "--transports", transport, hosts=over_nccl(transport)))


@pytest.mark.parametrize("transport", ["symm", "nccl"])
def test_new_pointers_on_one_rank_only(transport):
    print(workers.launch("uniform", 2, "--transports", transport, hosts=over_nccl(transport)))


@pytest.mark.parametrize("transport", ["symm", "nccl"])
def test_groups_that_come_and_go_leave_nothing(transport):
    print(workers.launch("passing", 2, "--transports", transport, hosts=over_nccl(transport)))


@pytest.mark.parametrize("transport", ["symm", "nccl"])
def test_twelve_groups_and_one_hardware_queue(transport, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    print(workers.launch("ordering", 2, "--transports", transport, hosts=over_nccl(transport)))


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


@pytest.mark.parametrize("transport", ["symm", "nccl"])
def test_a_missing_peer_is_named(transport):
    print(workers.launch("faults", 2, "--transports", transport, timeout=120, hosts=over_nccl(transport)))


def test_random_delays_change_no_bit():
    interleaved = "two_shot+all_gather_direct+reduce_scatter_direct+ring"
    shared = [f"{SHARED}@4096", f"{SHARED}/2@4096", f"{SHARED}@100"]
    print(workers.launch("races.py", 2, *PLANS, *(f"{p}/2" for p in PLANS), interleaved, *shared, timeout=300))


def test_random_delays_with_graphs_of_the_ops():
    print(
        workers.launch(
            "races.py", 2, *(f"{p}*" for p in PLANS), "two_shot+all_gather_direct+ring*", "ring*/2", timeout=300
        )
    )


def test_random_delays_in_calls_of_one_launch():
    print(workers.launch("races.py", 2, *(f"{p}^" for p in ONE_LAUNCH), "+".join(ONE_LAUNCH) + "^", timeout=300))


def test_random_delays_on_four_ranks():
    print(
        workers.launch(
            "races.py", 4, "two_shot", "all_gather_direct+ring", f"{SHARED}@200", "two_shot+one_shot^", "--calls", "60"
        )
    )


def test_every_wait_and_credit_is_needed():
    print(workers.launch("races.py", 2, *BREAKS, timeout=300))
