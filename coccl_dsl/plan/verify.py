"""What must hold of every plan. Tests call it after each pass; the runtime calls it at bind, where it costs little."""

from __future__ import annotations

from .ops import Commit, Copy, Exchange, Launch, Plan


class PlanError(AssertionError):
    """A pass made a plan that breaks a rule: a defect of this package, not of the user's text."""


def verify(plan: Plan) -> Plan:
    """Raise PlanError unless: everything is made before it is used and once, memory is not shared while alive, each output chunk is written at
    most once, no input is overwritten before it is read in an in-place call, each signature has one launch a time and depth."""
    made_wires: dict[int, int] = {}
    made_scratch: dict[int, int] = {}
    written: dict[int, int] = {}
    owner: dict[int, tuple[str, int]] = {}

    def need(ok: bool, message: str) -> None:
        if not ok:
            raise PlanError(f"{plan.name}, rank {plan.rank} of {plan.world}: {message}")

    def take(kind: str, id: int, slot: int) -> None:
        need(slot >= 0 and (kind, id) in plan.slots[slot], f"{kind} {id} has no slot")
        owner[slot] = (kind, id)

    def holds(kind: str, id: int, slot: int) -> None:
        need(owner.get(slot) == (kind, id), f"{kind} {id} was overwritten by {owner.get(slot)} before its last use")

    readers = [
        (at, d.index, f)
        for at, s in enumerate(plan.steps)
        if isinstance(s, Launch)
        for f in s.folds
        for d in f.dense
        if d.role == "input"
    ]
    for at, step in enumerate(plan.steps):
        if isinstance(step, Launch):
            for f in step.folds:
                need(f.signature == step.signature, "a launch mixes signatures")
                need(bool(f.dense or f.opened), "a Fold without sources")
                for o in f.opened:
                    need(made_wires.get(o.wire, at) < at, f"wire {o.wire} is opened before it is there")
                    holds("wire", o.wire, plan.wires[o.wire].slot)
                    need(plan.wires[o.wire].codec == f.in_codec, f"wire {o.wire} is opened as another compressor")
                    need(plan.wires[o.wire].extent == f.extent, f"wire {o.wire} is another chunk")
                for d in f.dense:
                    if d.role == "scratch":
                        need(made_scratch.get(d.index, at) < at, f"scratch {d.index} is read before it is written")
                        holds("scratch", d.index, plan.scratch[d.index].slot)
                    else:
                        need(plan.buffers.inputs[d.index] == f.extent, f"input {d.index} is another chunk")
            for f in step.folds:
                if f.wire is not None:
                    need(f.wire not in made_wires, f"wire {f.wire} is made twice")
                    made_wires[f.wire] = at
                    need(f.local or bool(f.remote), f"wire {f.wire} goes nowhere")
                    if f.local:
                        take("wire", f.wire, plan.wires[f.wire].slot)
                for s in f.sinks:
                    need(not s.opened or f.wire is not None, "a Fold opens a wire that it does not close")
                    if s.place.role == "scratch":
                        need(s.place.index not in made_scratch, f"scratch {s.place.index} is written twice")
                        made_scratch[s.place.index] = at
                        take("scratch", s.place.index, plan.scratch[s.place.index].slot)
                        continue
                    i = s.place.index
                    need(i not in written, f"output {i} is written twice")
                    need(plan.buffers.outputs[i] == f.extent, f"output {i} is another chunk")
                    written[i] = at
                    alias = plan.buffers.aliases[i]
                    late = [r for r, index, g in readers if index == alias and r >= at and g is not f]
                    need(alias < 0 or not late, f"output {i} is written before input {alias} is read by step {late}")
        elif isinstance(step, Exchange):
            for t in step.sends:
                need(0 <= t.peer < plan.world and t.peer != plan.rank, f"a send to {t.peer}")
                for w in t.wires:
                    need(made_wires.get(w, at) < at, f"wire {w} is sent before it is there")
                    if not t.direct:
                        holds("wire", w, plan.wires[w].slot)
            for w, _ in step.copies:
                holds("wire", w, plan.wires[w].slot)
            for t in step.recvs:
                need(0 <= t.peer < plan.world and t.peer != plan.rank, f"a receive from {t.peer}")
                for w in t.wires:
                    need(w not in made_wires, f"wire {w} is made twice")
                    made_wires[w] = at
                    take("wire", w, plan.wires[w].slot)
            sent = {plan.wires[w].slot for t in step.sends if not t.direct for w in t.wires}
            got = [plan.wires[w].slot for t in step.recvs for w in t.wires]
            need(len(got) == len(set(got)) and not sent & set(got), "a level receives into memory that it sends from")
        if isinstance(step, Launch | Copy):
            for source, i in step.copies if isinstance(step, Launch) else step.pairs:
                need(i not in written, f"output {i} is written twice")
                need(plan.buffers.outputs[i] == plan.buffers.inputs[source], f"output {i} is another chunk")
                need(
                    plan.buffers.aliases[i] in (-1, source), f"input {plan.buffers.aliases[i]} is overwritten by a copy"
                )
                written[i] = at
        if isinstance(step, Commit):
            need(step is plan.steps[-1], "the commit is last")
    return plan


def verify_world(plans: list[Plan]) -> None:
    """Across ranks: at each level every send has its receive, in the same order, with the same compressor and chunk."""
    for level in range(plans[0].levels):
        sent: dict[tuple[int, int], list[tuple[str, int]]] = {}
        got: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for p in plans:
            for s in p.steps:
                if isinstance(s, Exchange) and s.level == level:
                    for t in s.sends:
                        sent.setdefault((p.rank, t.peer), []).extend(
                            (p.wires[w].codec, p.wires[w].extent) for w in t.wires
                        )
                    for t in s.recvs:
                        got.setdefault((t.peer, p.rank), []).extend(
                            (p.wires[w].codec, p.wires[w].extent) for w in t.wires
                        )
        if sent != got:
            raise PlanError(f"level {level}: sends and receives differ between ranks")
