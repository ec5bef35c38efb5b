"""simulate: all ranks of a collective in this process, straight from the meaning of the text. The reference that every transport must equal.

It does not run plans. The checker gave every result a number, a term over inputs; here the term is evaluated on real data: input, sum, trip
through a compressor, cast, turn into a basis. So a fault in lowering, fusing, scheduling, kernels or transports shows as a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..check.values import Trace
from ..codegen.casts import to_dtype
from ..codegen.eager import bounds, compress, rotate
from ..pipeline import World, op_factor, raw_codec
from ..plan.cut import Cut, cut
from ..plan.ops import Buffers, Plan
from ..plan.schedule import alignment_of
from ..wire.codec import Codec
from .dtypes import dtype_name

if TYPE_CHECKING:
    from ..pipeline import Collective

HALF_ULP = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
SMALLEST = {"f32": 2.0**-150, "bf16": 2.0**-134, "f16": 2.0**-25}


@dataclass
class SimState:
    """State of stateful compressors between calls, and the call number. Pass the same object to successive `simulate` calls."""

    call: int = 0
    values: dict[tuple[int, int], dict[str, torch.Tensor]] = field(default_factory=dict)
    version: int = 0
    count: int | None = None

    def begin(self, count: int) -> None:
        """States belong to tensors of one size: as in an op, another count starts afresh."""
        if self.values and self.count != count:
            self.values, self.version = {}, 0
        self.count = count


@dataclass(frozen=True)
class Compression:
    """One compress of a simulated call: which compressor, which chunk (number of the input chunk), largest claimed bound, claims held."""

    compressor: str
    chunk: int
    lossy: int
    bound: float
    holds: bool


@dataclass(frozen=True)
class SimTrace:
    """outputs: one tensor a rank. bounds: float32, same shapes: no element is further from the exact result than this. exact: float64
    results without compression. compressions: every distinct compress. run: the checker's trace (None in a group of one), and value: the
    float32 values of a number of it, with their basis."""

    outputs: list[torch.Tensor]
    bounds: list[torch.Tensor]
    exact: list[torch.Tensor]
    compressions: list[Compression]
    run: Trace | None = None
    value: Callable[[int], tuple[torch.Tensor, int]] | None = None


class _Evaluator:
    def __init__(
        self,
        trace: Trace,
        codecs: dict[str, Codec],
        dtype: str,
        factor: float | None,
        tensors: Sequence[torch.Tensor],
        cuts: list[Cut],
        seed: int,
        state: SimState,
        bounded: bool,
    ):
        self.t, self.codecs, self.dtype, self.factor, self.tensors, self.cuts = (
            trace,
            codecs,
            dtype,
            factor,
            tensors,
            cuts,
        )
        self.state, self.bounded = state, bounded
        self.device = tensors[0].device
        self.rng = torch.tensor([seed, state.call], dtype=torch.int64, device=self.device)
        self.version = torch.tensor([state.version], dtype=torch.int32, device=self.device)
        self.memo: dict[int, tuple[torch.Tensor, int]] = {}
        self.errors: dict[int, torch.Tensor] = {}
        self.new: dict[tuple[int, int], dict[str, torch.Tensor]] = {}
        self.compressions: list[Compression] = []
        self.length_of: dict[int, int] = {}
        self.extent_of: dict[int, int] = {}

    def needs(self, number: int) -> tuple[int, ...]:
        term = self.t.numbers.terms[number]
        return {"sum": term[1:3], "trip": term[2:3], "cast": term[1:2], "turn": term[2:3]}.get(term[0], ())

    def value(self, number: int) -> tuple[torch.Tensor, int]:
        """float32 values and their basis."""
        stack = [number]
        while stack:
            top = stack[-1]
            missing = [n for n in self.needs(top) if n not in self.memo]
            if top in self.memo:
                stack.pop()
            elif missing:
                stack.extend(missing)
            else:
                self.evaluate(top)
                stack.pop()
        return self.memo[number]

    def evaluate(self, number: int) -> None:
        term = self.t.numbers.terms[number]
        match term[0]:
            case "input":
                self.input(number, term[1], term[2])
                return
            case "sum":
                (a, basis), (b, _) = self.memo[term[1]], self.memo[term[2]]
                v = a + b
            case "cast":
                a, basis = self.memo[term[1]]
                v = to_dtype(a, self.dtype).float()
            case "turn":
                a, own = self.memo[term[2]]
                basis = 0 if own else term[1]
                v = rotate(a, term[1])[: self.length_of[term[2]]] if own else rotate(a, term[1])
            case _:
                v, basis = self.trip(number, *term[1:])
        self.memo[number] = (v, basis)
        first = self.needs(number)[0]
        self.length_of[number], self.extent_of[number] = self.length_of[first], self.extent_of[first]
        if self.bounded and term[0] != "trip":
            self.errors[number] = self.error(term, v)

    def input(self, number: int, extent: int, rank: int) -> None:
        position = self.t.input_extents[rank].index(extent)
        at, length = self.cuts[rank].inputs[position], self.cuts[rank].lengths[extent]
        v = self.tensors[rank].reshape(-1)[at : at + length].float()
        if self.factor is not None:
            v = v * torch.full((), self.factor, dtype=torch.float32, device=v.device)
        self.memo[number] = (v, 0)
        self.length_of[number], self.extent_of[number] = length, extent
        if self.bounded:
            self.errors[number] = v.abs() * 2.0**-24 if self.factor is not None else torch.zeros_like(v)

    def trip(self, number: int, name: str, source: int, site: int) -> tuple[torch.Tensor, int]:
        codec = self.codecs[name]
        x, _ = self.memo[source]
        if x.numel() == 0:
            self.errors[number] = torch.zeros_like(x)
            return x, codec.basis
        key = self.t.numbers.key(source)
        states = None
        place = (site, key)
        if codec.stateful:
            states = self.state.values.get(place)
            if states is None:
                whole = -(-x.numel() // codec.group) * codec.group
                kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
                states = {s.name: torch.zeros(whole, dtype=kinds[s.dtype], device=x.device) for s in codec.states}
        done = compress(codec, x, states=states, rng=self.rng, key=key, version=self.version)
        if codec.stateful:
            self.new[place] = done.states
        if self.bounded:
            checks = bounds(codec, x, states=states, rng=self.rng, key=key)
            limits = [c.bound for c in checks if c.bound is not None]
            bound = limits[0] if limits else (done.opened - x).abs()
            self.errors[number] = self.errors[source] + bound
            largest = float(bound[bound.isfinite()].max()) if bound.isfinite().any() else math.inf
            holds = all(bool(c.holds) for c in checks)
            self.compressions.append(Compression(name, self.extent_of[source], 1, largest, holds))
        return done.opened, codec.basis

    def error(self, term: tuple, v: torch.Tensor) -> torch.Tensor:
        """How far v may be from the exact value, elementwise."""
        match term[0]:
            case "sum":
                return self.errors[term[1]] + self.errors[term[2]] + v.abs() * 2.0**-24
            case "cast":
                return self.errors[term[1]] + v.abs() * HALF_ULP[self.dtype] + SMALLEST[self.dtype]
        inner, size = self.errors[term[2]], term[1]
        padded = torch.nn.functional.pad(inner, (0, -inner.numel() % size)).reshape(-1, size)
        spread = padded.sum(1, keepdim=True).expand(-1, size).reshape(-1)[: v.numel()] / math.sqrt(size)
        source = self.memo[term[2]][0].abs()
        peak = torch.nn.functional.pad(source, (0, -source.numel() % size)).reshape(-1, size).sum(1, keepdim=True)
        rounding = peak.expand(-1, size).reshape(-1)[: v.numel()] * (2.0**-22 * math.log2(size))
        return spread + rounding


def world_of(collective: Collective, count: int, mesh: dict[str, int] | None, root: int, op: str) -> World:
    """The world of `count` ranks: one axis, or `mesh` (axis name -> size). Raises ValueError where they do not fit."""
    axes = collective.axes
    if not axes:
        if mesh:
            raise ValueError(f"`{collective.name}` runs on ranks; mesh={mesh} is not available")
        sizes: tuple[int, ...] = (count,)
    else:
        if mesh is None:
            raise ValueError(
                f"`{collective.name}` runs on a mesh: say mesh={{{', '.join(f'{a!r}: ...' for a in axes)}}}"
            )
        if set(mesh) != set(axes):
            raise ValueError(f"mesh={mesh} does not name the axes {', '.join(axes)}")
        sizes = tuple(mesh[a] for a in axes)
        if math.prod(sizes) != count:
            raise ValueError(f"mesh={mesh} has {math.prod(sizes)} ranks, the group {count}")
    if not 0 <= root < count:
        raise ValueError(f"root={root} is not a rank of 0..{count - 1}")
    op_factor(op, count)
    return World(sizes, root, op)


def simulate(
    collective: Collective,
    tensors: Sequence[torch.Tensor],
    *,
    op: str = "sum",
    mesh: dict[str, int] | None = None,
    root: int = 0,
    seed: int = 0,
    trace: bool = False,
    state: SimState | None = None,
    splits: Sequence[Sequence[int]] | None = None,
    min_bytes: int = 0,
    **compressors: str,
) -> list[torch.Tensor] | SimTrace:
    """Run all ranks here, on CPU or CUDA tensors, one a rank, all of one dtype (f32, bf16, f16) and device.

    Returns one output a rank: float tensors of the inputs' dtype; the input's shape for all_reduce, broadcast, reduce, all_to_all and
    send_recv, flat otherwise. For send_recv the tensors are the source's and one of the receiver's shape.

    state   keeps the states of stateful compressors, and the call number, between calls
    splits  all_to_all: splits[i][j] elements go from rank i to rank j
    min_bytes   all_to_all: see `bind`; not with trace=True
    trace   True: a SimTrace with error bounds and exact results instead

    Raises ValueError for arguments that do not fit, CompileError where the text does not prove.
    """
    if isinstance(tensors, torch.Tensor) or not tensors or not all(isinstance(t, torch.Tensor) for t in tensors):
        raise ValueError("simulate takes a list of tensors, one a rank")
    if isinstance(collective, str):
        raise ValueError(f"{collective!r} is a name: give what coccl_dsl.compile({collective!r}) returns")
    dtype = dtype_name(tensors[0].dtype)
    kinds = {(t.dtype, t.device) for t in tensors}
    if len(kinds) > 1:
        raise ValueError(f"the tensors differ in dtype or device: {sorted(map(str, kinds))}")
    counts = {t.numel() for t in tensors}
    if len(counts) > 1 and splits is None:
        raise ValueError(f"the tensors have different numbers of elements: {sorted(counts)}")
    n = len(tensors)
    world = world_of(collective, n, mesh, root, op)
    factor = op_factor(op, n)
    if n == 1:
        return _alone(tensors[0], dtype, factor, trace)
    run = collective.trace(world, dtype=dtype, compressors=compressors)
    program = collective.program(dtype, compressors)
    state = state if state is not None else SimState()
    state.begin(tensors[0].numel())
    codecs = {c.name: c for c in (*program.codecs.values(), raw_codec(dtype))}
    if state.version == 0:
        codecs = {name: c.first or c for name, c in codecs.items()}
    alignment = alignment_of(program, raw_codec(dtype))
    cuts = []
    for rank in range(n):
        columns = None
        if splits is not None:
            columns = (splits[rank], [row[rank] for row in splits])
        cuts.append(cut(_shape_only(collective, run, rank, alignment, dtype), tensors[rank].numel(), columns))
    work = _Evaluator(run, codecs, dtype, factor, tensors, cuts, seed, state, trace)
    plain = None
    if min_bytes:
        if collective.kind != "all_to_all" or trace:
            raise ValueError("min_bytes is for all_to_all, without trace=True")
        raw: dict[str, Any] = dict.fromkeys(program.codecs, "raw")
        plain = simulate(collective, tensors, op=op, mesh=mesh, root=root, splits=splits, **raw)
        assert isinstance(plain, list)
    outputs, limits = [], []
    for rank in range(n):
        out = torch.zeros(cuts[rank].output_count, dtype=torch.float32, device=tensors[0].device)
        limit = torch.zeros_like(out)
        for v, at, extent in zip(run.outputs[rank], cuts[rank].outputs, run.output_extents[rank], strict=True):
            if v is None:
                continue
            got, length = work.value(v.number)[0], cuts[rank].lengths[extent]
            out[at : at + length] = got[:length]
            if trace:
                limit[at : at + length] = work.errors[v.number][:length]
        final = to_dtype(out, dtype)
        for at, extent in zip(cuts[rank].outputs, run.output_extents[rank], strict=True) if plain is not None else ():
            length = cuts[rank].lengths[extent]
            if length * final.element_size() < min_bytes:
                assert plain is not None
                final[at : at + length] = plain[rank].reshape(-1)[at : at + length]
        if factor is None:
            _keep_untouched(final, run, tensors[rank], cuts[rank], rank)
        if trace:
            limit += final.float().abs() * HALF_ULP[dtype] + SMALLEST[dtype]
        keeps = collective.kind not in ("reduce_scatter", "all_gather") and final.numel() == tensors[rank].numel()
        outputs.append(final.reshape(tensors[rank].shape) if keeps else final)
        limits.append(limit)
    state.call += 1
    state.version += 1
    state.values.update(work.new)
    if trace:
        exact = [_exact(collective.kind, tensors, rank, factor, root, cuts) for rank in range(n)]
        return SimTrace(outputs, limits, exact, work.compressions, run, work.value)
    return outputs


def _keep_untouched(final: torch.Tensor, run: Trace, x: torch.Tensor, made: Cut, rank: int) -> None:
    """A chunk that is the rank's own input, untouched, keeps its very bits, those of a NaN too."""
    for i, v in enumerate(run.outputs[rank]):
        if v is not None and v.op == "input":
            source, n = made.inputs[v.args[0]], made.lengths[v.extent]
            final[made.outputs[i] : made.outputs[i] + n] = x.reshape(-1)[source : source + n]


