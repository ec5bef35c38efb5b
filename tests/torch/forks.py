"""Processes of a test world, forked from one that has imported everything: importing torch takes longer than most tests.

On GPUs (COCCL_TEST_DEVICE=cuda, see tests/gpu/test_torch_explicit.py) each rank is started as a process of its own, and tensors are made on its GPU, which several
share where there are too few (tests/runtime/lone.py).
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import worlds
from lone import be_a_host

from coccl_dsl.pipeline import load

load("two_shot").program()  # makes the parsers

CUDA = os.environ.get("COCCL_TEST_DEVICE") == "cuda"


def start() -> torch.device:
    """Join the world, over gloo or NCCL."""
    torch.set_num_threads(1)
    be_a_host()
    if not CUDA:
        dist.init_process_group("gloo", timeout=timedelta(seconds=100))
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    torch.set_default_device(device)
    dist.init_process_group("nccl", timeout=timedelta(seconds=100), device_id=device)
    return device


def here(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.device("cuda", torch.cuda.current_device())) if CUDA else t


def normal(*shape: int, seed: int) -> torch.Tensor:
    """The same numbers on every device and rank."""
    return here(torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu"))


def inputs(n: int, count: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Of all ranks."""
    with torch.device("cpu"):
        made = worlds.inputs(n, count, dtype, seed)
    return [here(t) for t in made]


def fork_world(world: int, main: Callable[[], None], seconds: float = 200) -> None:
    """Run `main` on `world` ranks. A rank that fails ends the others, and this process."""
    if CUDA:  # this process is one of the ranks
        if int(os.environ["WORLD_SIZE"]) == world:
            main()
        return
    children = {}
    for rank in range(world):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
            code = 1
            try:
                main()
                code = 0
            except BaseException:
                print(f"--- rank {rank}", flush=True)
                traceback.print_exc(file=sys.stdout)
            finally:
                sys.stdout.flush()
                os._exit(code)
        children[pid] = rank
    end, failed = time.monotonic() + seconds, False
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            del children[pid]
            failed = failed or status != 0
        if children and (failed or time.monotonic() > end):
            time.sleep(1)
            for other in children:
                os.kill(other, signal.SIGKILL)
            print(f"ranks {sorted(children.values())} were ended", flush=True)
            os._exit(1)
        time.sleep(0.01)
    if failed:
        os._exit(1)
