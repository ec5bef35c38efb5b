"""Sessions of two groups over gloo: first uses in different orders, one arena for many ops, passes, terms that differ,
closing."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from worlds import inputs, same

from coccl_dsl import BindError, CollectiveError, simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.op import Op
from coccl_dsl.runtime.session import Session, open_session

CPU = torch.device("cpu")
NAMES = ("two_shot", "all_gather_direct", "ring", "reduce_scatter_direct", "all_to_all_direct")


def refused(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as e:
        assert text in str(e), e
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")


def closing(sessions: list[Session], ops: dict[tuple[int, str], Op]) -> None:
    """Memory goes, ops say so by name, the other group's go on. No rank waits for another."""
    rank, n = dist.get_rank(), dist.get_world_size()
    first, second = sessions
    stateful = first.bind(
        load("two_shot"), dtype=torch.float32, capacity=500, compressors={"q": "error_feedback(int4)"}
    )
    stateful(torch.ones(500))
    kept = [weakref.ref(op._executor) for op in (stateful, ops[0, "ring"])]
    arena = weakref.ref(first._local)
    if rank == 0:
        first.close()
    dist.barrier()
    first.close()
    first.close()
    gc.collect()
    assert arena() is None and not any(k() for k in kept), "memory is held"
    name = first.group.group_name
    why = f"can no longer be used: the session of group {name!r} was closed"
    x = torch.ones(500)
    for call in (
        lambda: stateful(x),
        lambda: stateful(x, async_op=True),
        lambda: ops[0, "ring"](x.bfloat16()),
        stateful.state_dict,
        stateful.states,
        stateful.reset,
        stateful.flags,
        lambda: stateful.load_state_dict({}),
    ):
        refused(CollectiveError, why, call)
    refused(CollectiveError, "Op(two_shot, rank", lambda: stateful(x))
    assert why in str(stateful.explain())
    refused(
        BindError,
        f"the session of group {name!r} is closed",
        lambda: first.bind(load("ring"), dtype=x.dtype, capacity=9),
    )
    xs = inputs(n, 4000, torch.bfloat16, seed=1)
    assert same(ops[1, "ring"](xs[rank]), simulate(load("ring"), xs)[rank])
    again = open_session(first.group, CPU, arena_bytes=50_000)
    assert same(
        again.bind(load("ring"), dtype=torch.bfloat16, capacity=4000)(xs[rank]), simulate(load("ring"), xs)[rank]
    )
    second.close()
    again.close()


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
    closing(sessions, ops)
    dist.barrier()
    if rank == 0:
        print("sessions right")
    dist.destroy_process_group()


if __name__ == "__main__":
    assert "RANK" in os.environ
    main()
