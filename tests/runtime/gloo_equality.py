"""One process of the gloo equality test: every case over real processes equals `simulate`, bit for bit."""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import counts_for, inputs, mesh_for, same

from coccl_dsl import simulate
from coccl_dsl.pipeline import load

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def main(algorithms: list[str], compressors: list[str], dtypes: list[str], sizes: tuple[int, ...], large: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, n, cases = dist.get_rank(), dist.get_world_size(), 0
    for name in algorithms:
        c = load(name)
        if bool(c.axes) != (len(sizes) > 1):
            continue
        mesh = mesh_for(c, sizes)
        for compressor in compressors:
            bound = dict.fromkeys(c.program().codecs, compressor)
            for dtype in dtypes:
                counts = counts_for(c.kind, n, large)
                op = c.bind(like=torch.empty(max(counts), dtype=DTYPES[dtype]), mesh=mesh, **bound)
                for i, count in enumerate(counts):
                    xs = inputs(n, count, DTYPES[dtype], i)
                    want = simulate(c, xs, mesh=mesh, **bound)[rank]
                    got = op(xs[rank])
                    assert same(got, want), (name, compressor, dtype, count, rank)
                    cases += 1
    print(f"{cases} cases")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(
        sys.argv[1].split(","),
        sys.argv[2].split(","),
        sys.argv[3].split(","),
        tuple(int(s) for s in sys.argv[4].split("x")),
        int(sys.argv[5]),
    )
