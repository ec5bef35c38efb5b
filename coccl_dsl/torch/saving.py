"""States as bytes, for torch.save and torch.distributed.checkpoint alike.

A checkpoint's tensors are taken to be the same on all ranks or to be DTensors, and have to be there before it is loaded. States of compressors
are neither: each rank has its own, and they are made when a call is first made. So a rank's part is one value under a key of its own.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from ..runtime.op import Op


def saved(state: dict[str, Any]) -> bytes:
    """Tensors, numbers, texts, lists and dicts as bytes; tensors go to the CPU."""
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def loaded(data: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def restart(op: Op) -> None:
    """Put an op where a fresh one starts. Unlike `Op.reset`, after which numbers must not be drawn again, this is for a rollback to before its
    first call: it draws them again."""
    op.reset()
    executor = op._executor
    if executor is not None:
        executor.rng[1] = 0
        executor.count = None
