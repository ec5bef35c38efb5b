"""What the transparent path costs: against the bare op, against native calls that it lets pass, and through DDP.

    python benchmarks/torch_path.py --json benchmarks/results/torch_path.json        # two GPUs two minutes, one GPU four

    overhead  host time of 4-KiB all_reduces, 10,000 each in turn (bar: 10 us more): native; with a rule that matches nothing, as no group has its
              role (the op is then not looked at); and with one for larger tensors
    host      host time of 64-KiB all_reduces, native, of the bare op, and under a policy
    path      dist.all_reduce under a policy, and the bare op, 256 MiB bf16 (bar: within 5 %)
    ddp       buckets of a 350M GPT: bare ops one after the other, and what a backward takes more than one that does not communicate (bar: 5 %)

Sides take turns in one process. Host times are from call to return, medians over all calls; the device is waited for between blocks of calls, outside
the time. Others are the largest over ranks of medians of blocks. `--device cpu --mib 4` tries it out over gloo.

On one GPU two ranks share it, over sockets of the loopback (about 1.9 GB/s), and their processes take turns: host times and ratios of two of ours
mean what they mean on two GPUs; times of transfers, and ratios to native, do not. path is of 64 MiB there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

MIB = 1 << 20
POLICY = """
arena_mib = {arena}
[[rule]]
on = "*.all_reduce"
compressor = "int8"
"""
NOTHING = '[[rule]]\non = "cp.all_reduce"\ncompressor = "int8"\n'
LARGE = '[[rule]]\non = "*.all_reduce"\nmin_bytes = "1MiB"\ncompressor = "int8"\n'
PATH_BAR, HOST_BAR_US = 1.05, 10.0


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", type=Path, default=Path("benchmarks/results/torch_path.json"))
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    p.add_argument("--mib", type=int, default=0, help="size of path's all_reduce (default: 256, on one GPU 64)")
    p.add_argument("--calls", type=int, default=10_000, help="small calls a side")
    p.add_argument("--layers", type=int, default=24, help="of the GPT, 1024 wide")
    p.add_argument("--repeats", type=int, default=5)
    options = p.parse_args()
    if "RANK" in os.environ:
        return worker(options)
    import torch

    gpus = torch.cuda.device_count()
    if options.device == "cuda" and not gpus:
        print("torch_path: needs a GPU; --device cpu tries it out", file=sys.stderr)
        return 1
    from coccl_dsl.cli.bench import start_processes

    return start_processes([sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]], 2, sockets=gpus == 1)


def worker(options: argparse.Namespace) -> int:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from coccl_dsl.cli.bench import provenance

    cuda = options.device == "cuda"
    shared = cuda and torch.cuda.device_count() < 2
    options.mib = options.mib or (64 if shared else 256)
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    told = {"device_id": device} if cuda else {}
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=120), **told)
    rows: dict[str, dict[str, object]] = {}
    for name in options.rows:
        began = time.perf_counter()
        rows[name] = {**ROWS[name](options, device), "seconds": time.perf_counter() - began}
        if dist.get_rank() == 0:
            values = (f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[name].items())
            print(f"{name:<9}" + "   ".join(values), flush=True)
    missed = [name for name, row in rows.items() if not row.get("met", True)]
    if dist.get_rank() == 0:
        document = provenance("python benchmarks/torch_path.py " + " ".join(sys.argv[1:])) if cuda else {}
        links = "two ranks share a GPU, over sockets of the loopback" if shared else "a GPU a rank" if cuda else "gloo"
        document |= {"ranks": 2, "links": links, **rows}
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


def host_times(
    sides: dict[str, tuple[Callable[[], None], Callable[[], object]]], device, calls: int, between: int
) -> dict[str, float]:
    """Microseconds from call to return: medians over all calls of this rank. sides: what puts a side in force, and its call; they take turns in
    blocks. After `between` calls the device is waited for, outside the time, so that no queue fills up."""
    import torch.distributed as dist

    found: dict[str, list[int]] = {name: [] for name in sides}
    block = 10 * between
    for _ in range(max(1, calls // block)):
        for name, (prepare, run) in sides.items():
            prepare()
            for _ in range(20):
                run()
            for i in range(block):
                if i % between == 0:
                    sync(device)
                    dist.barrier()
                began = time.perf_counter_ns()
                run()
                found[name].append(time.perf_counter_ns() - began)
    sync(device)
    return {name: statistics.median(v) / 1e3 for name, v in found.items()}


def overhead(options: argparse.Namespace, device) -> dict[str, object]:
    import torch
    import torch.distributed as dist

    x = torch.zeros(1024, device=device)

    def call() -> None:
        dist.all_reduce(x)

    policies = {"native": None, "no_group": NOTHING, "too_small": LARGE}
    sides = {name: (partial(switch, policy), call) for name, policy in policies.items()}
    us = host_times(sides, device, options.calls, 50)
    switch(None)
    more = {f"{name}_more_us": us[name] - us["native"] for name in ("no_group", "too_small")}
    told = {"calls": options.calls, **{f"{k}_us": v for k, v in us.items()}, **more}
    return {**told, "met": max(more.values()) <= HOST_BAR_US}


def host(options: argparse.Namespace, device) -> dict[str, object]:
    import torch
    import torch.distributed as dist

    x = torch.zeros(1 << 15, device=device).bfloat16()
    op = bare(device, x.numel(), torch.bfloat16, 16)

    def call() -> None:
        dist.all_reduce(x, dist.ReduceOp.AVG)

    def stay() -> None:
        pass

    calls = max(250, options.calls // 10)
    us = host_times({"bare": (stay, lambda: op(x, x)), "transparent": (stay, call)}, device, calls, 25)
    switch(None)
    us |= host_times({"native": (stay, lambda: dist.all_reduce(x))}, device, calls, 25)
    return {"calls": calls, **{f"{k}_us": v for k, v in us.items()}, "more_us": us["transparent"] - us["bare"]}


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


ROWS: dict[str, Callable[[argparse.Namespace, Any], dict[str, object]]] = {
    "overhead": overhead,
    "host": host,
    "path": path,
    "ddp": ddp,
}

if __name__ == "__main__":
    raise SystemExit(main())
