"""Slices x transport x fusing: the same bits over this process (local), over gloo, whole or in slices, fused or not."""

from __future__ import annotations

import itertools
from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import inputs, mesh_for, same

from coccl_dsl import LocalGroup, simulate
from coccl_dsl.pipeline import load


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
    for name in (
        "two_shot",
        "ring",
        "one_shot",
        "halving_doubling",
        "reduce_scatter_direct",
        "all_gather_direct",
        "three_shot",
        "sdp4bit",
    ):
        c = load(name)
        mesh = mesh_for(c, (2, 2))
        bound = dict.fromkeys(c.program().codecs, "int4(round=stochastic)")
        xs = inputs(n, 33000 * (1 if c.kind == "all_gather" else n), torch.bfloat16)
        want = simulate(c, xs, mesh=mesh, **bound)[rank]
        for transport, depth, fuse in itertools.product(("local", "torch"), (1, 2), (True, False)):
            options = {"like": xs[0], "mesh": mesh, "depth": depth, "fuse": fuse, **bound}
            if transport == "torch":
                got = c.bind(transport="torch", **options)(xs[rank])
            else:
                got = c.bind(LocalGroup(n), transport="local", **options)(xs)[rank]
            assert same(got, want), (name, transport, depth, fuse)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
