"""The lockstep run: one world, all ranks, abstract values. Finds what is wrong while running; `prove` judges how it ended.

Each statement is one instant: all values are taken on all active ranks, then all names and chunks change.
"""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

from ..diagnostics import Sink, Span
from ..lang.expressions import counted
from ..lang.program import (
    Add,
    BufferRef,
    Close,
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
    VarSpec,
)
from ..wire.codec import Codec
from .values import Message, Trace, Value, Wire
from .world import MAX_WORK, POISON, Fault, Rank, World

# How far beyond the limit the loops' bounds may point before the run is not begun.
_FAR_BEYOND = 4


class Run(World):
    """Runs `program` on a world. After `run()`, `trace` is complete unless `sink` has errors."""

    def __init__(
        self,
        program: Program,
        sizes: tuple[int, ...],
        params: dict[str, int],
        raw: Codec,
        sink: Sink,
        factor: bool = False,
        limit: int = MAX_WORK,
    ):
        super().__init__(program, sizes, params, raw, sink, limit)
        self.factor, self.lossless = factor, program.dtype == "f32"
        self.turns = 1
        self.stateful_seen: set[tuple[int, int, int]] = set()

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

    def block(self, body: tuple[Statement, ...], active: list[Rank]) -> None:
        for s in body:
            self.spend(len(active) + 1, s.span)
            try:
                self.statement(s, active)
            except Fault:
                # What an Int, a bound or a condition decides is unknown from here on.
                if isinstance(s, LetInt | Loop | Mask | PhaseBlock) or len(self.sink.found) >= Sink.LIMIT:
                    raise

    def statement(self, s: Statement, active: list[Rank]) -> None:
        match s:
            case SendTo():
                self.send(s, active)
            case Store():
                self.store(s, active)
            case LetInt():
                self.let_int(s, active)
            case LetValue():
                self.let_value(s, active)
            case Loop():
                self.loop(s, active)
            case Mask():
                self.block(s.body, [r for r in active if self.int_of(s.test, r.ints, r.id)])
            case PhaseBlock():
                self.block(s.body, active)

    def let_int(self, s: LetInt, active: list[Rank]) -> None:
        """Ranks that `when` leaves out take part: they may receive at an index that needs the name."""
        left_out = {r.id for r in self.ranks} - {r.id for r in active} if len(active) < self.world else ()
        for r in active:
            r.ints[s.slot] = self.int_of(s.value, r.ints, r.id)
        for i in left_out:
            ints = self.ranks[i].ints
            try:
                ints[s.slot] = s.value.run(ints)
            except (ZeroDivisionError, ValueError, TypeError):
                ints[s.slot] = None

    def let_value(self, s: LetValue, active: list[Rank]) -> None:
        try:
            found = [(r, self.shaped(s.value, r)) for r in active]
        except Fault:
            for r in self.ranks:
                r.vars[s.var.id] = POISON
            raise
        for r in self.ranks:
            r.vars[s.var.id] = None
        for r, v in found:
            r.vars[s.var.id] = v

    def loop(self, s: Loop, active: list[Rank]) -> None:
        if not active:
            return
        ints = active[0].ints
        low = self.int_of(s.low, ints) if s.low is not None else 0
        high = self.int_of(s.high, ints)
        if low >= high:
            return
        before = self.turns
        self.turns *= high - low
        self.loops.append((s.name, low))
        least = (high - low) * (1 + len(s.body) * (len(active) + 1))
        if self.work + least > self.limit or self.turns > _FAR_BEYOND * self.limit:
            self.too_long(s.span)
        for i in range(low, high):
            self.loops[-1] = (s.name, i)
            self.spend(1, s.span)
            for r in self.ranks:
                r.ints[s.slot] = i
            self.block(s.body, active)
        self.loops.pop()
        self.turns = before

    def store(self, s: Store, active: list[Rank]) -> None:
        try:
            self._store(s, active)
        except Fault:
            for r in active:
                self.poison(s.target, r)
            raise

    def _store(self, s: Store, active: list[Rank]) -> None:
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
                row = self.places(target.var, r)
                pending += [(row, spot, v, None) for spot, v in zip(spots, items, strict=True)]
        for row, spot, v, writers in pending:
            row[spot] = v
            if writers is not None:
                writers[spot] = s.span

    def places(self, var: VarSpec, r: Rank) -> list[Any]:
        """The places of a declared wire."""
        held = r.vars[var.id]
        if held is None or held is POISON:
            shape = self.var_dims[var.id]
            held = r.vars[var.id] = (shape, [None] * prod(shape))
        return held[1]

    def poison(self, target: BufferRef | VarRef, r: Rank) -> None:
        """After a fault: what `target` names on this rank is unknown."""
        if isinstance(target, VarRef):
            r.vars[target.var.id] = POISON
            return
        row = r.buffers[target.buffer.id]
        try:
            spots = self.spots(target, r)
        except Fault:
            spots = range(len(row))
        for spot in spots:
            row[spot] = POISON

    def match(self, items: list[Any], spots: list[int], span: Span, r: Rank) -> list[Any]:
        if len(items) != len(spots):
            self.sink.error(
                "E209", f"{counted(len(spots), 'chunk')} on the left, {len(items)} on the right{self.where(r.id)}", span
            )
            raise Fault
        return items

    def accumulate(self, old: Value | None, new: Value, s: Store, target: BufferRef, spot: int, r: Rank) -> Value:
        if old is None:
            name = self.chunk_name(target, spot)
            self.sink.error("E306", f"{name} is added to before it has a value{self.where(r.id)}", s.target.span)
            raise Fault
        if old is POISON:
            raise Fault
        if old.extent != new.extent:
            rank = r.id if len(self.sizes) > 1 else None
            message = f"rank {r.id} adds chunk {new.extent} into chunk {old.extent}{self.where(rank)}"
            label = f"`{s.value.span.text}` is chunk {new.extent} here"
            self.sink.error("E301", message, s.target.span, label=label)
            raise Fault
        return self.add(old, new, s.span, r, old.basis)

    def add(self, a: Value, b: Value, span: Span, r: Rank, basis: int) -> Value:
        if a.extent != b.extent:
            self.sink.error("E301", f"rank {r.id} adds chunk {b.extent} to chunk {a.extent}{self.where()}", span)
            raise Fault
        if a.mask & b.mask:
            twice = (a.mask & b.mask).bit_length() - 1
            message = (
                f"rank {r.id} adds the contribution of rank {twice} to chunk {a.extent} a second time{self.where()}"
            )
            self.sink.error("E302", message, span)
            raise Fault
        a, b = self.turned(a, basis), self.turned(b, basis)
        number = self.numbers.sum(a.number, b.number)
        lossy, level = max(a.lossy, b.lossy), max(a.level, b.level)
        return Value("add", (a, b), number, a.extent, a.mask | b.mask, lossy, level, basis)

    def turned(self, v: Value, basis: int) -> Value:
        if v.basis == basis:
            return v
        number = self.numbers.intern(("turn", basis or v.basis, v.number))
        return Value("turn", (v,), number, v.extent, v.mask, v.lossy, v.level, basis)

    def send(self, s: SendTo, active: list[Rank]) -> None:
        try:
            self._send(s, active)
        except Fault:
            for r in self.ranks:
                self.poison(s.target, r)
            raise

    def _send(self, s: SendTo, active: list[Rank]) -> None:
        posted: list[tuple[Rank, int, tuple[int, ...], list[Any]]] = []
        taken: dict[int, int] = {}
        if s.fresh:
            assert isinstance(s.target, VarRef)
            for r in self.ranks:
                r.vars[s.target.var.id] = None
        for r in active:
            shape, items = self.shaped(s.payload, r)
            peer = self.peer(s, r)
            if peer in taken:
                message = f"ranks {taken[peer]} and {r.id} both send to rank {peer}{self.where()}"
                label = "a statement delivers one message to each rank"
                self.sink.error("E304", message, s.dest_span, label=label)
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
                message = Message(level, r.id, peer, tuple(wires[i]), (), s.axis, self.work, s.span)
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

    def deliver(self, s: SendTo, r: Rank, shape: tuple[int, ...], items: list[Any]) -> None:
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
        places = self.places(var, r)
        for spot, v in zip(spots, self.match(items, spots, s.span, r), strict=True):
            places[spot] = v

    def peer(self, s: SendTo, r: Rank) -> int:
        at = [self.int_of(e, r.ints, r.id) for e in s.coordinates]
        full = list(self.coordinates[r.id])
        if s.axis >= 0:
            full[s.axis] = at[0]
        else:
            full = at
        for v, size, (axis, _, name) in zip(full, self.sizes, self.p.axes, strict=True):
            if not 0 <= v < size:
                place = f"position {v} on axis `{axis}`" if axis else f"rank {v}"
                message = f"rank {r.id} sends to {place}, which is not in 0..{size - 1}{self.where()}"
                self.sink.error("E305", message, s.dest_span, help=f"`mod {name}` keeps it in range")
                raise Fault
        index = 0
        for v, size in zip(full, self.sizes, strict=True):
            index = index * size + v
        return index

    # ------------------------------------------------------------ values

    def shaped(self, e: ValueExpr, r: Rank) -> tuple[tuple[int, ...], list[Any]]:
        match e:
            case BufferRef():
                shape, spots = self.select(e, e.index, self.shapes[e.buffer.id], r)
                row = r.buffers[e.buffer.id]
                items = [row[i] for i in spots]
                for i, v in zip(spots, items, strict=True):
                    if v is None:
                        message = f"{self.chunk_name(e, i)} is read before it has a value{self.where(r.id)}"
                        self.sink.error("E306", message, e.span)
                    if v is None or v is POISON:
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

    @staticmethod
    def chunk_name(e: BufferRef, i: int) -> str:
        return f"chunk {i} of `{e.buffer.name}`" if e.buffer.dims else f"`{e.buffer.name}`"

    def var(self, e: VarRef, r: Rank) -> tuple[tuple[int, ...], list[Any]]:
        held = r.vars[e.var.id]
        if held is POISON:
            raise Fault
        if held is None:
            self.nothing(e, r, "")
        shape, items = held
        if e.index is None:
            items = list(items)
        elif len(e.index) != len(shape):
            message = f"`{e.var.name}` takes {counted(len(shape), 'index')} here, not {len(e.index)}"
            self.sink.error("E211", message, e.span)
            raise Fault
        else:
            shape, spots = self.select(e, e.index, shape, r)
            items = [items[i] for i in spots]
        for i, v in enumerate(items):
            if v is POISON:
                raise Fault
            if v is None:
                self.nothing(e, r, f" at place {i}" if len(items) > 1 else "")
        return shape, items

    def nothing(self, e: VarRef, r: Rank, at: str) -> NoReturn:
        message = f"rank {r.id} reads `{e.span.text}`, but nothing was assigned or sent to it there{at}{self.where()}"
        also = ((e.var.span, f"`{e.var.name}` is named here"),)
        help = "a send that would bring it is left out by `when`, or goes to another rank"
        self.sink.error("E306", message, e.span, help=help, also=also)
        raise Fault

    def rounds(self, codec: Codec) -> bool:
        """Whether a round trip is just a cast to the tensor's dtype: raw, bare sends, codecs exact for this dtype."""
        return codec.cast or (self.p.dtype in codec.exact_for and not codec.flags)

    def cast(self, number: int) -> tuple[int, int]:
        """Number after rounding to the tensor's dtype, and the lossy steps that it costs."""
        kind = self.numbers.terms[number][0]
        if self.lossless or kind == "cast" or (kind == "input" and not self.factor):
            return number, 0
        return self.numbers.intern(("cast", number)), 1

    def close(self, q: str, v: Value, site: int, r: Rank, span: Span | None = None) -> Wire:
        codec = self.codecs[q]
        v = self.turned(v, codec.basis)
        if codec.stateful:
            key = (r.id, site, v.extent)
            if key in self.stateful_seen:
                message = f"rank {r.id} compresses chunk {v.extent} a second time here, with `{q}`, which has state"
                help = "compress it once, name the wire with `let`, and send that"
                self.sink.error("E309", f"{message}{self.where()}", span, help=help)
                raise Fault
            self.stateful_seen.add(key)
        if self.rounds(codec):
            number, cost = self.cast(v.number)
        else:
            number, cost = self.numbers.intern(("trip", codec.name, v.number, site if codec.stateful else -1)), 1
        return Wire(q, v, site, number, v.number, v.extent, v.mask, v.lossy + cost, v.level, r.id)

    def open(self, w: Wire) -> Value:
        return Value(
            "open", (w,), w.number, w.extent, w.mask, w.lossy, w.level, self.codecs[w.codec].basis if w.codec else 0
        )
