"""Which credits a set of plans needs, so that no rank stores into mapped memory that its owner still reads from the call before.

A rank's steps are ordered (one stream); a signal at a level comes before the wait for it. A writer of the next call is safe without a credit
exactly if a happens-before path leads from the owner's last read to that writer. The search runs over two consecutive calls of one op:

    two_shot          no credit: a rank that is past the first wait of call k+1 knows that everyone is past the opens of call k
    one level plans   a credit a pair
"""

from __future__ import annotations

from dataclasses import replace

from .ops import Credits, Exchange, Launch, Plan

# Beyond this many ranks the search costs more than the credits.
MAX_SEARCH = 16


class _Timeline:
    """Positions of one rank's steps: a launch is one point, an exchange two (stores and signals, then waits).

    Memory is told apart by (peer, level): last_read of what that peer stores here at that level, first_write of what this rank stores there.
    """

    def __init__(self, plan: Plan):
        self.signals: list[tuple[int, int, int]] = []
        self.waits: dict[tuple[int, int], int] = {}
        self.last_read: dict[tuple[int, int], int] = {}
        self.first_write: dict[tuple[int, int], int] = {}
        source: dict[int, tuple[int, int]] = {}
        for at, step in enumerate(plan.steps):
            point = 2 * at
            if isinstance(step, Launch):
                for f in step.folds:
                    for o in f.opened:
                        if o.wire in source:
                            self.last_read[source[o.wire]] = point
                    for r in f.remote:
                        self.first_write.setdefault((r.peer, r.level), point)
            elif isinstance(step, Exchange):
                for w, r in step.copies:
                    self.first_write.setdefault((r.peer, r.level), point)
                    if w in source:
                        self.last_read[source[w]] = point
                for t in step.sends:
                    if t.direct:
                        self.signals.append((point, t.peer, step.level))
                        continue
                    for w in t.wires:  # read by another transport, until its wait
                        if w in source:
                            self.last_read[source[w]] = point + 1
                for t in step.recvs:
                    if t.direct:
                        self.waits[t.peer, step.level] = point + 1
                        self.last_read.setdefault((t.peer, step.level), point + 1)
                        source.update(dict.fromkeys(t.wires, (t.peer, step.level)))
        self.length = 2 * len(plan.steps) + 2


def _reaches(lines: list[_Timeline], reader: int, at: int, writer: int, until: int) -> bool:
    """Whether point `at` of `reader` in call 1 comes before point `until` of `writer` in call 2. Points of call 2 are shifted by the length."""
    earliest: dict[int, int] = {reader: at}
    work = [reader]
    while work:
        rank = work.pop()
        line, start = lines[rank], earliest[rank]
        for call in (0, 1):
            shift = call * line.length
            for point, peer, level in line.signals:
                if point + shift < start:
                    continue
                wait = lines[peer].waits.get((rank, level))
                if wait is None:
                    continue
                arrives = wait + call * lines[peer].length
                if arrives < earliest.get(peer, 1 << 60):
                    earliest[peer] = arrives
                    work.append(peer)
    return earliest.get(writer, 1 << 60) < until + lines[writer].length


def assign_credits(plans: list[Plan]) -> list[Plan]:
    """All ranks' plans, with the credits that they need."""
    lines = [_Timeline(p) for p in plans]
    awaits: list[set[int]] = [set() for _ in plans]
    for writer, line in enumerate(lines):
        for (owner, level), first in line.first_write.items():
            last = lines[owner].last_read.get((writer, level))
            if last is None or owner in awaits[writer]:
                continue
            if len(plans) > MAX_SEARCH or not _reaches(lines, owner, last, writer, first):
                awaits[writer].add(owner)
    grants: list[set[int]] = [{w for w, owners in enumerate(awaits) if owner in owners} for owner in range(len(plans))]
    return [
        replace(p, credits=Credits(tuple(sorted(a)), tuple(sorted(g))))
        for p, a, g in zip(plans, awaits, grants, strict=True)
    ]
