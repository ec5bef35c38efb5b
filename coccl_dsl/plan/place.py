"""Placement: where a wire's consumer is mapped, the Fold that closes it stores straight into the consumer's memory.

before:  Fold(input 1 -> w3);  step 0: send w3 to 1
after:   Fold(input 1 -> rank 1's place for it);  step 0: signal 1

A wire that is only passed on is copied. A wire keeps a place here only where something here still reads it.
"""

from __future__ import annotations

from dataclasses import replace

from .ops import Copy, Exchange, Launch, Remote, Step


def _positions(steps: list[Step], mapped: frozenset[int]) -> dict[int, list[Remote]]:
    """Where each wire goes in mapped memory: counted per peer and level, in message order, as the receiver counts."""
    found: dict[int, list[Remote]] = {}
    for step in steps:
        if isinstance(step, Exchange):
            count: dict[int, int] = {}
            for t in step.sends:
                for w in t.wires if t.peer in mapped else ():
                    found.setdefault(w, []).append(Remote(t.peer, step.level, count.get(t.peer, 0)))
                    count[t.peer] = count.get(t.peer, 0) + 1
    return found


def _read_here(steps: list[Step], mapped: frozenset[int]) -> set[int]:
    """Wires that something on this rank reads after they are made."""
    used: set[int] = set()
    for step in steps:
        if isinstance(step, Launch):
            used |= {o.wire for f in step.folds for o in f.opened}
        elif isinstance(step, Exchange):
            used |= {w for t in step.sends if t.peer not in mapped for w in t.wires}
    return used


def place(steps: list[Step], mapped: frozenset[int]) -> list[Step]:
    """Steps with direct stores, copies and signals for the mapped peers."""
    remote, used = _positions(steps, mapped), _read_here(steps, mapped)
    closed: set[int] = set()
    done: list[Step] = []
    for step in steps:
        if isinstance(step, Launch):
            folds = []
            for f in step.folds:
                if f.wire is not None:
                    closed.add(f.wire)
                    places = tuple(remote.get(f.wire, ()))
                    f = replace(f, remote=places, local=f.wire in used or not places)
                folds.append(f)
            done.append(Launch(step.signature, tuple(folds), step.copies))
        elif isinstance(step, Exchange):
            copies = tuple(
                (w, r)
                for w in dict.fromkeys(w for t in step.sends if t.peer in mapped for w in t.wires)
                if w not in closed
                for r in remote[w]
                if r.level == step.level
            )
            sends = tuple(replace(t, direct=t.peer in mapped) for t in step.sends)
            recvs = tuple(replace(t, direct=t.peer in mapped) for t in step.recvs)
            done.append(Exchange(step.level, sends, recvs, copies))
        else:
            done.append(step)
    return _copies_in_launches(done)


def _copies_in_launches(steps: list[Step]) -> list[Step]:
    """A launch that stores over the link leaves the memory idle: it takes the copies along, its programs taking turns."""
    first = next((i for i, s in enumerate(steps) if isinstance(s, Launch)), None)
    if first is None or not isinstance(steps[0], Copy):
        return steps
    launch = steps[first]
    assert isinstance(launch, Launch)
    if not any(f.remote for f in launch.folds) or launch.signature.dense[:1] != (("input", 0),):
        return steps
    return [*steps[1:first], Launch(launch.signature, launch.folds, steps[0].pairs), *steps[first + 1 :]]
