"""All ranks in this process: a transfer is a copy. For simulation, tests and notebooks; bit-equal to the real thing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..executor import ExchangeCall, Executor


def deliver(calls: list[ExchangeCall]) -> None:
    """Copy what each rank sends at one level to its receivers, messages between two ranks in order."""
    mail: dict[tuple[int, int], list[torch.Tensor]] = {}
    for rank, call in enumerate(calls):
        for parcel in call.sends:
            mail.setdefault((rank, parcel.peer), []).extend(parcel.tensors)
    for rank, call in enumerate(calls):
        for parcel in call.recvs:
            queue = mail[parcel.peer, rank]
            for tensor in parcel.tensors:
                tensor.copy_(queue.pop(0))
    left = {pair for pair, queue in mail.items() if queue}
    assert not left, f"messages nobody received: {left}"


def run_all(
    executors: Sequence[Executor],
    xs: Sequence[torch.Tensor],
    ys: Sequence[torch.Tensor],
    counts: Sequence[int],
    splits=None,
) -> None:
    """One call on all ranks, level by level, slices in turn."""
    prepared = []
    for e, count, rank in zip(executors, counts, range(len(executors)), strict=True):
        e.begin(count)
        prepared.append(e.prepare(count, splits[rank] if splits else None))
    for e, p, x, y in zip(executors, prepared, xs, ys, strict=True):
        e.copy(p, x, y)
    slices = [[steps for one in p.passes for steps in one] for p in prepared]
    for ranks in zip(*slices, strict=True):
        running = [e.run_slice(steps, x, y) for e, steps, x, y in zip(executors, ranks, xs, ys, strict=True)]
        while True:
            calls = [next(r, None) for r in running]
            if all(c is None for c in calls):
                break
            deliver([c for c in calls if c is not None])
    for e, p in zip(executors, prepared, strict=True):
        e.finish(p)
