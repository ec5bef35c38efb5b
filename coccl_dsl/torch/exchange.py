"""all_to_all, whose parts may differ in size: what a rank sends in all is not common knowledge, so nothing depends on it.

Each (sender, receiver) pair decides from the count that both know: below min_bytes the part goes raw inside the same plan; above what one
rank's share of the arena holds it goes raw beside it. The op, with its capacity for a pair, is one for all calls of a dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..runtime.errors import CollectiveError
from ..runtime.op import Op
from ..runtime.transports.torch_p2p import MAX_TAG
from ..wire.codec import FRAME
from ..wire.layout import bits_per_value, wire_bytes
from . import debug, traffic
from .groups import MIB, Taken

if TYPE_CHECKING:
    from .intercept import Kernels

# Parts that go beside the plan meet under a tag of their own.
_TAG = (MAX_TAG + 2) << 20


def pair_capacity(arena_bytes: int, size: int, itemsize: int) -> int:
    """Elements from a rank to another that the arena holds, sent and received, at the tensor's own width: whole frames, at least one."""
    return max(1, arena_bytes // (2 * size * itemsize) // FRAME) * FRAME


def all_to_all_parts(
    kernels: Kernels, taken: Taken, x: torch.Tensor, out: torch.Tensor, sends: list[int], receives: list[int]
) -> Callable[[], None]:
    """What runs the call. sends, receives: rows of dimension 0 for each rank; empty for even parts."""
    state, kind, rule = taken
    groups, pg = kernels.groups, state.pg
    n, rank = pg.size(), pg.rank()
    sent, got = _elements(x, sends, n), _elements(out, receives, n)
    if groups.debug:
        debug.compare(pg, x, "all_to_all", (sent, got))
    most = pair_capacity(groups.policy.arena_mib * MIB, n, x.element_size())
    bound = groups.bound(state, rule, "all_to_all", x, most * n, min_bytes=rule.min_bytes)

    def run() -> None:
        flat = x.detach().contiguous().reshape(-1)
        into = out.detach() if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
        y = into.reshape(-1)
        large = [c > most for c in sent], [c > most for c in got]
        if any(large[0]) or any(large[1]):
            _with_large(bound.op, pg, flat, y, sent, got, large)
        else:
            bound.op(flat, y, input_splits=sent, output_splits=got)
        if into is not out and not out.is_contiguous():
            out.detach().copy_(into)
        plain, wire = _sizes(bound.op, x.element_size(), rank, sent, rule.min_bytes, most)
        traffic.record(kind.role, kind.op, bound.algorithm, bound.compressor, plain, wire)

    return run


def _elements(t: torch.Tensor, rows: Sequence[int], n: int) -> list[int]:
    if rows:
        width = prod(t.shape[1:])
        if len(rows) != n or sum(rows) != (t.shape[0] if t.dim() else 1):
            raise ValueError(f"splits {list(rows)} do not fit {n} ranks and a tensor of shape {tuple(t.shape)}")
        return [r * width for r in rows]
    if t.numel() % n or (t.dim() and t.shape[0] % n):
        raise ValueError(f"a tensor of shape {tuple(t.shape)} has no even parts for {n} ranks")
    return [t.numel() // n] * n


def _with_large(
    op: Op,
    pg: dist.ProcessGroup,
    flat: torch.Tensor,
    y: torch.Tensor,
    sent: list[int],
    got: list[int],
    large: tuple[list[bool], list[bool]],
) -> None:
    """Parts above the capacity of a pair go raw, the others through the op, from and into tensors without them."""
    rank, device = pg.rank(), flat.device
    parts, places = list(flat.split(sent)), list(y.split(got))
    if sent[rank] != got[rank]:
        raise ValueError(f"rank {rank} keeps {sent[rank]} elements for itself but expects {got[rank]}")
    if large[0][rank]:
        places[rank].copy_(parts[rank])
    backend: Any = pg._get_backend(device)
    messages = [(backend.recv, places[r], r) for r in range(len(got)) if large[1][r] and r != rank]
    messages += [(backend.send, parts[r], r) for r in range(len(sent)) if large[0][r] and r != rank]
    batch = bool(messages) and backend.supports_coalescing
    if batch:
        backend._start_coalescing()
    works = [move([t], r, _TAG) for move, t, r in messages]
    if batch:
        works = [backend._end_coalescing()]
    small = [0 if big else c for c, big in zip(sent, large[0], strict=True)]
    wanted = [0 if big else c for c, big in zip(got, large[1], strict=True)]
    joined = torch.cat([p for p, big in zip(parts, large[0], strict=True) if not big] or [flat[:0]])
    result = op(joined, input_splits=small, output_splits=wanted)
    for place, piece, big in zip(places, result.split(wanted), large[1], strict=True):
        if not big:
            place.copy_(piece)
    try:
        for work in works:
            work.wait()
    except RuntimeError as e:
        raise CollectiveError(f"all_to_all: a part sent raw failed: {e}") from e


def _sizes(op: Op, size: int, rank: int, sent: list[int], min_bytes: int, most: int) -> tuple[int, int]:
    """(raw bytes, wire bytes) that this rank sends. size: bytes of an element."""
    assert op.plan is not None
    codec = max(op.plan.codecs.values(), key=bits_per_value)
    plain = wire = 0
    for r, count in enumerate(sent):
        if r == rank or not count:
            continue
        plain += count * size
        wire += count * size if count * size < min_bytes or count > most else wire_bytes(codec, count)
    return plain, wire
