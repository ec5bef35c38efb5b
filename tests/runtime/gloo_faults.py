"""Ranks that differ, die or stay away."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from coccl_dsl import BindError, CollectiveError, CollectiveTimeout
from coccl_dsl.pipeline import compile_text, load


def expect(words: list[str], kinds, call) -> None:
    began = time.monotonic()
    try:
        call()
    except kinds as e:
        missing = [w for w in words if w not in str(e)]
        assert not missing, f"{missing} not in: {e}"
        assert time.monotonic() - began < 20
        return
    raise AssertionError("nothing was raised")


def stay_away() -> None:
    """Until rank 0 has noticed."""
    dist.distributed_c10d._get_default_store().wait(["noticed"], timedelta(seconds=60))
    os._exit(0)


def noticed() -> None:
    dist.distributed_c10d._get_default_store().set("noticed", "")
    print("named", flush=True)
    time.sleep(0.5)  # the store is this rank's
    os._exit(0)


def differ(rank: int) -> None:
    c = load("two_shot")
    x = torch.ones(1000)
    expect(["compressors", "ranks [1]"], BindError, lambda: c.bind(like=x, q="int8" if rank == 0 else "int8(group=64)"))
    expect(["capacity", "ranks [1]"], BindError, lambda: c.bind(like=x, capacity=1000 + rank))
    expect(["`op` differs"], BindError, lambda: c.bind(like=x, op="sum" if rank == 0 else "avg"))
    expect(["dtype"], BindError, lambda: c.bind(like=x if rank == 0 else x.bfloat16()))
    text = c.source.text.replace(
        "collective two_shot", "collective two_shot" if rank == 0 else "# changed\ncollective two_shot"
    )
    expect(["collective"], BindError, lambda: compile_text(text, "two_shot.coll").bind(like=x))
    expect(
        ["rank 1", "no_such"] if rank == 0 else ["no_such"],
        BindError,
        lambda: c.bind(like=x, **({"no_such": 1} if rank == 1 else {})),
    )
    y = c.bind(like=x)(x)
    assert y.shape == x.shape
    print("agreed to disagree")


def dead(rank: int) -> None:
    op = load("ring").bind(like=torch.ones(3000))
    op(torch.ones(3000))
    if rank == 2:
        os._exit(0)
    expect(["step", "rank"], CollectiveError, lambda: [op(torch.ones(3000)) for _ in range(3)])
    expect(["step"], CollectiveError, lambda: op(torch.ones(3000)))
    print("named")
    sys.stdout.flush()
    os._exit(0)


def missing(rank: int) -> None:
    op = load("two_shot").bind(like=torch.ones(3000))
    if rank == 1:
        stay_away()
    expect(["step 0", "rank 1"], CollectiveTimeout, lambda: op(torch.ones(3000)))
    noticed()


def unbound(rank: int) -> None:
    if rank == 1:
        stay_away()
    expect(["[1]", "did not bind"], BindError, lambda: load("two_shot").bind(like=torch.ones(10)))
    noticed()


def again(rank: int) -> None:
    """Arguments that are wrong on one rank are told to the other, and the next bind is in step again."""
    like = torch.ones(100, dtype=torch.float64) if rank == 0 else torch.ones(100)
    expect(["float64"], TypeError if rank == 0 else BindError, lambda: load("ring").bind(like=like))
    expect(["like=x"], BindError, lambda: load("ring").bind(like=None if rank == 1 else torch.ones(100)))
    expect(["`fuse` differs"], BindError, lambda: load("ring").bind(like=torch.ones(100), fuse=rank == 0))
    assert abs(load("ring").bind(like=torch.ones(100))(torch.ones(100)).sum() - 200) < 2
    compiled = torch.compile(lambda t: op(t * 2) * 1.0, backend="eager")
    op = load("two_shot").bind(like=torch.ones(100))
    assert torch.equal(compiled(torch.ones(100)), op(torch.full((100,), 2.0)))
    kept = load("all_to_all_direct").bind(like=torch.ones(1000), q="error_feedback(int4)")
    expect(["state for each pair"], ValueError, lambda: kept(torch.ones(8), input_splits=[4, 4], output_splits=[4, 4]))
    # A state that changes on all ranks goes on, one that changes on this rank alone is an error here and a missing peer there.
    op = load("all_gather_direct").bind(like=torch.ones(512), q="weight_delta4")
    x = torch.linspace(-1, 1, 512)
    first, _ = op(x), op(x)
    op.reset()
    assert torch.equal(op(x), first)
    saved = op.state_dict()
    after = op(x)
    op.load_state_dict(saved)
    assert torch.equal(op(x), after)
    if rank == 0:
        op.reset()
    words = ["after reset() or load_state_dict()", "ranks [1]"] if rank == 0 else ["step 0"]
    expect(words, CollectiveError, lambda: op(x))
    print("in step", flush=True)
    stay_away() if rank == 1 else noticed()


def main(what: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds={"missing": 3, "unbound": 3, "again": 5}.get(what, 10)))
    {"differ": differ, "dead": dead, "missing": missing, "unbound": unbound, "again": again}[what](dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
