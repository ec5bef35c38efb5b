"""What the transparent path costs: against the bare op, against native calls that it lets pass, and through DDP.

    python benchmarks/torch_path.py --json benchmarks/results/torch_path.json        # two GPUs, about two minutes

    path      dist.all_reduce under a policy, and the bare op, 256 MiB bf16 (bar: within 5 %)
    overhead  host time of 4-KiB all_reduces, native and with a rule that matches nothing, 10,000 each in turn (bar: 10 us more)
    ddp       buckets of a 350M GPT: bare ops one after the other, and what a backward takes more than one that does not communicate (bar: 5 %)

Sides take turns in one process; times are the largest over ranks of medians. `--device cpu --mib 4` tries it out over gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

MIB = 1 << 20
POLICY = """
arena_mib = {arena}
[[rule]]
on = "*.all_reduce"
compressor = "int8"
"""
NOTHING = '[[rule]]\non = "cp.all_reduce"\ncompressor = "int8"\n'
PATH_BAR, HOST_BAR_US = 1.05, 10.0


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, default=Path("benchmarks/results/torch_path.json"))
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--mib", type=int, default=256, help="size of the all_reduce")
    p.add_argument("--calls", type=int, default=10_000, help="small calls a side")
    p.add_argument("--layers", type=int, default=24, help="of the GPT, 1024 wide")
    p.add_argument("--repeats", type=int, default=5)
    options = p.parse_args()
    if "RANK" in os.environ:
        return worker(options)
    import torch

    if options.device == "cuda" and torch.cuda.device_count() < 2:
        print("torch_path: needs 2 GPUs", file=sys.stderr)
        return 1
    from coccl_dsl.cli.bench import start_processes

    return start_processes([sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]], 2)


def worker(options: argparse.Namespace) -> int:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    cuda = options.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    told = {"device_id": device} if cuda else {}
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=120), **told)
    rows = {"path": path(options, device), "overhead": overhead(options, device), "ddp": ddp(options, device)}
    missed = [name for name, row in rows.items() if not row["met"]]
    if dist.get_rank() == 0:
        for name, row in rows.items():
            print(
                f"{name:<9}"
                + "   ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            )
        document = {"command": "python benchmarks/torch_path.py " + " ".join(sys.argv[1:]), "torch": torch.__version__}
        document |= {"device": torch.cuda.get_device_name() if cuda else "cpu", **rows}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1))
        print(f"# bars missed: {', '.join(missed) or 'none'}")
    dist.destroy_process_group()
    return 0


# ---------------------------------------------------------------- timing


def sync(device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()


def in_turn(
    sides: dict[str, Callable[[], object]],
    device,
    repeats: int,
    calls: int,
    before: dict[str, Callable[[], None]] | None = None,
) -> dict[str, float]:
    """Microseconds a call of each side: the median over repeats of blocks of calls, the largest over ranks. before: outside the time."""
    import torch
    import torch.distributed as dist

    found: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(-1, repeats):  # the first only warms
        for name, run in sides.items():
            if before:
                before[name]()
            run()
            sync(device)
            dist.barrier()
            began = time.perf_counter()
            for _ in range(calls):
                run()
            sync(device)
            if repeat >= 0:
                found[name].append((time.perf_counter() - began) / calls * 1e6)
    table = torch.tensor([statistics.median(v) for v in found.values()], device=device, dtype=torch.float64)
    dist.all_reduce(table, dist.ReduceOp.MAX)
    return dict(zip(found, table.tolist(), strict=True))


def switch(policy: str | None) -> None:
    """Put a policy in force, or none."""
    from coccl_dsl.policy import read_policy_text
    from coccl_dsl.torch import transparent

    transparent.disable()
    if policy is not None:
        assert transparent.enable(read_policy_text(policy))


def bare(device, count: int, dtype, arena: int):
    """The op that the transparent path runs for `count` elements, called with nothing around it."""
    import torch
    import torch.distributed as dist

    from coccl_dsl.torch import transparent

    switch(POLICY.format(arena=arena))
    dist.all_reduce(torch.zeros(count, dtype=dtype, device=device), dist.ReduceOp.AVG)
    assert transparent._on is not None
    (state,) = [s for s in transparent._on.groups.states.values() if s.ops]
    return [b.op for b in state.ops.values()][-1]


# ---------------------------------------------------------------- rows


def path(options: argparse.Namespace, device) -> dict[str, object]:
    import torch
    import torch.distributed as dist

    count = options.mib * MIB // 2
    x = torch.randn(count, device=device).bfloat16()
    op = bare(device, count, torch.bfloat16, 2 * options.mib)

    def call() -> None:
        dist.all_reduce(x, dist.ReduceOp.AVG)

    def native() -> None:
        dist.all_reduce(x)
        x.mul_(0.5)

    sides = {"bare": lambda: op(x, x), "transparent": call}
    us = in_turn(sides, device, options.repeats, 20)
    switch(None)
    us |= in_turn({"native": native}, device, options.repeats, 20)
    ratio = us["transparent"] / us["bare"]
    return {"mib": options.mib, **{f"{k}_us": v for k, v in us.items()}, "ratio": ratio, "met": ratio <= PATH_BAR}


def overhead(options: argparse.Namespace, device) -> dict[str, object]:
    """Median of the host's time in single calls; the device is waited for now and then, outside the time."""
    import torch
    import torch.distributed as dist

    x = torch.zeros(1024, device=device)
    found: dict[str, list[int]] = {"native": [], "passed": []}
    block = 500
    for _ in range(max(1, options.calls // block)):
        for name, policy in (("native", None), ("passed", NOTHING)):
            switch(policy)
            for _ in range(20):
                dist.all_reduce(x)
            for i in range(block):
                if i % 50 == 0:
                    sync(device)
                    dist.barrier()
                began = time.perf_counter_ns()
                dist.all_reduce(x)
                found[name].append(time.perf_counter_ns() - began)
    switch(None)
    us = {name: statistics.median(v) / 1e3 for name, v in found.items()}
    more = us["passed"] - us["native"]
    return {
        "calls": len(found["native"]),
        **{f"{k}_us": v for k, v in us.items()},
        "more_us": more,
        "met": more <= HOST_BAR_US,
    }


def gpt(layers: int, device):
    """Parameters of a GPT, 1024 wide, with a vocabulary of 50,257; 24 layers are 355M."""
    import torch
    from torch import nn

    class Model(nn.Module):
        """Every parameter gets a gradient at next to no cost, so that backward is communication."""

        def __init__(self) -> None:
            super().__init__()
            shapes = [(50257 if device.type == "cuda" else 500, 1024), (1024, 1024)]
            for _ in range(layers):
                shapes += [(3072, 1024), (3072,), (1024, 1024), (1024,), (4096, 1024), (4096,), (1024, 4096), (1024,)]
                shapes += [(1024,)] * 4
            self.weights = nn.ParameterList(nn.Parameter(torch.zeros(s, device=device)) for s in shapes)

        def forward(self, x):
            return sum((w * x).sum() for w in self.weights)

    return Model()


def ddp(options: argparse.Namespace, device) -> dict[str, object]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from coccl_dsl.torch import transparent

    x = torch.ones((), device=device)
    sizes: list[int] = []

    def watch(state, bucket):
        sizes.append(bucket.buffer().numel())
        future = torch.futures.Future(devices=[device] if device.type == "cuda" else None)
        future.set_result(bucket.buffer())
        return future

    model = DistributedDataParallel(gpt(options.layers, device), gradient_as_bucket_view=True)
    model.register_comm_hook(None, watch)
    for _ in range(2):
        sizes.clear()
        model(x).backward()
    del model
    policy = POLICY.format(arena=256)
    switch(policy)
    model = DistributedDataParallel(gpt(options.layers, device), gradient_as_bucket_view=True)

    def step() -> None:
        model(x).backward()

    def quiet() -> None:
        with model.no_sync():
            model(x).backward()

    for _ in range(3):
        step()
    assert transparent._on is not None
    ops = {b.op.settings.capacity: b.op for s in transparent._on.groups.states.values() for b in s.ops.values()}
    buffers = [torch.randn(n, device=device) for n in sizes]

    def apart() -> None:
        for b in buffers:
            op = ops[1 << (b.numel() - 1).bit_length()]
            op(b, b)

    us = in_turn({"bare": apart, "backward": step, "no_sync": quiet}, device, options.repeats, 3)
    switch(None)
    us |= in_turn({"native_backward": step}, device, options.repeats, 3)
    ratio = (us["backward"] - us["no_sync"]) / us["bare"]
    told = {"parameters": sum(sizes), "buckets": len(sizes), **{f"{k}_us": v for k, v in us.items()}}
    return {**told, "ratio": ratio, "met": ratio <= PATH_BAR}


if __name__ == "__main__":
    raise SystemExit(main())
