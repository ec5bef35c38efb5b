"""The lockstep run: one world, all ranks, abstract values. Finds what is wrong while running; `prove` judges how it ended.

Each statement is one instant: all values are taken on all active ranks, then all names and chunks change.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from ..diagnostics import Sink, Span
from ..lang.program import (
    Add,
    BufferRef,
    BufferSpec,
    Close,
    Index,
    IntExpr,
    LetInt,
    LetValue,
    Loop,
    Mask,
    Open,
    PhaseBlock,
    Program,
    SendTo,
    Statement,
    Store,
    ValueExpr,
    VarRef,
)
from ..wire.codec import Codec
from .values import Message, Numbers, Trace, Value, Wire

MAX_STATEMENTS = 2_000_000
BARE = "raw"
MAX_CHUNKS = 1 << 20


class Fault(Exception):
    """A statement failed on one rank; it was reported, the run goes on without it."""


# What a name holds after the send that should fill it failed: reading it says nothing more.
_POISON: Any = ("poison",)


class _Rank:
    __slots__ = ("id", "ints", "buffers", "writers", "vars")

    def __init__(self, id: int, ints: list[int], buffers: list[list[Value | None]], vars: int):
        self.id, self.ints, self.buffers = id, ints, buffers
        self.writers: list[list[Span | None]] = [[None] * len(b) for b in buffers]
        # a var holds (shape, items) or None
        self.vars: list[tuple[tuple[int, ...], list[Any]] | None] = [None] * vars


class Run:
    """Runs `program` on a world. After `run()`, `trace` is complete unless `sink` has errors."""

    def __init__(
        self,
        program: Program,
        sizes: tuple[int, ...],
        params: dict[str, int],
        raw: Codec,
        sink: Sink,
        factor: bool = False,
    ):
        self.p, self.sizes, self.params, self.sink, self.factor = program, sizes, params, sink, factor
        self.world = prod(sizes)
        self.codecs = {**program.codecs, "": raw}
        self.numbers = Numbers()
        self.executed = 0
        self.loops: list[tuple[str, int]] = []
        self.stateful_seen: dict[tuple[int, int, int], int] = {}
        self.closed: dict[tuple[int, str, int, int], Wire] = {}
        self.coordinates = list(product(*(range(s) for s in sizes)))
        self.lossless = program.dtype == "f32"

    # ------------------------------------------------------------ set-up

    def int_of(self, e: IntExpr, ints: list[int], rank: int | None = None) -> int:
        try:
            v = e.run(ints)
        except (ZeroDivisionError, ValueError) as fault:
            reason = "division by zero" if isinstance(fault, ZeroDivisionError) else str(fault)
            span = _culprit(e, ints, self.p)
            self.sink.error("E311", f"{reason}{self.where(rank)}", span)
            raise Fault from None
        if not -(1 << 62) <= v <= 1 << 62:
            self.sink.error("E106", f"the value of `{e.span.text}` leaves -2^62 .. 2^62{self.where(rank)}", e.span)
            raise Fault
        return v

    def where(self, rank: int | None = None) -> str:
        names = [f"{n} = {v}" for (_, _, n), v in zip(self.p.axes, self.sizes, strict=True)]
        names += [f"{n} = {v}" for n, v in self.loops]
        if rank is not None and len(self.sizes) > 1:
            names = [f"rank {rank} = {self.coordinates[rank]}", *names]
        elif rank is not None:
            names = [f"rank {rank}", *names]
        return f" ({', '.join(names)})"

    def dims_of(self, dims: tuple[IntExpr, ...], ints: list[int]) -> tuple[int, ...]:
        found = tuple(self.int_of(d, ints) for d in dims)
        for d, v in zip(dims, found, strict=True):
            if v < 0 or prod(found) > MAX_CHUNKS:
                self.sink.error("E214", f"{v} chunks{self.where()}", d.span)
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
        self.shapes = [self.dims_of(b.dims, base) for b in p.buffers]
        self.var_dims = {v.id: self.dims_of(v.dims, base) for v in p.vars if v.dims is not None}
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
        self.ranks: list[_Rank] = []
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
            self.ranks.append(_Rank(r, ints, buffers, len(p.vars)))

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

    # ------------------------------------------------------------ statements

    def run(self) -> Trace | None:
        """The trace, or None when an error was reported."""
        try:
            self.set_up()
            self.block(self.p.body, self.ranks)
        except Fault:
            return None
        if self.sink.found:
            return None
        t = self.trace
        t.outputs = [r.buffers[self.target.id] for r in self.ranks]
        t.writers = [r.writers[self.target.id] for r in self.ranks]
        t.levels = max((m.level + 1 for m in t.messages), default=0)
        t.lossy = max((v.lossy for out in t.outputs for v in out if v is not None), default=0)
        return t

    def block(self, body: tuple[Statement, ...], active: list[_Rank]) -> None:
        for s in body:
            self.executed += len(active) + 1
            if self.executed > MAX_STATEMENTS:
                self.sink.error("E312", f"more than {MAX_STATEMENTS} statements over all ranks{self.where()}", s.span)
                raise Fault
            try:
                self.statement(s, active)
            except Fault:
                if len(self.sink.found) >= Sink.LIMIT:
                    raise

    def statement(self, s: Statement, active: list[_Rank]) -> None:
        match s:
            case SendTo():
                self.send(s, active)
            case Store():
                self.store(s, active)
            case LetInt():
                for r in active:
                    r.ints[s.slot] = self.int_of(s.value, r.ints, r.id)
            case LetValue():
                found = [(r, self.shaped(s.value, r)) for r in active]
                for r in self.ranks:
                    r.vars[s.var.id] = None
                for r, v in found:
                    r.vars[s.var.id] = v
            case Loop():
                self.loop(s, active)
            case Mask():
                self.block(s.body, [r for r in active if self.int_of(s.test, r.ints, r.id)])
            case PhaseBlock():
                self.block(s.body, active)

    def loop(self, s: Loop, active: list[_Rank]) -> None:
        if not active:
            return
        ints = active[0].ints
        low = self.int_of(s.low, ints) if s.low is not None else 0
        high = self.int_of(s.high, ints)
        self.loops.append((s.name, low))
        try:
            for i in range(low, high):
                self.loops[-1] = (s.name, i)
                for r in active:
                    r.ints[s.slot] = i
                self.block(s.body, active)
        finally:
            self.loops.pop()

    def store(self, s: Store, active: list[_Rank]) -> None:
        target = s.target
        pending = []
        for r in active:
            items = self.shaped(s.value, r)[1]
            spots = self.spots(target, r)
            items = self.match(items, spots, s.span, r)
            if isinstance(target, BufferRef):
                row = r.buffers[target.buffer.id]
                basis = target.buffer.basis
                for spot, v in zip(spots, items, strict=True):
                    if s.accumulate:
                        v = self.accumulate(row[spot], v, s, target, spot, r)
                    pending.append((row, spot, self.turned(v, basis), r.writers[target.buffer.id]))
            else:
                held = r.vars[target.var.id]
                if held is None or held is _POISON:
                    shape = self.var_dims.get(target.var.id, ())
                    held = r.vars[target.var.id] = (shape, [None] * prod(shape))
                for spot, v in zip(spots, items, strict=True):
                    pending.append((held[1], spot, v, None))
        for row, spot, v, writers in pending:
            row[spot] = v
            if writers is not None:
                writers[spot] = s.span

    def match(self, items: list[Any], spots: list[int], span: Span, r: _Rank) -> list[Any]:
        if len(items) != len(spots):
            self.sink.error(
                "E209", f"{len(spots)} chunks on the left, {len(items)} on the right{self.where(r.id)}", span
            )
            raise Fault
        return items

    def accumulate(self, old: Value | None, new: Value, s: Store, target: BufferRef, spot: int, r: _Rank) -> Value:
        if old is None:
            self.sink.error(
                "E306",
                f"chunk {spot} of `{target.buffer.name}` is added to before it has a value{self.where(r.id)}",
                s.target.span,
            )
            raise Fault
        if old.extent != new.extent:
            self.sink.error(
                "E301",
                f"rank {r.id} adds chunk {new.extent} into chunk {old.extent}{self.where(r.id if len(self.sizes) > 1 else None)}",
                s.target.span,
                label=f"`{s.value.span.text}` is chunk {new.extent} here",
            )
            raise Fault
        return self.add(old, new, s.span, r, old.basis)

    def add(self, a: Value, b: Value, span: Span, r: _Rank, basis: int) -> Value:
        if a.extent != b.extent:
            self.sink.error("E301", f"rank {r.id} adds chunk {b.extent} to chunk {a.extent}{self.where()}", span)
            raise Fault
        if a.mask & b.mask:
            twice = (a.mask & b.mask).bit_length() - 1
            self.sink.error(
                "E302",
                f"rank {r.id} adds the contribution of rank {twice} to chunk {a.extent} a second time{self.where()}",
                span,
            )
            raise Fault
        a, b = self.turned(a, basis), self.turned(b, basis)
        return Value(
            "add",
            (a, b),
            self.numbers.sum(a.number, b.number),
            a.extent,
            a.mask | b.mask,
            max(a.lossy, b.lossy),
            max(a.level, b.level),
            basis,
        )

    def turned(self, v: Value, basis: int) -> Value:
        if v.basis == basis:
            return v
        number = self.numbers.intern(("turn", basis or v.basis, v.number))
        return Value("turn", (v,), number, v.extent, v.mask, v.lossy, v.level, basis)

    def send(self, s: SendTo, active: list[_Rank]) -> None:
        try:
            self._send(s, active)
        except Fault:
            if isinstance(s.target, VarRef):
                for r in self.ranks:
                    r.vars[s.target.var.id] = _POISON
            raise

    def _send(self, s: SendTo, active: list[_Rank]) -> None:
        posted: list[tuple[_Rank, int, tuple[int, ...], list[Any]]] = []
        taken: dict[int, int] = {}
        if s.fresh:
            assert isinstance(s.target, VarRef)
            for r in self.ranks:
                r.vars[s.target.var.id] = None
        for r in active:
            shape, items = self.shaped(s.payload, r)
            peer = self.peer(s, r)
            if peer in taken:
                self.sink.error(
                    "E304",
                    f"ranks {taken[peer]} and {r.id} both send to rank {peer}{self.where()}",
                    s.dest_span,
                    label="a statement delivers one message to each rank",
                )
                raise Fault
            taken[peer] = r.id
            posted.append((r, peer, shape, items))
        bare = s.payload.type.wire is None
        wires = [[self.close("", v, -1, r) for v in items] if bare else items for r, _, _, items in posted]
        crossing = [i for i, (r, peer, _, _) in enumerate(posted) if peer != r.id]
        level = max((w.level for i in crossing for w in wires[i]), default=0)
        deliveries = []
        for i, (r, peer, shape, _) in enumerate(posted):
            arrived: list[Any] = wires[i]
            if peer != r.id:
                message = Message(level, r.id, peer, tuple(wires[i]), (), s.axis, self.executed, s.span)
                message.received = tuple(w.arrive(message, k) for k, w in enumerate(wires[i]))
                self.trace.messages.append(message)
                arrived = list(message.received)
            if bare:
                arrived = [self.open(w) for w in arrived]
                basis = s.payload.type.basis
                arrived = [self.turned(v, basis) for v in arrived]
            deliveries.append((self.ranks[peer], shape, arrived))
        for r, shape, items in deliveries:
            self.deliver(s, r, shape, items)

    def deliver(self, s: SendTo, r: _Rank, shape: tuple[int, ...], items: list[Any]) -> None:
        if isinstance(s.target, BufferRef):
            spots = self.spots(s.target, r)
            row, writers = r.buffers[s.target.buffer.id], r.writers[s.target.buffer.id]
            for spot, v in zip(spots, self.match(items, spots, s.span, r), strict=True):
                row[spot], writers[spot] = self.turned(v, s.target.buffer.basis), s.span
            return
        var = s.target.var
        if var.dims is None:
            r.vars[var.id] = (shape, items)
            return
        spots = self.spots(s.target, r)
        dims = self.var_dims[var.id]
        held = r.vars[var.id]
        if held is None or held is _POISON:
            held = (dims, [None] * prod(dims))
        for spot, v in zip(spots, self.match(items, spots, s.span, r), strict=True):
            held[1][spot] = v
        r.vars[var.id] = held

    def peer(self, s: SendTo, r: _Rank) -> int:
        at = [self.int_of(e, r.ints, r.id) for e in s.coordinates]
        full = list(self.coordinates[r.id])
        if s.axis >= 0:
            full[s.axis] = at[0]
        else:
            full = at
        for v, size, (axis, _, _) in zip(full, self.sizes, self.p.axes, strict=True):
            if not 0 <= v < size:
                place = f"position {v} on axis `{axis}`" if axis else f"rank {v}"
                self.sink.error(
                    "E305",
                    f"rank {r.id} sends to {place}, which is not in 0..{size - 1}{self.where()}",
                    s.dest_span,
                    help=f"`mod {self.size_name(s.axis)}` keeps it in range",
                )
                raise Fault
        index = 0
        for v, size in zip(full, self.sizes, strict=True):
            index = index * size + v
        return index

    def size_name(self, axis: int) -> str:
        return self.p.axes[max(axis, 0)][2]

    # ------------------------------------------------------------ values

    def spots(self, ref: BufferRef | VarRef, r: _Rank) -> list[int]:
        """Flat positions that an assignment target names."""
        if isinstance(ref, BufferRef):
            return self.select(ref.index, self.shapes[ref.buffer.id], ref.span, r)[1]
        dims = self.var_dims.get(ref.var.id, ())
        if ref.index is None:
            return list(range(prod(dims)))
        return self.select(ref.index, dims, ref.span, r)[1]

    def select(
        self, index: tuple[Index, ...], dims: tuple[int, ...], span: Span, r: _Rank
    ) -> tuple[tuple[int, ...], list[int]]:
        """Shape and flat positions of an index: single positions drop their axis."""
        spots, shape = [0], []
        for ix, size in zip(index, dims, strict=True):
            if ix is None:
                low, high = 0, size
            elif isinstance(ix, tuple):
                low, high = self.int_of(ix[0], r.ints, r.id), self.int_of(ix[1], r.ints, r.id)
                if not 0 <= low <= high <= size:
                    self.sink.error(
                        "E310", f"{low} : {high} is not within 0 : {size}{self.where(r.id)}", ix[0].span.to(ix[1].span)
                    )
                    raise Fault
            else:
                low = self.int_of(ix, r.ints, r.id)
                if not 0 <= low < size:
                    self.sink.error("E310", f"index {low} is not in 0..{size - 1}{self.where(r.id)}", ix.span)
                    raise Fault
                spots = [b * size + low for b in spots]
                continue
            spots = [b * size + k for b in spots for k in range(low, high)]
            shape.append(high - low)
        return tuple(shape), spots

    def shaped(self, e: ValueExpr, r: _Rank) -> tuple[tuple[int, ...], list[Any]]:
        match e:
            case BufferRef():
                shape, spots = self.select(e.index, self.shapes[e.buffer.id], e.span, r)
                row = r.buffers[e.buffer.id]
                items = [row[i] for i in spots]
                for i, v in zip(spots, items, strict=True):
                    if v is None:
                        name = f"chunk {i} of `{e.buffer.name}`" if e.buffer.dims else f"`{e.buffer.name}`"
                        self.sink.error("E306", f"{name} is read before it has a value{self.where(r.id)}", e.span)
                        raise Fault
                return shape, items
            case VarRef():
                return self.var(e, r)
            case Close():
                shape, items = self.shaped(e.value, r)
                assert e.type.wire is not None
                return shape, [self.close(e.type.wire, v, e.site, r, e.span) for v in items]
            case Open():
                shape, items = self.shaped(e.wire, r)
                return shape, [self.open(w) for w in items]
            case Add():
                shape, left = self.shaped(e.left, r)
                _, right = self.shaped(e.right, r)
                right = self.match(right, left, e.span, r)
                return shape, [self.add(a, b, e.span, r, e.type.basis) for a, b in zip(left, right, strict=True)]

    def var(self, e: VarRef, r: _Rank) -> tuple[tuple[int, ...], list[Any]]:
        held = r.vars[e.var.id]
        if held is _POISON:
            raise Fault
        if held is None:
            self.sink.error(
                "E306",
                f"rank {r.id} reads `{e.var.name}`, but nothing was sent to it{self.where()}",
                e.span,
                help="the send that would bring it is masked by `when`, or goes elsewhere",
            )
            raise Fault
        shape, items = held
        if e.index is not None:
            if len(e.index) != len(shape):
                self.sink.error("E211", f"`{e.var.name}` has {len(shape)} axes here; this names {len(e.index)}", e.span)
                raise Fault
            shape, spots = self.select(e.index, shape, e.span, r)
            items = [items[i] for i in spots]
        for i, v in enumerate(items):
            if v is None:
                self.sink.error(
                    "E306", f"rank {r.id} reads place {i} of `{e.var.name}`, which has no value{self.where()}", e.span
                )
                raise Fault
        return shape, items

    def rounds(self, codec: Codec) -> bool:
        """Whether a round trip is just a cast to the tensor's dtype: raw, bare sends, codecs exact for this dtype."""
        return codec.cast or (self.p.dtype in codec.exact_for and not codec.flags)

    def cast(self, number: int) -> tuple[int, int]:
        """Number after rounding to the tensor's dtype, and the lossy steps that it costs."""
        kind = self.numbers.terms[number][0]
        if self.lossless or kind == "cast" or (kind == "input" and not self.factor):
            return number, 0
        return self.numbers.intern(("cast", number)), 1

    def close(self, q: str, v: Value, site: int, r: _Rank, span: Span | None = None) -> Wire:
        codec = self.codecs[q]
        v = self.turned(v, codec.basis)
        if codec.stateful:
            key = (r.id, site, v.extent)
            if key in self.stateful_seen:
                self.sink.error(
                    "E309",
                    f"rank {r.id} compresses chunk {v.extent} a second time at this place, which has state{self.where()}",
                    span,
                )
                raise Fault
            self.stateful_seen[key] = 1
        if self.rounds(codec):
            number, cost = self.cast(v.number)
        else:
            number, cost = self.numbers.intern(("trip", codec.name, v.number, site if codec.stateful else -1)), 1
        return Wire(q, v, site, number, v.number, v.extent, v.mask, v.lossy + cost, v.level, r.id)

    def open(self, w: Wire) -> Value:
        return Value(
            "open", (w,), w.number, w.extent, w.mask, w.lossy, w.level, self.codecs[w.codec].basis if w.codec else 0
        )


def _culprit(e: IntExpr, ints: list[int], p: Program) -> Span:
    """The innermost division that fails, for the caret."""
    from ..lang import ast
    from ..lang.integers import FUNCTIONS

    best = e.span
    stack: list[Any] = [e.syntax]
    names = {n: s for s, n in p.slot_names.items()}
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Binary):
            stack += [node.left, node.right]
            if node.op in ("div", "mod") and isinstance(node.right, ast.Number) and node.right.value == 0:
                best = node.span
            if (
                node.op in ("div", "mod")
                and isinstance(node.right, ast.Ref)
                and ints[names.get(node.right.name, 0)] == 0
            ):
                best = node.span
        elif isinstance(node, ast.Call):
            stack += list(node.args)
            if node.fn in FUNCTIONS and node.fn.startswith(("log2", "pow2")):
                best = node.span
        elif isinstance(node, ast.Unary):
            stack.append(node.operand)
    return best
