"""send_recv bound by two ranks of a larger group: roots mapped, compressors, slices, in-place, faults."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import inputs, same

from coccl_dsl import BindError, simulate
from coccl_dsl.pipeline import load


def raises(kind, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind} with {words!r}")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, n = dist.get_rank(), dist.get_world_size()
    c = load("send_recv")
    odd = dist.new_group([r for r in range(n) if r % 2])
    for q in ("raw", "int8", "int4", "error_feedback(int4)"):
        for dtype in (torch.float32, torch.bfloat16):
            xs = inputs(1, 70_001, dtype, 4)
            if rank == n - 1:
                op = c.bind(like=xs[0], target=0, q=q, depth=2)
                assert op(xs[0]).data_ptr() == xs[0].data_ptr()
            elif rank == 0:
                op = c.bind(like=xs[0], source=n - 1, q=q, depth=2)
                y = torch.zeros_like(xs[0])
                assert op(y).data_ptr() == y.data_ptr()
                assert same(y, simulate(c, [xs[0], xs[0]], q=q)[1])
                assert f"from rank {n - 1}" in op.transport.what and "torch (gloo)" in op.explain()
    # Group ranks, not global ones; both ends may be named; calls of any count within the capacity.
    if rank % 2:
        own = dist.get_rank(odd)
        if own in (0, 1):
            op = c.bind(odd, like=torch.empty(500), source=1, target=0, tag=7)
            for count in (500, 0, 1, 129):
                x = inputs(1, count, torch.float32, count)[0]
                y = x if own == 1 else torch.zeros(count)
                op(y)
                assert same(y, x if own == 1 else simulate(c, [x, x])[1])
    raises(BindError, "say target=", lambda: c.bind(like=torch.empty(4)))
    raises(
        BindError, "neither source", lambda: c.bind(like=torch.empty(4), source=(rank + 1) % n, target=(rank + 2) % n)
    )
    raises(BindError, "both rank", lambda: c.bind(like=torch.empty(4), source=rank))
    raises(BindError, f"source={n}", lambda: c.bind(like=torch.empty(4), source=n))
    raises(BindError, "tag=-1", lambda: c.bind(like=torch.empty(4), target=(rank + 1) % n, tag=-1))
    raises(
        BindError, "all ranks together", lambda: c.bind(like=torch.empty(4), target=(rank + 1) % n, transport="nccl")
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
