"""Folds and messages -> Plan: when each runs, what shares a launch, which buffers share memory.

Time t is the span between the exchanges of level t-1 and level t. A Fold that feeds a send runs as soon as its sources are there; one that
only writes the user's output runs after the last exchange, so that it can hide behind the transfers of the next slice and all such Folds are
one launch. Folds of one time, depth and signature are one launch.

In-place calls read and write one tensor: a Fold may not write an output chunk before every other Fold that reads the input chunk at the same
place has run. Where it would, the write moves into a Fold of its own at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from ..check.values import Trace
from ..lang.program import Program
from ..wire.codec import Codec
from .fuse import Fused, Unit, fuse
from .lower import Line, lower
from .ops import Buffers, Commit, Copy, Exchange, Fold, Launch, Plan, ScratchInfo, StateRef, Step, Transfer, WireInfo
from .place import place


@dataclass(frozen=True)
class _Placed:
    unit: Unit
    time: int
    depth: int


def _place(fused: Fused, levels: int) -> list[_Placed]:
    placed: list[_Placed] = []
    for u in fused.units:
        output_only = u.fold.wire is None and all(s.place.role == "output" for s in u.fold.sinks)
        time = levels if output_only else max([u.level, *(placed[a].time for a in u.after)])
        depth = max((placed[a].depth + 1 for a in u.after if placed[a].time == time), default=0)
        placed.append(_Placed(u, time, depth))
    return placed


def _launches(placed: list[_Placed], time: int) -> list[Launch]:
    groups: dict[tuple[int, object], list[Fold]] = {}
    for p in placed:
        if p.time == time:
            groups.setdefault((p.depth, p.unit.fold.signature), []).append(p.unit.fold)
    ordered = sorted(groups.items(), key=lambda item: item[0][0])
    return [Launch(folds[0].signature, tuple(folds)) for _, folds in ordered]


def gathered_levels(trace: Trace) -> frozenset[int]:
    """Levels at which every rank sends one wire, the same, to all others: an all-gather, for which networks have better ways than messages."""
    found: dict[int, dict[int, list[tuple[int, tuple[object, ...]]]]] = {}
    for m in trace.messages:
        sent = tuple((w.codec, w.number, w.extent, w.key_number) for w in m.sent)
        found.setdefault(m.level, {}).setdefault(m.source, []).append((m.target, sent))

    def whole(rows: list[tuple[int, tuple[object, ...]]]) -> bool:
        targets, sent = {t for t, _ in rows}, {s for _, s in rows}
        return len(targets) == len(rows) == trace.world - 1 and len(sent) == 1 and len(rows[0][1]) == 1

    levels, gathered = set(), set()
    for level, of in sorted(found.items()):
        wires = {sent for rows in of.values() for _, sent in rows}
        # A wire has one place.
        if len(of) == trace.world and all(whole(rows) for rows in of.values()) and not wires & gathered:
            levels.add(level)
            gathered |= wires
    return frozenset(levels)


def _exchange(line: Line, level: int, gathered: bool) -> Exchange:
    here = [p for p in line.posts if p.level == level]
    sends = tuple(Transfer(p.peer, p.wires) for p in here if not p.incoming)
    recvs = tuple(Transfer(p.peer, p.wires) for p in here if p.incoming)
    gather: tuple[int, ...] = ()
    if gathered:
        of = {t.peer: t.wires[0] for t in recvs} | {line.rank: sends[0].wires[0]}
        gather = tuple(of[r] for r in range(len(of)))
    return Exchange(level, sends, recvs, gather=gather)


def _copied(u: Unit, buffers: Buffers) -> tuple[int, int] | None:
    """(input, output) where the unit does nothing but hand an input chunk on, and no other input stands at the output's place."""
    f = u.fold
    if f.opened or f.wire is not None or len(f.dense) != 1 or len(f.sinks) != 1 or f.dense[0].role != "input":
        return None
    source, place = f.dense[0].index, f.sinks[0].place
    if place.role != "output" or buffers.aliases[place.index] not in (-1, source):
        return None
    return source, place.index


def _steps(line: Line, fused: Fused, buffers: Buffers, scaled: bool, gathered: frozenset[int]) -> list[Step]:
    copies = {} if scaled else {i: c for i, u in enumerate(fused.units) if (c := _copied(u, buffers)) is not None}
    placed = [p for i, p in enumerate(_place(fused, line.levels)) if i not in copies]
    steps: list[Step] = [Copy(tuple(copies.values()))] if copies else []
    for time in range(line.levels + 1):
        steps += _launches(placed, time)
        if time < line.levels:
            steps.append(_exchange(line, time, time in gathered))
    return steps


def _early_writes(steps: list[Step], buffers: Buffers) -> set[int]:
    """Output chunks that are written while another Fold still has to read the input chunk at their place."""
    readers: dict[int, list[tuple[int, Fold]]] = {}
    for at, step in enumerate(steps):
        for fold in step.folds if isinstance(step, Launch) else ():
            for d in fold.dense:
                if d.role == "input":
                    readers.setdefault(d.index, []).append((at, fold))
    early: set[int] = set()
    for at, step in enumerate(steps):
        for fold in step.folds if isinstance(step, Launch) else ():
            for s in fold.sinks:
                if s.place.role != "output" or buffers.aliases[s.place.index] < 0:
                    continue
                if any(r >= at and f is not fold for r, f in readers.get(buffers.aliases[s.place.index], [])):
                    early.add(s.place.index)
    return early


