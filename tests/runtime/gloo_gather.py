"""One rank: over torch+collectives every shipped reduction and gather equals simulate bit for bit, and issues the all-gathers that its plan has."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import counts_for, inputs, same

from coccl_dsl import simulate
from coccl_dsl.pipeline import load
from coccl_dsl.plan.ops import Exchange
from coccl_dsl.runtime.simulate import SimState

ALGORITHMS = (
    "two_shot",
    "one_shot",
    "ring",
    "all_gather_direct",
    "reduce_scatter_direct",
    "three_shot",
    "all_to_all_direct",
)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
    issued = 0
    for name in ALGORITHMS:
        c = load(name)
        mesh = {"node": 2, "local": n // 2} if c.axes else None
        if c.axes and n % 2:
            continue
        for compressor, depth in (("int8", 1), ("int4", 2), ("raw", 1), ("error_feedback(int4)", 1)):
            names = dict.fromkeys(c.program().codecs, compressor)
            counts = counts_for(c.kind, n, 70001)
            like = torch.empty(max(counts), dtype=torch.bfloat16)
            op = c.bind(like=like, mesh=mesh, transport="torch+collectives", depth=depth, **names)
            state = SimState()
            gathers = sum(bool(s.gather) for s in op.plan.steps if isinstance(s, Exchange))
            seen = []
            gather = op.transport._gather
            op.transport._gather = lambda *a, gather=gather, seen=seen: (seen.append(1), gather(*a))[1]
            for i, count in enumerate(counts):
                xs = inputs(n, count, torch.bfloat16, i)
                if "feedback" in compressor and i:
                    op.reset()
                    state = SimState()
                want = simulate(c, xs, mesh=mesh, state=state, **names)[rank]
                seen.clear()
                assert same(op(xs[rank]), want), (name, compressor, depth, count)
                if count == 70001 * (n if c.kind == "reduce_scatter" else 1):
                    assert bool(gathers) <= len(seen) <= gathers * depth, (name, compressor, len(seen), gathers)
                    issued += len(seen)
    assert issued
    if rank == 0:
        print(f"{issued} all-gathers issued")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
