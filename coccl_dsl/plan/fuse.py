"""Line -> Folds: chains of decompress / reduce / compress / store become single units of compute.

before:  v = add(input 2, open w7);  w9 = close(int4, v);  u = open w9;  output 2 = u
after:   Fold(input 2 + open w7 -> w9, output 2 <- open w9)

A Fold sums dense sources first, then wires of one codec. Sums of another shape are cut: the part before the cut goes to float32 scratch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .lower import Line, VNode, WNode
from .ops import Dense, Fold, Opened, Sink, StateRef

# A sum that feeds several Folds is recomputed while it has few terms, and kept in float32 scratch beyond.
RECOMPUTE_TERMS = 3


@dataclass
class Unit:
    """A Fold being placed. level: after how many levels it can run. after: units it must follow. sent: first level that sends its wire."""

    fold: Fold
    level: int
    sent: int | None
    after: set[int] = field(default_factory=set)


@dataclass
class Fused:
    """units in creation order (a unit comes after those it follows); scratch: id -> (extent, basis)."""

    units: list[Unit]
    scratch: dict[int, tuple[int, int]]


@dataclass(frozen=True)
class _Term:
    """A source of a sum: an input, a scratch or an opened wire."""

    kind: str
    index: int
    basis: int


class _Fuser:
    def __init__(
        self, line: Line, both: frozenset[str], stateful: frozenset[str], split_output: frozenset[str], apart: bool
    ):
        self.line, self.both, self.stateful, self.split, self.apart = line, both, stateful, split_output, apart
        self.units: list[Unit] = []
        self.scratch: dict[int, tuple[int, int]] = {}
        self.kept: dict[int, int] = {}
        self.maker: dict[int, int] = {}
        self.scratch_maker: dict[int, int] = {}
        self.updated: set[int] = set()
        self.uses = self._count_uses()

    def _count_uses(self) -> dict[int, int]:
        """How many Folds start from each value."""
        uses: dict[int, int] = {}
        for w in self.line.wires:
            if w.source >= 0:
                uses[w.source] = uses.get(w.source, 0) + 1
        for v in self.line.values:
            for a in v.args if v.op in ("add", "turn") else ():
                uses[a] = uses.get(a, 0) + 1
        return uses

    def v(self, id: int) -> VNode:
        return self.line.values[id]

    # ------------------------------------------------------------ sums

    def terms(self, id: int) -> tuple[list[_Term], int]:
        """The value as a list of terms, summed left to right in the returned basis."""
        v = self.v(id)
        if self.apart and id not in self.kept and v.op in ("add", "open"):
            return [_Term("scratch", self.keep(id), v.basis)], v.basis
        if v.op == "turn" and self.v(v.args[0]).op != "add":
            return [self.leaf(v.args[0])], v.basis
        if v.op == "turn":
            inner = self.v(v.args[0])
            return [_Term("scratch", self.keep(v.args[0]), inner.basis)], v.basis
        if v.op != "add" or id in self.kept:
            return [self.leaf(id)], v.basis
        chain: list[int] = []
        while v.op == "add" and v.id not in self.kept:
            left, right = v.args
            if self.is_sum(right) and not self.is_sum(left):
                left, right = right, left
            chain.append(right)
            if self.must_keep(left):
                self.keep(left)
            v = self.v(left)
        first = [v.id, *reversed(chain)]
        return [self.addend(i) for i in first], self.v(id).basis

    def core(self, id: int) -> int:
        """The value before its last turn: codecs and sinks know their basis and turn what they get."""
        v = self.v(id)
        return v.args[0] if v.op == "turn" else id

    def is_sum(self, id: int) -> bool:
        v = self.v(id)
        return v.op == "add" and id not in self.kept

    def must_keep(self, id: int) -> bool:
        return self.is_sum(id) and self.uses.get(id, 0) > 1 and self.length(id) > RECOMPUTE_TERMS

    def length(self, id: int) -> int:
        n, v = 1, self.v(id)
        while v.op == "add":
            n, v = n + 1, self.v(v.args[0])
        return n

    def addend(self, id: int) -> _Term:
        v = self.v(id)
        if v.op == "turn":
            inner = v.args[0]
            return _Term("scratch", self.keep(inner), self.v(inner).basis) if self.is_sum(inner) else self.leaf(inner)
        if self.is_sum(id):
            return _Term("scratch", self.keep(id), v.basis)
        return self.leaf(id)

    def leaf(self, id: int) -> _Term:
        v = self.v(id)
        if id in self.kept:
            return _Term("scratch", self.kept[id], v.basis)
        if v.op == "input":
            return _Term("input", v.args[0], 0)
        if v.op == "turn":
            return (
                self.addend(id)
                if self.v(v.args[0]).op != "turn"
                else _Term("scratch", self.keep(v.args[0]), self.v(v.args[0]).basis)
            )
        assert v.op == "open", v
        return _Term("wire", v.args[0], v.basis)

    def keep(self, id: int) -> int:
        """Have the value in float32 scratch."""
        if id in self.kept:
            return self.kept[id]
        v = self.v(id)
        terms, basis = self.apart_terms(v) if self.apart else self.terms(id)
        slot = len(self.scratch)
        self.scratch[slot] = (v.extent, v.basis)
        unit = self.unit(v.extent, terms, basis, None, (Sink(Dense("scratch", slot, v.basis), False),), v.level)
        self.kept[id] = slot
        self.scratch_maker[slot] = unit
        return slot

    def apart_terms(self, v: VNode) -> tuple[list[_Term], int]:
        """One operation on values that stand in memory: nothing is fused."""
        if v.op == "open":
            return [_Term("wire", v.args[0], v.basis)], v.basis
        if v.op == "turn":
            return [self.operand(v.args[0])], v.basis
        return [self.operand(a) for a in v.args], v.basis

    def operand(self, id: int) -> _Term:
        v = self.v(id)
        if v.op == "input":
            return _Term("input", v.args[0], 0)
        return _Term("scratch", self.keep(id), v.basis)

    # ------------------------------------------------------------ units

    def unit(
        self, extent: int, terms: list[_Term], basis: int, wire: WNode | None, sinks: tuple[Sink, ...], level: int
    ) -> int:
        """A Fold of these terms, cut to the shape of a Fold where needed."""
        terms = self._cut(extent, list(terms), basis, level)
        dense = tuple(Dense(t.kind, t.index, t.basis) for t in terms if t.kind != "wire")
        opened: list[Opened] = []
        after: set[int] = set()
        codec: str | None = None
        for t in terms:
            if t.kind == "scratch":
                after.add(self.scratch_maker[t.index])
            elif t.kind == "wire":
                w = self.line.wires[t.index]
                codec = w.codec
                ref = StateRef(w.site, w.extent, w.owner) if w.codec in self.both else None
                update = ref is not None and w.source < 0 and w.id not in self.updated
                if update:
                    self.updated.add(w.id)
                opened.append(Opened(w.id, ref, update))
                if w.source >= 0:
                    after.add(self.close(w))
        out = wire.codec if wire else None
        state = StateRef(wire.site, wire.extent, wire.owner) if wire and wire.codec in self.stateful else None
        fold = Fold(
            extent,
            dense,
            tuple(opened),
            basis,
            codec,
            out,
            wire.id if wire else None,
            sinks,
            wire.key if wire else 0,
            state,
        )
        self.units.append(Unit(fold, level, min(wire.sent) if wire and wire.sent else None, after))
        return len(self.units) - 1

    def _cut(self, extent: int, terms: list[_Term], basis: int, level: int) -> list[_Term]:
        if len(terms) > 1 and terms[0].kind == "wire" and terms[1].kind != "wire":
            terms[0], terms[1] = terms[1], terms[0]
        codec = None
        for i, t in enumerate(terms):
            this = self.line.wires[t.index].codec if t.kind == "wire" else None
            if (codec is not None and this != codec) and i > 0:
                slot = len(self.scratch)
                self.scratch[slot] = (extent, basis)
                before = max((self._ready(x) for x in terms[:i]), default=0)
                self.scratch_maker[slot] = self.unit(
                    extent, terms[:i], basis, None, (Sink(Dense("scratch", slot, basis), False),), before
                )
                return self._cut(extent, [_Term("scratch", slot, basis), *terms[i:]], basis, level)
            codec = this if this is not None else codec
        return terms

    def _ready(self, t: _Term) -> int:
        if t.kind == "wire":
            w = self.line.wires[t.index]
            return w.level
        return self.units[self.scratch_maker[t.index]].level if t.kind == "scratch" else 0

    def close(self, w: WNode) -> int:
        """The unit that makes a wire, made on demand so that it precedes its users."""
        if w.id not in self.maker:
            source = self.core(w.source)
            terms, basis = self.terms(source)
            self.maker[w.id] = self.unit(w.extent, terms, basis, w, (), self.v(source).level)
        return self.maker[w.id]

    # ------------------------------------------------------------ outputs

    def attach(self, unit: int, sink: Sink) -> None:
        f = self.units[unit].fold
        self.units[unit].fold = Fold(
            f.extent, f.dense, f.opened, f.basis, f.in_codec, f.out_codec, f.wire, (*f.sinks, sink), f.key, f.state
        )

    def output(self, i: int, id: int, alone: bool) -> None:
        """Write value `id` to output chunk i: as a sink of the Fold that has it, or (alone) in a Fold of its own."""
        place = Dense("output", i)
        core = self.v(self.core(id))
        if not alone and core.op == "open":
            w = self.line.wires[core.args[0]]
            if w.source >= 0 and w.codec not in self.split:
                self.attach(self.close(w), Sink(place, True))
                return
        if not alone:
            for w in self.line.wires:
                if w.source >= 0 and self.core(w.source) == core.id and w.codec not in self.split:
                    self.attach(self.close(w), Sink(place, False))
                    return
        terms, basis = self.terms(core.id)
        self.unit(core.extent, terms, basis, None, (Sink(place, False),), core.level)


def fuse(
    line: Line,
    *,
    both: frozenset[str] = frozenset(),
    stateful: frozenset[str] = frozenset(),
    split_output: frozenset[str] = frozenset(),
    alone: frozenset[int] = frozenset(),
    apart: bool = False,
) -> Fused:
    """Folds of a Line. both / stateful: compressors with `both` / any state. split_output: compressors whose Folds may not also write the
    output. alone: output chunks that get a Fold of their own (an earlier write would destroy an input that is still read).
    apart: fuse nothing, one operation a Fold, every value in scratch: to show that fusing changes no bit."""
    work = _Fuser(line, both, stateful, split_output, apart)
    for w in line.wires:
        if w.source >= 0:
            work.close(w)
    for i, id in enumerate(line.outputs):
        if id >= 0:
            work.output(i, id, apart or i in alone)
    return Fused(work.units, work.scratch)
