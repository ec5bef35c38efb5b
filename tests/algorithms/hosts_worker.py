"""One process of two hosts: the algorithms over a mesh, and two_shot, bit for bit; and that the machines are found."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import inputs, same

import coccl_dsl
from coccl_dsl import simulate
from coccl_dsl.pipeline import load


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
    for name in ("two_level", "three_shot", "two_shot"):
        c = load(name)
        mesh = {"node": 2, "local": n // 2} if c.axes else None
        for dtype in (torch.float32, torch.bfloat16):
            for compressors in ({}, dict.fromkeys(c.program().codecs, "raw")):
                op = c.bind(like=torch.empty(100_003, dtype=dtype), mesh=mesh, depth=2, **compressors)
                for count in (1, 100_003):
                    xs = inputs(n, count, dtype, count)
                    assert same(op(xs[rank]), simulate(c, xs, mesh=mesh, **compressors)[rank]), (name, dtype, count)
    x = inputs(n, 1 << 20, torch.float32)
    told = coccl_dsl.explain("all_reduce", x[rank], compressor="int4")
    assert f"2 nodes of {n // 2} ranks" in told, told
    name = told.split(": ")[1].split(",")[0]
    assert name in ("two_level", "three_shot"), told
    c = load(name)
    bound = {k: "int4" for k, q in c.program("f32").codecs.items() if not q.cast}
    want = simulate(c, x, mesh={"node": 2, "local": n // 2}, **bound)[rank]
    assert same(coccl_dsl.all_reduce(x[rank], compressor="int4"), want)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
