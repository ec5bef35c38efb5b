"""all_to_all with torch's splits, which are rows of dimension 0: in elements, and with a capacity that all ranks agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from ..runtime.dispatch import capturing
from ..runtime.errors import CollectiveError
from .calls import Asked


def in_elements(
    x: torch.Tensor,
    group: dist.ProcessGroup,
    output_splits: Sequence[int] | None,
    input_splits: Sequence[int] | None,
    capacity: int | None,
    asked: Asked,
) -> tuple[Asked, dict[str, Any]]:
    """What to bind and the splits of the call, for torch's arguments; splits that are not given are even.

    capacity  the most rows that any rank sends another, in this call and later ones, alike on all ranks. None or 0: the ranks find the largest of
              this call with an all-reduce of one number, which waits for the device

    Raises ValueError for splits that do not fit x, CollectiveError where a capacity would have to be found under CUDA graph capture.
    """
    n, rows = group.size(), x.shape[0] if x.dim() else 0
    if input_splits is None and rows % n:
        raise ValueError(
            f"all_to_all: dimension 0 of x, {rows}, is not a multiple of the group's {n} ranks; give splits"
        )
    if input_splits is None and output_splits is None:
        return asked, {}
    width = x.numel() // rows if rows else max(1, _product(x.shape[1:]))
    sends = list(input_splits) if input_splits is not None else [rows // n] * n
    receives = list(output_splits) if output_splits is not None else [rows // n] * n
    for name, splits in (("input_splits", sends), ("output_splits", receives)):
        if len(splits) != n or any(s < 0 for s in splits):
            raise ValueError(f"all_to_all: {name}={splits}: {n} numbers of rows are wanted, one a rank")
    if sum(sends) != rows:
        raise ValueError(f"all_to_all: input_splits={sends} add up to {sum(sends)}, x has {rows} rows")
    if capacity:
        if max(*sends, *receives) > capacity:
            raise ValueError(f"all_to_all: a part of {max(*sends, *receives)} rows is more than capacity={capacity}")
        pair = capacity * width
    else:
        pair = _largest(max(*sends, *receives) * width, x, group)
    elements = {"input_splits": [s * width for s in sends], "output_splits": [r * width for r in receives]}
    return replace(asked, pair=pair), elements


def _product(sizes: Sequence[int]) -> int:
    return torch.Size(sizes).numel()


def _largest(own: int, x: torch.Tensor, group: dist.ProcessGroup) -> int:
    """The largest part of any rank, rounded up to a power of two."""
    if capturing(x):
        raise CollectiveError(
            "all_to_all with splits under CUDA graph capture needs capacity=: it cannot be found there"
        )
    found = torch.tensor([own], dtype=torch.int64, device=x.device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return 1 << max(0, int(found) - 1).bit_length()
