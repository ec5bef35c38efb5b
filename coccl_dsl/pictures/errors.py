"""Errors of real data on its way: of what arrives with each send, and of the results. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..codegen.eager import rotate
from ..pipeline import Collective
from ..runtime.simulate import SimTrace, simulate


@dataclass(frozen=True)
class Hop:
    """One wire that arrives. error: root mean square of what it opens to, less the exact sum of the same contributions, relative to that sum's."""

    level: int
    source: int
    target: int
    chunk: int
    lossy: int
    error: float


@dataclass(frozen=True)
class Errors:
    """hops: one for each wire sent. end: relative error of the results of all ranks that promise one; scaled: each element's error in units
    of the exact result's root mean square."""

    hops: list[Hop]
    end: float
    scaled: torch.Tensor


def relative(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the error over that of `exact`; 0 where both are 0."""
    size = float(exact.double().norm())
    off = float((got.double() - exact.double()).norm())
    return off / size if size else (0.0 if not off else float("inf"))


def errors(
    collective: Collective,
    tensors: Sequence[torch.Tensor],
    *,
    mesh: Mapping[str, int] | None = None,
    op: str = "sum",
    root: int = 0,
    seed: int = 0,
    **compressors: Any,
) -> Errors:
    """Run `simulate` on one tensor a rank and compare everything that is sent, and the results, with exact sums."""
    done = simulate(
        collective, tensors, mesh=dict(mesh) if mesh else None, op=op, root=root, seed=seed, trace=True, **compressors
    )
    assert isinstance(done, SimTrace)
    ranks = {"reduce": [root], "send_recv": [1]}.get(collective.kind, range(len(tensors)))
    got = torch.cat([done.outputs[r].double().reshape(-1) for r in ranks])
    exact = torch.cat([done.exact[r].reshape(-1) for r in ranks])
    size = exact.square().mean().sqrt()
    return Errors(_hops(done), relative(got, exact), (got - exact) / (size if size else 1.0))


def _hops(done: SimTrace) -> list[Hop]:
    run, value = done.run, done.value
    if run is None or value is None:
        return []
    inputs = {term[1:3]: number for number, term in enumerate(run.numbers.terms) if term[0] == "input"}
    sums: dict[tuple[int, int], torch.Tensor] = {}
    known: dict[int, float] = {}

    def exact(extent: int, mask: int) -> torch.Tensor:
        if (extent, mask) not in sums:
            parts = [value(inputs[extent, r])[0].double() for r in range(run.world) if mask >> r & 1]
            sums[extent, mask] = torch.stack(parts).sum(0)
        return sums[extent, mask]

    def error(w) -> float:
        if w.number not in known:
            got, basis = value(w.number)
            want = exact(w.extent, w.mask)
            known[w.number] = relative(got, rotate(want.float(), basis) if basis else want)
        return known[w.number]

    return [Hop(m.level, m.source, m.target, w.extent, w.lossy, error(w)) for m in run.messages for w in m.sent]