def _alone(x: torch.Tensor, dtype: str, factor: float | None, trace: bool) -> list[torch.Tensor] | SimTrace:
    v = x.float() if factor is None else x.float() * torch.full((), factor, dtype=torch.float32, device=x.device)
    y = to_dtype(v, dtype)
    if not trace:
        return [y]
    return SimTrace([y], [torch.zeros_like(v)], [x.double() * (1.0 if factor is None else factor)], [])


def _shape_only(collective: Collective, run: Trace, rank: int, alignment: int, dtype: str) -> Plan:
    """As much of a plan as `cut` reads."""
    buffers = Buffers(run.input_extents[rank], run.output_extents[rank], ())
    return Plan(
        collective.name,
        collective.kind,
        rank,
        run.world,
        (),
        dtype,
        "sum",
        buffers,
        {},
        {},
        {},
        (),
        alignment=alignment,
    )


def _exact(
    kind: str, tensors: Sequence[torch.Tensor], rank: int, factor: float | None, root: int, cuts: list[Cut]
) -> torch.Tensor:
    """The result in float64, without compression; for `reduce` of every rank, though only the root's is promised."""
    f = 1.0 if factor is None else float(torch.tensor(factor, dtype=torch.float32, device="cpu"))
    flat = [t.reshape(-1).double() * f for t in tensors]
    n = len(flat)
    match kind:
        case "all_reduce" | "reduce":
            return torch.stack(flat).sum(0)
        case "broadcast":
            return flat[root]
        case "all_gather":
            return torch.cat(flat)
        case "reduce_scatter":
            return torch.stack(flat).sum(0).chunk(n)[rank] if flat[0].numel() else flat[0]
        case "all_to_all":
            parts = []
            for source in range(n):
                at, length = cuts[source].inputs[rank], cuts[source].lengths[source * n + rank]
                parts.append(flat[source][at : at + length])
            return torch.cat(parts)
        case _:
            return flat[0]
