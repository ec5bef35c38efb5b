"""Which plans over mapped memory run as one kernel a call, and the plans as that kernel wants them.

The kernel runs a call's Folds one after the other in a few programs. Tile t of a Fold needs of the Folds before it, here and on the peers, tile
t alone, and the same program has it everywhere: so programs signal and await one another, in place of whole kernels.

Wires lie in two places that calls take in turn, and need no credits: who stores for call k has seen a signal that each reader gave in call
k - 1, after its kernel of call k - 2 had ended. That holds where a rank awaits, at some level, each rank that it stores to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .ops import Copy, Credits, Exchange, Plan

# Each launch is compiled into the kernel.
MOST_LAUNCHES = 4


def obstacle(plans: Sequence[Plan]) -> str:
    """Why calls of these plans, one a rank, cannot be one launch each, or ""."""
    return next((f"rank {p.rank}: {why}" for p in plans if (why := _obstacle(p))), "")


def _obstacle(plan: Plan) -> str:
    if plan.stateful:
        return "its compressors keep states"
    if any(c.has_frame_fields for c in plan.codecs.values()):
        return "a compressor has fields of whole frames"
    if plan.launches > MOST_LAUNCHES:
        return f"it has {plan.launches} launches, more than {MOST_LAUNCHES}"
    awaited: set[int] = set()
    told: set[int] = set()
    for step in plan.steps:
        if isinstance(step, Copy) and step.pairs:
            return "it hands chunks on by copies of the user's memory"
        if isinstance(step, Exchange):
            if step.copies:
                return "it forwards wires as they are"
            if not all(t.direct for t in (*step.sends, *step.recvs)):
                return "some of its messages go over another transport"
            told |= {t.peer for t in step.sends}
            awaited |= {t.peer for t in step.recvs}
    if not told and not awaited:
        return "it sends nothing"
    if not told <= awaited:
        return f"it stores to rank {min(told - awaited)}, which it never waits for"
    return ""


def unshared(plan: Plan) -> Plan:
    """Every wire and scratch in a slot of its own, and no credits: a program may be a level ahead of another one of its rank."""
    slots, wires, scratch = [], dict(plan.wires), dict(plan.scratch)
    for kind, number in (member for members in plan.slots for member in members):
        kept = wires if kind == "wire" else scratch
        kept[number] = replace(kept[number], slot=len(slots))  # type: ignore[type-var]
        slots.append(((kind, number),))
    return replace(plan, slots=tuple(slots), wires=wires, scratch=scratch, credits=Credits((), ()))
