"""Ranks that share a GPU. NCCL refuses two ranks of one host on one GPU, but not two hosts: with COCCL_TEST_LONE_RANK=1 each rank is a host of its
own, and NCCL goes over sockets. `be_a_host` before the first group is made; imports nothing, as it runs before everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

LONE_RANK = {"COCCL_TEST_LONE_RANK": "1", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def be_a_host() -> None:
    """In a rank: nothing unless it was started as a lone one."""
    if os.environ.get("COCCL_TEST_LONE_RANK") == "1":
        os.environ.setdefault("NCCL_HOSTID", f"host{os.environ['RANK']}")


def environment(world: int) -> dict[str, str]:
    """What the ranks of a test get, where there are fewer GPUs than ranks: they share them."""
    import torch

    if world <= torch.cuda.device_count():
        return {}
    # Of the same ranks as one host (see `one_host`), mapped memory is tested too.
    return LONE_RANK | {"TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}


@contextmanager
def one_host() -> Iterator[None]:
    """Meanwhile lone ranks are one host to coccl_dsl, which maps their memory; to NCCL they stay hosts of their own."""
    if os.environ.get("COCCL_TEST_LONE_RANK") != "1":
        yield
        return
    from coccl_dsl.runtime.transports import symm

    own = symm.host_name
    symm.host_name = lambda: "one host"
    try:
        yield
    finally:
        symm.host_name = own
