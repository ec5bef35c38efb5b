"""One row of the benchmark: bind, measure beside NCCL, then compare the whole output with `simulate`."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..pipeline import Collective
from ..runtime.dtypes import TORCH
from ..runtime.op import Op
from ..runtime.simulate import simulate
from ..wire.layout import bits_per_value
from .cases import bus_factor, native, ours, shape_of
from .timing import Timed, buffer_sets, eager, graphed, measure, p2p_rate

# Bytes a microsecond that a device copy moves, read and written (facts/measured.md: 4.2 - 4.3 TB/s).
COPY_RATE = 4.2e6


def opened_bytes(kind: str, size: int, wire: int, world: int) -> int:
    """Bytes that the last decompress of a call reads and writes: what nothing hides when there is one slice."""
    share = {"all_reduce": (world - 1) / world, "reduce_scatter": 2 / world, "send_recv": 1.0}.get(kind, 1.0)
    return int(size * share + wire / (2 if kind == "all_reduce" else 1))


@dataclass
class Row:
    """Times in microseconds, bandwidths in GB/s. ratio: NCCL's time over ours, median of the repeats; ceiling: what the wire's volume allows
    at NCCL's own rate; share: ratio / ceiling; floor_us: over mapped memory wire bytes one way at the link's rate, plus 15 us, plus the last
    decompress at the copy rate where one slice hides nothing; else wire bytes at the rate of NCCL's p2p exchange of a level's bytes, measured in
    the same run (design/runtime.md)."""

    collective: str
    algorithm: str
    compressor: str
    dtype: str
    size: int
    mode: str
    transport: str
    slices: int
    us: float
    spread: float
    nccl_us: float
    nccl_f32_us: float | None
    ratio: float
    ratio_f32: float | None
    algbw: float
    busbw: float
    ceiling: float
    share: float
    wire_bytes: int
    floor_us: float | None
    relative_error: float
    same_as_simulate: bool
    ranks_equal: bool | None
    error: str = ""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.view(torch.int32 if t.element_size() == 4 else torch.int16)


def _everyone(x: torch.Tensor) -> list[torch.Tensor]:
    gathered = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, x)
    return gathered


def _all_true(ok: bool, device: torch.device) -> bool:
    word = torch.tensor([int(ok)], device=device)
    dist.all_reduce(word, op=dist.ReduceOp.MIN)
    return bool(word.item())


def check(
    op: Op, collective: Collective, x: torch.Tensor, y: torch.Tensor, compressors: dict[str, str]
) -> tuple[bool, float, bool | None]:
    """(equal to simulate bit for bit on every rank, relative error against the uncompressed float32 result, ranks hold equal bits or None)."""
    xs = _everyone(x)
    rank = dist.get_rank()
    mesh = op.settings.mesh
    asked: dict[str, Any] = {"op": op.settings.op, "mesh": mesh, "root": op.settings.root, "seed": op.settings.seed}
    asked.update(compressors)
    expected = simulate(collective, xs, **asked)
    assert isinstance(expected, list)
    if collective.kind == "send_recv" and rank == 0:
        same = True
    else:
        same = torch.equal(_bits(expected[rank].reshape(-1)), _bits(y.reshape(-1)))
    exact = {
        "all_reduce": lambda: sum(t.float() for t in xs),
        "reduce_scatter": lambda: sum(t.float().chunk(len(xs))[rank] for t in xs),
        "all_gather": lambda: torch.cat(xs).float(),
        "all_to_all": lambda: torch.cat([t.chunk(len(xs))[rank] for t in xs]).float(),
        "send_recv": lambda: xs[0].float(),
    }[collective.kind]()
    assert isinstance(exact, torch.Tensor)
    got = y if not (collective.kind == "send_recv" and rank == 0) else xs[0]
    error = float((got.reshape(-1).float() - exact).norm() / exact.norm())
    equal: bool | None = None
    if collective.kind in ("all_reduce", "all_gather", "broadcast"):
        equal = all(torch.equal(_bits(t), _bits(y)) for t in _everyone(y))
    return _all_true(same, x.device), error, equal if equal is None else _all_true(equal, x.device)


def run_row(
    collective: Collective,
    compressor: str,
    dtype: str,
    size: int,
    modes: tuple[str, ...],
    *,
    transport: str,
    depth: int | None,
    iterations: int,
    repeats: int,
    link: float,
    baseline_f32: bool,
) -> list[Row]:
    """Rows of one size, one for each mode (graph, eager, eager_same). A wrong result gives a row with an error and no speed."""
    device = torch.device("cuda", torch.cuda.current_device())
    rank, world = dist.get_rank(), dist.get_world_size()
    kind, td = collective.kind, TORCH[dtype]
    shape = shape_of(kind, size, td.itemsize, world)
    sets = buffer_sets(shape.input, shape.output, td, device)
    names = list(collective.program(dtype).codecs)
    compressors = dict.fromkeys(names, compressor)
    options: dict[str, Any] = {"transport": transport, **compressors}
    if depth is not None:
        options["depth"] = depth
    op = collective.bind(like=sets[0][0], **options)
    assert op.plan is not None and op.transport is not None
    call, theirs = ours(op), native(kind, rank)
    codec = op.plan.codecs[names[0]] if names else next(iter(op.plan.codecs.values()))
    wide = None
    if baseline_f32 and dtype != "f32":
        wide = [(torch.randn(shape.input, device=device), torch.zeros(shape.output, device=device))]
    rows = []
    for mode in modes:
        for _, y in sets:
            y.fill_(float("nan"))
        native_sets = [(x, torch.zeros(shape.output, device=device, dtype=td)) for x, _ in sets]
        make = (lambda c, s: graphed(c, s)) if mode == "graph" else (lambda c, s, m=mode: eager(c, s, m == "eager"))
        sides = [Timed("ours", make(call, sets), []), Timed("nccl", make(theirs, native_sets), [])]
        if wide is not None:
            sides.append(Timed("nccl f32", make(theirs, wide), []))
        measure(sides, iterations, repeats)
        x, y = sets[0]
        y.fill_(float("nan"))
        sides[0].runs[0](0)
        torch.cuda.synchronize()
        same, error, equal = check(op, collective, x, y, compressors)
        rows.append(_row(op, collective, codec, compressor, dtype, size, mode, sides, link, same, error, equal))
        del sides, native_sets
        torch.cuda.synchronize()
    return rows


def _row(
    op: Op,
    collective: Collective,
    codec,
    compressor: str,
    dtype: str,
    size: int,
    mode: str,
    sides: list[Timed],
    link: float,
    same: bool,
    error: float,
    equal: bool | None,
) -> Row:
    world = dist.get_world_size()
    assert op.plan is not None and op.transport is not None
    us, nccl = statistics.median(sides[0].us), statistics.median(sides[1].us)
    f32 = statistics.median(sides[2].us) if len(sides) > 2 else None
    ratio = statistics.median(b / a for a, b in zip(sides[0].us, sides[1].us, strict=True))
    ceiling = TORCH[dtype].itemsize * 8 / bits_per_value(codec)
    wire = int(size * bus_factor(collective.kind, world) / ceiling)
    floor = None
    if op.transport.name == "symm":
        floor = wire / (max(link, 335.0) * 1e3) + 15
        if op.slices == 1:
            floor += opened_bytes(collective.kind, size, wire, world) / COPY_RATE
    else:
        floor = wire / (p2p_rate(op.device, max(1, wire // max(op.plan.levels, 1))) * 1e3)
    algbw = size / us / 1e3
    right = same and equal is not False
    return Row(
        collective=collective.kind,
        algorithm=collective.name,
        compressor=compressor,
        dtype=dtype,
        size=size,
        mode=mode,
        transport=op.transport.name,
        slices=op.slices,
        us=us if right else 0.0,
        spread=sides[0].spread,
        nccl_us=nccl,
        nccl_f32_us=f32,
        ratio=ratio if right else 0.0,
        ratio_f32=statistics.median(b / a for a, b in zip(sides[0].us, sides[2].us, strict=True))
        if f32 and right
        else None,
        algbw=algbw if right else 0.0,
        busbw=algbw * bus_factor(collective.kind, world) if right else 0.0,
        ceiling=ceiling,
        share=ratio / ceiling if right else 0.0,
        wire_bytes=wire,
        floor_us=floor,
        relative_error=error,
        same_as_simulate=same,
        ranks_equal=equal,
        error="" if right else "the result differs from simulate" if not same else "ranks differ",
    )