def _aliases(kind: str, rank: int, outputs: int) -> tuple[int, ...]:
    """Input chunk at the place of each output chunk in torch's in-place forms."""
    match kind:
        case "all_gather":
            return tuple(0 if i == rank else -1 for i in range(outputs))
        case "reduce_scatter":
            return (rank,)
        case "all_reduce" | "broadcast" | "reduce":
            return tuple(range(outputs))
        case _:
            return (-1,) * outputs


def _slots(steps: list[Step]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """Share memory between what is not alive at the same time: first fit over steps. What a mapped peer stores into is shared with nothing,
    because the store may come at any time of the call. Wires of an all-gather lie side by side, by rank."""
    born: dict[tuple[str, int], int] = {}
    dies: dict[tuple[str, int], int] = {}

    def touch(kind: str, id: int, at: int) -> None:
        born.setdefault((kind, id), at)
        dies[kind, id] = max(at, dies.get((kind, id), at))

    for at, step in enumerate(steps):
        if isinstance(step, Launch):
            for f in step.folds:
                for o in f.opened:
                    touch("wire", o.wire, at)
                for d in (*f.dense, *(s.place for s in f.sinks)):
                    if d.role == "scratch":
                        touch("scratch", d.index, at)
                if f.wire is not None and f.local:
                    touch("wire", f.wire, at)
        elif isinstance(step, Exchange):
            for t in step.sends:
                for w in t.wires if not t.direct else ():
                    touch("wire", w, at)
            for w, _ in step.copies:
                touch("wire", w, at)
            for t in step.recvs:
                for w in t.wires:
                    touch("wire", w, at)
                    if t.direct:
                        born["wire", w], dies["wire", w] = -1, len(steps)
    beside = [("wire", w) for step in steps if isinstance(step, Exchange) for w in step.gather]
    slots: list[list[tuple[str, int]]] = []
    free_at: list[int] = []
    for what in sorted(born.keys() - {*beside}, key=lambda k: (born[k], k)):
        for i, until in enumerate(free_at):
            if until < born[what]:
                slots[i].append(what)
                free_at[i] = dies[what]
                break
        else:
            slots.append([what])
            free_at.append(dies[what])
    return (*(tuple(s) for s in slots), *((what,) for what in beside))


def alignment_of(program: Program, raw: Codec) -> int:
    """Chunks that we cut ourselves are multiples of this many elements: whole groups of every compressor."""
    codecs = tuple(program.codecs.values()) or (raw,)
    return lcm(*(max(c.group, c.basis) for c in codecs))


def make_plan(
    program: Program,
    trace: Trace,
    rank: int,
    raw: Codec,
    op: str = "sum",
    mapped: frozenset[int] = frozenset(),
    apart: bool = False,
    collectives: bool = False,
) -> Plan:
    """Lower, fuse and schedule one rank of a proven trace. mapped: ranks whose memory is mapped here (and ours there). apart: nothing is fused.
    collectives: levels that are all-gathers are marked as such (not those of an all_to_all, whose parts may differ in size)."""
    codecs = {**program.codecs, "": raw}
    stateful = frozenset(n for n, c in codecs.items() if c.stateful)
    both = frozenset(n for n, c in codecs.items() if c.versioned)
    split = frozenset(n for n, c in codecs.items() if c.has_frame_fields)
    line = lower(trace, rank, stateful)
    outputs = trace.output_extents[rank]
    buffers = Buffers(trace.input_extents[rank], outputs, _aliases(program.kind, rank, len(outputs)))
    alone: set[int] = set()
    gathered = gathered_levels(trace) if collectives and program.kind != "all_to_all" else frozenset()
    while True:
        fused = fuse(line, both=both, stateful=stateful, split_output=split, alone=frozenset(alone), apart=apart)
        steps = _steps(line, fused, buffers, op != "sum", gathered)
        early = _early_writes(steps, buffers)
        if early <= alone:
            break
        alone |= early
    wires = {w.id: WireInfo(w.codec, w.extent) for w in line.wires}
    scratch = {i: ScratchInfo(extent, basis) for i, (extent, basis) in fused.scratch.items()}
    if mapped:
        steps = place(steps, mapped)
    slots = _slots(steps)
    for slot, members in enumerate(slots):
        for kind, id in members:
            if kind == "wire":
                wires[id] = replace(wires[id], slot=slot)
            else:
                scratch[id] = replace(scratch[id], slot=slot)
    states: dict[StateRef, str] = {}
    for step in steps:
        for f in step.folds if isinstance(step, Launch) else ():
            if f.state is not None:
                states[f.state] = f.out_codec or ""
            for o in f.opened:
                if o.state is not None:
                    states[o.state] = f.in_codec or ""
    if states:
        steps.append(Commit())
    used = {w.codec for w in wires.values()}
    return Plan(
        name=program.name,
        kind=program.kind,
        rank=rank,
        world=trace.world,
        mesh=tuple((size, v) for (_, _, size), v in zip(program.axes, trace.sizes, strict=True)),
        dtype=program.dtype,
        op=op,
        buffers=buffers,
        codecs={n: c for n, c in codecs.items() if n in used},
        wires=wires,
        scratch=scratch,
        steps=tuple(steps),
        slots=slots,
        depths=program.depths,
        alignment=alignment_of(program, raw),
        levels=trace.levels,
        root=trace.params.get("root", 0),
        states=states,
        mapped=mapped,
    )
