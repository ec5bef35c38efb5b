"""Sessions of two groups over gloo: first uses in different orders, one arena for many ops, passes, terms that differ."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import inputs, same

from coccl_dsl import BindError, simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.session import open_session

CPU = torch.device("cpu")
NAMES = ("two_shot", "all_gather_direct", "ring", "reduce_scatter_direct", "all_to_all_direct")


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, n = dist.get_rank(), dist.get_world_size()
    groups = [dist.group.WORLD, dist.new_group(list(range(n)))]
    sessions = [open_session(g, CPU, arena_bytes=200_000, terms={"policy": "a"}) for g in groups]
    assert all(s.transport == "torch" and len(set(s.hosts)) == 1 for s in sessions)

    # Bound in another order on each rank; nothing is exchanged.
    ops = {}
    order = [(i, name) for name in NAMES for i in (0, 1)]
    for i, name in order if rank % 2 else reversed(order):
        ops[i, name] = sessions[i].bind(load(name), dtype=torch.bfloat16, capacity=3 << 17, op="sum")
    assert len({op._executor.arena.data_ptr() for (i, _), op in ops.items() if i == 0}) == 1, "one arena a session"
    for call in range(6):
        for i, name in order:
            count = (3 << 17) - 40 * n * call
            xs = inputs(n, count, torch.bfloat16, seed=call)
            got = ops[i, name](xs[rank])
            assert same(got, simulate(load(name), xs)[rank]), (call, i, name)

    # send_recv between two ranks
    if rank < 2:
        x = inputs(1, 5000, torch.bfloat16, seed=9)[0]
        end = {"target": 1} if rank == 0 else {"source": 0}
        pair = sessions[0].bind(load("send_recv"), dtype=torch.bfloat16, capacity=5000, **end)
        got = pair(x if rank == 0 else torch.empty(5000, dtype=torch.bfloat16))
        if rank == 1:
            assert same(got, simulate(load("send_recv"), [x, torch.empty_like(x)])[1])

    try:
        open_session(groups[1], CPU, arena_bytes=200_000, terms={"policy": "b" if rank == 1 else "a"})
        raise AssertionError("terms that differ were accepted")
    except BindError as e:
        assert "`policy` differs on ranks [1]" in str(e), e
    for wrong, text in (
        ({"transport": "nccl"}, "the session's own"),
        ({"arena_bytes": 5}, "the session's own"),
        ({"nonsense": 5}, "no argument `nonsense`"),
    ):
        try:
            sessions[0].bind(load("two_shot"), dtype=torch.float32, capacity=10, **wrong)
            raise AssertionError(wrong)
        except BindError as e:
            assert text in str(e), e
    dist.barrier()
    if rank == 0:
        print("sessions right")
    dist.destroy_process_group()


if __name__ == "__main__":
    assert "RANK" in os.environ
    main()
