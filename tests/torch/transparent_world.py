"""Under torchrun with COCCL_POLICY set: the training script as it is, then without us, then with a rule that matches nothing; then every case.

Arguments: a folder for what is found, free ports (one for each further life of torch.distributed, whose store is its own), and which parts: names
of cases, between `;`, which want no COCCL_POLICY; or `script`, the training script alone. Writes FOLDER/report.json (rank 0), FOLDER/cases.RANK.json and
FOLDER/times.RANK.json. With DEVICE=cuda over NCCL, where ranks share GPUs if there are too few (tests/runtime/lone.py).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import lone

lone.be_a_host()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

HERE = Path(__file__).parent
NOTHING = '[[rule]]\non = "*"\ngroup = "no such group"\ncompressor = "int8"\n'


def new_store(ports: list[str]) -> None:
    """torchrun's own store serves one life."""
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": ports.pop()}


def train(folder: Path, name: str) -> None:
    os.environ["OUT"] = str(folder / name)
    runpy.run_path(str(HERE / "train_4d.py"), run_name="__main__")


def main() -> None:
    folder, ports = Path(sys.argv[1]), sys.argv[2].split(",")
    parts = sys.argv[3].split(";") if len(sys.argv) > 3 else []
    rank = int(os.environ["RANK"])
    times = {}

    def timed(name, run):
        start = time.perf_counter()
        run()
        times[name] = round(time.perf_counter() - start, 2)

    if parts in ([], ["script"]):
        timed("compressed", lambda: train(folder, "compressed"))
        from coccl_dsl.policy import read_policy_text
        from coccl_dsl.torch import traffic, transparent

        if rank == 0:
            (folder / "report.json").write_text(traffic.report().json())
        transparent.disable()
        new_store(ports)
        timed("native", lambda: train(folder, "native"))
        new_store(ports)
        transparent.enable(read_policy_text(NOTHING))
        timed("matches nothing", lambda: train(folder, "matches_nothing"))
        transparent.disable()
        new_store(ports)
    if parts != ["script"]:
        cases(folder, parts, timed)
    (folder / f"times.{rank}.json").write_text(json.dumps(times))


def cases(folder: Path, chosen: list[str], timed: Callable[[str, Callable[[], None]], None]) -> None:
    """Run them in order until one fails: then the ranks are no longer at one place."""
    import transparent_training  # its cases
    from transparent_cases import CASES, DEVICE, policy

    from coccl_dsl.torch import works

    assert transparent_training
    cuda = DEVICE == "cuda"
    if cuda:
        import transparent_gpu  # its cases

        assert transparent_gpu
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.set_default_device(device)
    rank = int(os.environ["RANK"])
    # A rank that failed is not waited for much longer than kernels take to compile.
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=90))
    told = {}
    for name in chosen or list(CASES):

        def run(name=name):
            with policy():
                CASES[name]()

        try:
            if CASES[name].__name__ in OWN_POLICY:
                timed(name, CASES[name])
            else:
                timed(name, run)
            told[name] = ""
        except BaseException:
            told[name] = traceback.format_exc()
            print(f"rank {rank}: {name}\n{told[name]}", flush=True)
            break
        finally:
            (folder / f"cases.{rank}.json").write_text(json.dumps(told))
    told["Works left alive"] = "" if len(works.alive) == 0 else f"{len(works.alive)} of them"
    (folder / f"cases.{rank}.json").write_text(json.dumps(told))
    if not any(told.values()):
        dist.destroy_process_group()
        assert torch.distributed.is_initialized() is False


OWN_POLICY = {
    "untouched",
    "uneven_across_min_bytes",
    "coalesced",
    "ddp",
    "ddp_buffers",
    "stateful",
    "fsdp1",
    "fsdp2",
    "zero1",
    "pipelining",
    "checkpoints",
    "warm_up",
    "saved_numbers",
    "debugging",
    "logged",
    "disagreement",
    "threads",
    "captured",
    "transports",
    "replicas",
}

if __name__ == "__main__":
    main()
