"""One world: its ranks with their integers, buffers and names, how indices are taken, and what the header fixes about chunks."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from ..diagnostics import Sink, Span
from ..lang.program import BufferRef, BufferSpec, Index, IntExpr, Program, VarRef, VarSpec
from ..wire.codec import Codec
from .values import Numbers, Trace, Value

# Over all ranks: statements run and chunks moved, and chunks of all buffers.
MAX_WORK = 2_000_000
MAX_CHUNKS = 1 << 20


class Fault(Exception):
    """A statement failed on one rank; it was reported, the run goes on without it."""


# What a place holds after the statement that should fill it failed: reading it says nothing more.
POISON: Any = Value("poison", (), -1, -1, 0, 0, 0)


class Rank:
    """vars[id] is (shape, items) of a name, None where it has no value, or POISON."""

    __slots__ = ("id", "ints", "buffers", "writers", "vars")

    def __init__(self, id: int, ints: list[Any], buffers: list[list[Value | None]], vars: int):
        self.id, self.ints, self.buffers = id, ints, buffers
        self.writers: list[list[Span | None]] = [[None] * len(b) for b in buffers]
        self.vars: list[tuple[tuple[int, ...], list[Any]] | None] = [None] * vars


class World:
    def __init__(
        self, program: Program, sizes: tuple[int, ...], params: dict[str, int], raw: Codec, sink: Sink, limit: int
    ):
        self.p, self.sizes, self.params, self.sink = program, sizes, params, sink
        self.world = prod(sizes)
        self.codecs = {**program.codecs, "": raw}
        self.numbers = Numbers()
        self.work, self.limit, self.chunks = 0, limit, 0
        self.loops: list[tuple[str, int]] = []
        self.coordinates = list(product(*(range(s) for s in sizes)))

    def spend(self, work: int, span: Span) -> None:
        self.work += work
        if self.work > self.limit:
            self.too_long(span)

    def too_long(self, span: Span) -> None:
        message = f"the text runs more than {self.limit} statements over all ranks{self.where()}"
        self.sink.error("E312", message, span, help="count the turns of the loops around it")
        raise Fault

    def int_of(self, e: IntExpr, ints: list[Any], rank: int | None = None) -> int:
        try:
            v = e.run(ints)
        except (ZeroDivisionError, ValueError) as fault:
            reason = "division by zero" if isinstance(fault, ZeroDivisionError) else str(fault)
            self.sink.error("E311", f"{reason}{self.where(rank)}", e.culprit(ints).span)
            raise Fault from None
        except TypeError:
            message = f"`{e.span.text}` has no value on a rank that sits out here{self.where(rank)}"
            self.sink.error(
                "E306", message, e.span, help="a rank that `when` leaves out still receives, and needs it to"
            )
            raise Fault from None
        if not -(1 << 62) <= v <= 1 << 62:
            self.sink.error("E106", f"the value of `{e.span.text}` leaves -2^62 .. 2^62{self.where(rank)}", e.span)
            raise Fault
        return v

    def where(self, rank: int | None = None) -> str:
        names = [f"{n} = {v}" for (_, _, n), v in zip(self.p.axes, self.sizes, strict=True)]
        names += [f"root = {self.params['root']}"] if "root" in self.params else []
        names += [f"{n} = {v}" for n, v in self.loops]
        if rank is not None and len(self.sizes) > 1:
            names = [f"rank {rank} = {self.coordinates[rank]}", *names]
        elif rank is not None:
            names = [f"rank {rank}", *names]
        return f" ({', '.join(names)})"

    def dims_of(self, spec: BufferSpec | VarSpec, ints: list[int]) -> tuple[int, ...]:
        found = tuple(self.int_of(d, ints) for d in spec.dims or ())
        chunks = prod(found)
        if any(v < 0 for v in found) or (chunks == 0 and isinstance(spec, BufferSpec) and spec.role != "scratch"):
            self.sink.error("E214", f"`{spec.name}` has {' x '.join(map(str, found))} chunks{self.where()}", spec.span)
            raise Fault
        self.chunks += chunks * self.world
        if self.chunks > MAX_CHUNKS:
            message = f"more than {MAX_CHUNKS} chunks in the buffers of all ranks{self.where()}"
            self.sink.error("E312", message, spec.span, help="a buffer's size is a number of chunks, not of elements")
            raise Fault
        return found

    def set_up(self) -> None:
        p, n = self.p, self.world
        base = [0] * p.slots
        for i, s in enumerate(self.sizes):
            base[len(self.sizes) + i] = s
        for name, slot in p.params.items():
            base[slot] = self.params[name]
        for slot, e in p.sizes:
            base[slot] = self.int_of(e, base)
        self.shapes = [self.dims_of(b, base) for b in p.buffers]
        self.var_dims = {v.id: self.dims_of(v, base) for v in p.vars if v.dims is not None}
        roles = {b.role: b for b in p.buffers if b.role != "scratch"}
        source = roles.get("inout") or roles["in"]
        target = roles.get("inout") or roles["out"]
        self.source, self.target = source, target
        self.check_chunks(source, target)
        sent, got = prod(self.shapes[source.id]), prod(self.shapes[target.id])
        input_extents, output_extents = [], []
        for r in range(n):
            input_extents.append(tuple(self.input_extent(r, i) for i in range(sent)))
            output_extents.append(tuple(self.output_extent(r, i) for i in range(got)))
        chunks = {"all_gather": n, "all_to_all": n * n, "send_recv": sent}.get(p.kind, sent)
        self.trace = Trace(
            n, self.sizes, self.coordinates, self.params, self.numbers, chunks, input_extents, output_extents
        )
        self.ranks: list[Rank] = []
        for r in range(n):
            ints = list(base)
            ints[: len(self.sizes)] = self.coordinates[r]
            buffers: list[list[Value | None]] = []
            for b, shape in zip(p.buffers, self.shapes, strict=True):
                if b is not source:
                    buffers.append([None] * prod(shape))
                    continue
                if p.kind == "send_recv" and r != self.params["source"]:
                    buffers.append([None] * prod(shape))
                    continue
                values: list[Value | None] = []
                for i, extent in enumerate(input_extents[r]):
                    values.append(Value("input", (i,), self.numbers.intern(("input", extent, r)), extent, 1 << r, 0, 0))
                buffers.append(values)
            self.ranks.append(Rank(r, ints, buffers, len(p.vars)))

    def input_extent(self, rank: int, i: int) -> int:
        """Which chunk of the collective chunk i of this rank's input is."""
        if self.p.kind == "all_gather":
            return rank
        if self.p.kind == "all_to_all":
            return rank * self.world + i
        return i

    def output_extent(self, rank: int, i: int) -> int:
        if self.p.kind == "reduce_scatter":
            return rank
        if self.p.kind == "all_to_all":
            return i * self.world + rank
        return i

    def check_chunks(self, source: BufferSpec, target: BufferSpec) -> None:
        n, kind = self.world, self.p.kind
        want = {"reduce_scatter": (n, 1), "all_gather": (1, n), "all_to_all": (n, n)}.get(kind)
        have = (prod(self.shapes[source.id]), prod(self.shapes[target.id]))
        for b, w, h in zip((source, target), want or have, have, strict=True):
            if w != h:
                self.sink.error(
                    "E214", f"`{b.name}` of {kind} has one chunk a rank, {w}; here it has {h}{self.where()}", b.span
                )
                raise Fault
        if kind == "send_recv" and n != 2:
            self.sink.error("E314", f"send_recv is between 2 ranks, not {n}", self.p.syntax.kind_span)
            raise Fault
        if kind == "send_recv" and have[0] != have[1]:
            self.sink.error(
                "E214", f"`{source.name}` and `{target.name}` have {have[0]} and {have[1]} chunks", target.span
            )
            raise Fault

    # ------------------------------------------------------------ indices

    def spots(self, ref: BufferRef | VarRef, r: Rank) -> list[int]:
        """Flat positions that an assignment or a receive writes."""
        if isinstance(ref, BufferRef):
            return self.select(ref, ref.index, self.shapes[ref.buffer.id], r)[1]
        dims = self.var_dims.get(ref.var.id, ())
        if ref.index is None:
            return list(range(prod(dims)))
        return self.select(ref, ref.index, dims, r)[1]

    def select(
        self, ref: BufferRef | VarRef, index: tuple[Index, ...], dims: tuple[int, ...], r: Rank
    ) -> tuple[tuple[int, ...], list[int]]:
        """Shape and flat positions of an index: single positions drop their axis."""
        spots, shape = [0], []
        for axis, (ix, size) in enumerate(zip(index, dims, strict=True)):
            if isinstance(ix, IntExpr):
                at = self.int_of(ix, r.ints, r.id)
                if not 0 <= at < size:
                    self.out_of_range(ref, f"index {at}", axis, size, ix.span, r)
                spots = [b * size + at for b in spots]
                continue
            low, high = 0, size
            if ix is not None:
                low, high = self.int_of(ix[0], r.ints, r.id), self.int_of(ix[1], r.ints, r.id)
                if not 0 <= low <= high <= size:
                    self.out_of_range(ref, f"{low} : {high}", axis, size, ix[0].span.to(ix[1].span), r)
            self.spend(len(spots) * (high - low), ref.span)
            spots = [b * size + k for b in spots for k in range(low, high)]
            shape.append(high - low)
        return tuple(shape), spots

    def out_of_range(self, ref: BufferRef | VarRef, what: str, axis: int, size: int, span: Span, r: Rank) -> None:
        spec = ref.buffer if isinstance(ref, BufferRef) else ref.var
        help = ""
        if spec.dims and " : " not in what and size > 0:
            help = f"`({span.text}) mod {spec.dims[axis].span.text}` wraps around"
        has = f"0..{size - 1}" if size > 1 else "0 alone" if size else "nothing"
        self.sink.error("E310", f"{what} of `{spec.name}`, which has {has}{self.where(r.id)}", span, help=help)
        raise Fault
