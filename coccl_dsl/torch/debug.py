"""COCCL_DEBUG=1: before each call, the ranks of its group compare what they are about to do, over the group's store. A difference raises on all
of them, where it would otherwise hang or, with sizes that differ by little, give a wrong result. It waits for the host: for finding faults.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..runtime.agreement import store_of
from ..runtime.errors import CollectiveError
from ..runtime.transports.torch_p2p import group_timeout

Splits = tuple[Sequence[int], Sequence[int]]
_calls: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def enabled() -> bool:
    return os.environ.get("COCCL_DEBUG", "0") not in ("", "0")


def compare(pg: dist.ProcessGroup, x: torch.Tensor, what: str, splits: Splits | None = None) -> None:
    """Raises CollectiveError on all ranks where their n-th call differs in `what`, or a rank sends another what that does not expect. splits:
    elements to and from each rank; x's size is compared where there are none."""
    number = _calls[pg] = _calls.get(pg, -1) + 1
    rank, size = pg.rank(), pg.size()
    text = what if splits is not None else f"{what}, {x.numel()} elements of {str(x.dtype).removeprefix('torch.')}"
    timeout = group_timeout(pg, x.device)
    store = store_of(pg, "compare", timeout, what)
    store.set(f"{number}/{rank}", json.dumps([text, splits and [list(s) for s in splits]]))
    if number > 1:  # all ranks have read the call before the last, or they would not have come to the last
        store.delete_key(f"{number - 2}/{rank}")
    keys = [f"{number}/{r}" for r in range(size)]
    where = f"call {number} of this process group"
    try:
        store.wait(keys, timeout)
    except Exception as e:
        missing = [r for r, key in enumerate(keys) if not store.check([key])]
        raise CollectiveError(f"{where}: ranks {missing} did not come to {text} within the timeout") from e
    told = [json.loads(store.get(key)) for key in keys]
    if any(t[0] != told[0][0] for t in told):
        raise CollectiveError(
            f"{where} differs between ranks: " + "; ".join(f"rank {r}: {t[0]}" for r, t in enumerate(told))
        )
    if splits is None:
        return
    for i, (_, (sends, _)) in enumerate(told):
        for j, (_, (_, receives)) in enumerate(told):
            if sends[j] != receives[i]:
                raise CollectiveError(
                    f"{where}, {what}: rank {i} sends rank {j} {sends[j]} elements, which expects {receives[i]} of it"
                )
