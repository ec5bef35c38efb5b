"""Under torchrun with COCCL_POLICY set: the training script as it is, then without us, then with a rule that matches nothing; then every case.

Arguments: a folder for what is found, free ports (one for each further life of torch.distributed, whose store is its own), names of cases. Writes FOLDER/report.json (rank 0) and FOLDER/cases.json.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

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
    rank = int(os.environ["RANK"])
    times = {}

    def timed(name, run):
        start = time.process_time()
        run()
        times[name] = round(time.process_time() - start, 2)

    timed("compressed", lambda: train(folder, "compressed"))
    from coccl_dsl.policy import read_policy_text
    from coccl_dsl.torch import traffic, transparent, works

    if rank == 0:
        (folder / "report.json").write_text(traffic.report().json())
    transparent.disable()
    new_store(ports)
    timed("native", lambda: train(folder, "native"))
    new_store(ports)
    transparent.enable(read_policy_text(NOTHING))
    timed("matches nothing", lambda: train(folder, "matches_nothing"))
    transparent.disable()

    import transparent_training  # its cases
    from transparent_cases import CASES, policy

    assert transparent_training

    new_store(ports)
    dist.init_process_group("gloo")
    told = {}
    chosen = sys.argv[3].split(";") if len(sys.argv) > 3 else list(CASES)
    for name in chosen:

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
            break  # the ranks are no longer at one place
    told["Works left alive"] = "" if len(works.alive) == 0 else f"{len(works.alive)} of them"
    (folder / f"cases.{rank}.json").write_text(json.dumps(told))
    (folder / f"times.{rank}.json").write_text(json.dumps(times))
    if not any(told.values()):
        dist.destroy_process_group()
        assert torch.distributed.is_initialized() is False


OWN_POLICY = {
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
}

if __name__ == "__main__":
    main()
