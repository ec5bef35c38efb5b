"""Checking a program on many worlds, and what is reported of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ..diagnostics import CompileError, Sink
from ..lang.program import Program
from ..wire.codec import Codec
from .prove import prove
from .run import Run
from .values import Trace
from .world import MAX_WORK

DEFAULT_RANKS = tuple((n,) for n in range(2, 9))
DEFAULT_MESHES = ((2, 2), (2, 4), (3, 2), (4, 2))


@dataclass(frozen=True)
class WorldReport:
    """What the checker proved for one world. steps: levels of sends. lossy: quantising steps on the worst path."""

    sizes: tuple[int, ...]
    params: dict[str, int]
    sends: int
    chunks_sent: int
    steps: int
    lossy: int
    same_bits: bool


@dataclass(frozen=True)
class Report:
    """All worlds that were checked, in order."""

    name: str
    kind: str
    worlds: tuple[WorldReport, ...]


def default_worlds(program: Program) -> tuple[tuple[int, ...], ...]:
    if program.kind == "send_recv":
        return ((2,),)
    if not program.is_mesh:
        return DEFAULT_RANKS
    if len(program.axes) == 2:
        return DEFAULT_MESHES
    return (
        tuple((*m, *([2] * (len(program.axes) - 2))) for m in DEFAULT_MESHES)
        if len(program.axes) > 2
        else ((2,), (3,), (4,))
    )


def param_choices(program: Program, sizes: tuple[int, ...], fixed: dict[str, int] | None) -> Iterator[dict[str, int]]:
    """Every root, unless one is fixed; source and target are 0 and 1."""
    if "root" in program.params:
        roots = [fixed["root"]] if fixed and "root" in fixed else range(prod(sizes))
        yield from ({"root": r} for r in roots)
    elif program.params:
        yield {"source": 0, "target": 1}
    else:
        yield {}


def run_world(
    program: Program,
    sizes: tuple[int, ...],
    params: dict[str, int],
    raw: Codec,
    *,
    factor: bool = False,
    limit: int = MAX_WORK,
) -> Trace:
    """Run and prove one world. Raises CompileError."""
    sink = Sink()
    run = Run(program, sizes, params, raw, sink, factor, limit)
    trace = run.run()
    if trace is not None:
        prove(program, run, trace, sink)
    sink.raise_if_any()
    assert trace is not None
    return trace


def world_report(trace: Trace) -> WorldReport:
    return WorldReport(
        trace.sizes, trace.params, trace.sends, trace.chunks_sent, trace.levels, trace.lossy, not trace.divergent
    )


def check_worlds(
    program: Program,
    raw: Codec,
    worlds: tuple[tuple[int, ...], ...] | None = None,
    *,
    fixed: dict[str, int] | None = None,
    factor: bool = False,
    limit: int = MAX_WORK,
) -> Report:
    """Check all worlds (the default ones unless given). Raises CompileError with the errors of the first world that has any."""
    done = []
    for sizes in worlds if worlds is not None else default_worlds(program):
        for params in param_choices(program, sizes, fixed):
            done.append(world_report(run_world(program, sizes, params, raw, factor=factor, limit=limit)))
    return Report(program.name, program.kind, tuple(done))


__all__ = ["CompileError", "Report", "WorldReport", "check_worlds", "default_worlds", "run_world", "world_report"]
