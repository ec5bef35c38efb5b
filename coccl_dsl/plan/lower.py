"""Trace -> one rank's straight-line program in SSA form.

before:  the run of all ranks: values and wires as objects, messages between ranks
after:   `Line`: this rank's chunk values and wires, numbered, each made once; equal compressions merged; what is sent and kept at the end

A value is input(i), add(a, b), open(w) or turn(a) into its basis. A wire is closed here from a value, or received. What nothing needs is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..check.values import Message, Trace, Value, Wire


@dataclass(frozen=True)
class VNode:
    """A chunk value. op: input (args: position), add (two values), open (a wire), turn (a value)."""

    id: int
    op: str
    args: tuple[int, ...]
    extent: int
    basis: int
    level: int
    number: int


@dataclass
class WNode:
    """A wire. source: the value closed here, or -1 when received. made: the level before which (closed) or in which (received) it appears."""

    id: int
    codec: str
    source: int
    site: int
    extent: int
    key: int
    owner: int
    level: int
    sent: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Post:
    """A message of this rank: wires to or from `peer` at `level`; `order` is the same on both ends."""

    level: int
    peer: int
    wires: tuple[int, ...]
    order: int
    incoming: bool


@dataclass
class Line:
    """values and wires by id; outputs[i] is the value of output chunk i, or -1 where it was never written (nothing is promised there)."""

    rank: int
    values: list[VNode]
    wires: list[WNode]
    posts: list[Post]
    outputs: list[int]
    levels: int


class _Lowering:
    def __init__(self, trace: Trace, rank: int, stateful: frozenset[str]):
        self.t, self.rank, self.stateful = trace, rank, stateful
        self.values: list[VNode] = []
        self.wires: list[WNode] = []
        self.value_ids: dict[tuple[object, ...], int] = {}
        self.of_value: dict[int, int] = {}
        self.of_wire: dict[int, int] = {}
        self.closed: dict[tuple[str, int, int, int], int] = {}

    def value(self, v: Value) -> int:
        stack = [v]
        while stack:
            top = stack[-1]
            if id(top) in self.of_value:
                stack.pop()
                continue
            if top.op in ("add", "turn"):
                missing = [a for a in top.args if id(a) not in self.of_value]
                if missing:
                    stack.extend(missing)
                    continue
                args: tuple[int, ...] = tuple(self.of_value[id(a)] for a in top.args)
            elif top.op == "open":
                wire = top.args[0]
                if id(wire) not in self.of_wire and wire.source is not None and id(wire.source) not in self.of_value:
                    stack.append(wire.source)
                    continue
                args = (self.wire(wire),)
            else:
                args = top.args
            self.of_value[id(top)] = self._intern(top, args)
            stack.pop()
        return self.of_value[id(v)]

    def _intern(self, v: Value, args: tuple[int, ...]) -> int:
        key = (v.op, args, v.basis)
        if key not in self.value_ids:
            self.value_ids[key] = len(self.values)
            self.values.append(VNode(len(self.values), v.op, args, v.extent, v.basis, v.level, v.number))
        return self.value_ids[key]

    def wire(self, w: Wire) -> int:
        """Equal compressions of one rank are one wire; those with state are made where the text says (the checker lets each run once)."""
        found = self.of_wire.get(id(w))
        if found is None and w.source is None:
            found = self._add(w, -1)
        elif found is None:
            assert w.source is not None
            source = self.value(w.source)
            key = (w.codec, w.source.number, w.extent, w.site if w.codec in self.stateful else -1)
            found = self.closed.get(key)
            if found is None:
                found = self.closed[key] = self._add(w, source)
        self.of_wire[id(w)] = found
        return found

    def _add(self, w: Wire, source: int) -> int:
        self.wires.append(
            WNode(
                len(self.wires), w.codec, source, w.site, w.extent, self.t.numbers.key(w.key_number), w.origin, w.level
            )
        )
        return len(self.wires) - 1


def lower(trace: Trace, rank: int, stateful: frozenset[str] = frozenset()) -> Line:
    """The program of `rank`. `stateful`: compressors whose sites must not be merged."""
    work = _Lowering(trace, rank, stateful)
    posts: list[Post] = []
    mine: list[tuple[int, Message]] = [(i, m) for i, m in enumerate(trace.messages) if rank in (m.source, m.target)]
    for order, m in mine:
        incoming = m.target == rank
        wires = tuple(work.wire(w) for w in (m.received if incoming else m.sent))
        posts.append(Post(m.level, m.source if incoming else m.target, wires, order, incoming))
        if not incoming:
            for w in wires:
                work.wires[w].sent.append(m.level)
    outputs = [work.value(v) if v is not None else -1 for v in trace.outputs[rank]]
    posts.sort(key=lambda p: (p.level, p.order))
    return Line(rank, work.values, work.wires, posts, outputs, trace.levels)
