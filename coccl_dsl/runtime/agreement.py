"""Agreement between ranks at bind, over the group's store: the same texts, parameters, versions, everywhere, or an error on every rank.

Nothing here uses the collectives of the group, so it cannot hang on a fault that it is there to find.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from .errors import BindError

_sequence: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
_lives: WeakKeyDictionary[dist.ProcessGroup, str] = WeakKeyDictionary()
_POLL = 0.01  # seconds between two looks at what the other ranks have seen


class _Stores(threading.local):
    """A store's connection serves one call at a time, also one that waits: threads but the main one have one each."""

    base: Any = None
    own: Any = None


_stores = _Stores()


def store_of_thread() -> Any:
    """The default store, over a connection that no other thread waits on."""
    base: Any = dist.distributed_c10d._get_default_store()
    if threading.current_thread() is threading.main_thread():
        return base
    if _stores.base is not base:
        _stores.base, _stores.own = base, base.clone()
    return _stores.own


def store_of(group: dist.ProcessGroup, purpose: str, timeout: timedelta, what: str) -> Any:
    """A part of the default store for `purpose`, of this group alone. Names of groups come again, after init_process_group over the same store,
    and keys of the earlier one are still there: so the ranks agree once on a name for this one. Raises BindError as `Meeting.gather` does."""
    base = store_of_thread()
    life = _lives.get(group)
    if life is None:
        first = dist.distributed_c10d.PrefixStore(f"coccl_dsl/{group.group_name}", base)
        life = _lives[group] = _agreed_life(first, dist.get_rank(group), dist.get_world_size(group), timeout, what)
    return dist.distributed_c10d.PrefixStore(f"coccl_dsl/{group.group_name}/{life}/{purpose}", base)


def _agreed_life(store: Any, rank: int, world: int, timeout: timedelta, what: str) -> str:
    """Every rank writes a word of its own, then all the words that it sees. When these are the same on all ranks, each has seen the present word
    of each: what is left of an earlier life does not hold this rank's."""
    store.set(f"word/{rank}", uuid.uuid4().hex[:8])
    words, seen = ([f"{name}/{r}" for r in range(world)] for name in ("word", "seen"))
    end = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            left = timedelta(seconds=max(0.001, end - time.monotonic()))
            store.wait(words, left)
            own = "-".join(store.get(k).decode() for k in words)
            store.set(seen[rank], own)
            store.wait(seen, left)
        except Exception as e:
            missing = [r for r, k in enumerate(words) if not store.check([k])]
            missing = missing or [r for r, k in enumerate(seen) if not store.check([k])]
            raise BindError(_absent(what, missing, timeout)) from e
        missing = [r for r, k in enumerate(seen) if store.get(k).decode() != own]
        if not missing:
            return str(uuid.uuid5(uuid.NAMESPACE_OID, own))
        if time.monotonic() > end:
            raise BindError(_absent(what, missing, timeout))
        time.sleep(_POLL)


def _absent(what: str, ranks: list[int], timeout: timedelta) -> str:
    return f"{what}: ranks {ranks} did not bind within {timeout.total_seconds():g} s"


class Meeting:
    """One bind of one group: the n-th call of `Meeting(group)` on each rank meets the n-th of the others."""

    def __init__(self, group: dist.ProcessGroup, timeout: timedelta, what: str):
        self.rank, self.world, self.timeout, self.what = dist.get_rank(group), dist.get_world_size(group), timeout, what
        self.number = number = _sequence.get(group, 0)
        _sequence[group] = number + 1
        self.store = store_of(group, f"meeting/{number}", timeout, what)

    def tell(self, name: str, text: str) -> None:
        """This rank's part of `gather`, without waiting for the others."""
        self.store.set(f"{name}/{self.rank}", text)

    def gather(self, name: str, text: str) -> list[str]:
        """Every rank's text, in rank order. Raises BindError naming the ranks that did not come within the timeout."""
        self.tell(name, text)
        keys = [f"{name}/{r}" for r in range(self.world)]
        try:
            self.store.wait(keys, self.timeout)
        except Exception as e:
            missing = [r for r, key in enumerate(keys) if not self.store.check([key])]
            raise BindError(_absent(self.what, missing, self.timeout)) from e
        return [self.store.get(key).decode() for key in keys]

    def agree(self, fields: dict[str, str]) -> None:
        """Raises BindError on all ranks when any field differs between ranks, naming ranks and field."""
        everyone = [json.loads(t) for t in self.gather("fields", json.dumps(fields))]
        first = everyone[0]
        problems = []
        for name in {k: None for f in everyone for k in f}:
            odd = [r for r, f in enumerate(everyone) if f.get(name) != first.get(name)]
            if odd:
                shown = "; ".join(f"rank {r}: {str(everyone[r].get(name))[:80]}" for r in [0, *odd[:3]])
                problems.append(f"`{name}` differs on ranks {odd} ({shown})")
        if problems:
            raise BindError(f"{self.what}: the ranks do not agree: " + "; ".join(problems))

    def report(self, problem: str) -> None:
        """Tell the others that this rank could not bind (or that it could, with ""). Raises BindError on all ranks when any could not."""
        problems = [(r, t) for r, t in enumerate(self.gather("ready", problem)) if t]
        if problems:
            raise BindError(f"{self.what}: " + "; ".join(f"rank {r}: {t}" for r, t in problems))
