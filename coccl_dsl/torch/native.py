"""Torch's own collective in the place of an op: where the calibration table says that it is quicker, `auto` takes it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from ..pipeline import op_factor
from ..runtime.errors import CollectiveError
from ..shown import Explanation

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


class NativeOp:
    """Called as an `Op` of the same kind is. Goes to the group's Backend, beneath the dispatcher, where the transparent path would take it again.

    why: of `explain()`.
    """

    def __init__(self, kind: str, group: dist.ProcessGroup, op: str, why: str):
        assert kind in KINDS
        self.kind, self.group, self.op, self.why = kind, group, op, why
        self.factor = op_factor(op, group.size())

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None, *, async_op: bool = False) -> Any:
        """The result, or a `NativeWork`. Raises ValueError for arguments that do not fit, CollectiveError where torch's call fails."""
        n = self.group.size()
        if self.kind in ("reduce_scatter", "all_to_all") and x.numel() % n:
            raise ValueError(f"{x.numel()} elements have no even parts for {n} ranks")
        with torch.no_grad():
            y = out.detach() if out is not None else x.new_empty(self._shape(x, n))
            if y.dtype != x.dtype or y.device != x.device or not y.is_contiguous():
                raise ValueError(
                    f"out is {y.dtype} on {y.device}, contiguous: {y.is_contiguous()}; wanted is a contiguous one of {x.dtype} on {x.device}"
                )
            if y.numel() != self._count(x, n):
                raise ValueError(f"out has {y.numel()} elements, the result {self._count(x, n)}")
            flat = x.detach().contiguous()
            reduces = self.kind in ("all_reduce", "reduce_scatter")
            # gloo has neither AVG nor PREMUL_SUM; a factor before the sum is what our own ops do too.
            if reduces and self.factor is not None:
                flat = flat * self.factor
            try:
                work = self._start(flat, y)
                result = out if out is not None else y
                if async_op:
                    return NativeWork(result, work, flat)
                work.wait()
            except RuntimeError as e:
                raise CollectiveError(f"torch's own {self.kind}: {e}") from e
        return result

    def _start(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        backend: Any = self.group._get_backend(x.device)
        match self.kind:
            case "all_reduce":
                if y.data_ptr() != x.data_ptr():
                    y.view(-1).copy_(x.view(-1))
                return backend.allreduce([y], dist.AllreduceOptions())
            case "reduce_scatter":
                return backend._reduce_scatter_base(y.view(-1), x.view(-1), dist.ReduceScatterOptions())
            case "all_gather":
                return backend._allgather_base(y.view(-1), x.view(-1), AllgatherOptions())
        return backend.alltoall_base(y.view(-1), x.view(-1), [], [], dist.AllToAllOptions())

    def _count(self, x: torch.Tensor, n: int) -> int:
        return {"all_gather": x.numel() * n, "reduce_scatter": x.numel() // n}.get(self.kind, x.numel())

    def _shape(self, x: torch.Tensor, n: int) -> tuple[int, ...]:
        if self.kind == "all_gather":
            return (n * x.shape[0], *x.shape[1:]) if x.dim() else (n,)
        if self.kind == "reduce_scatter":
            return (x.shape[0] // n, *x.shape[1:]) if x.dim() and x.shape[0] % n == 0 else (x.numel() // n,)
        return tuple(x.shape)

    def explain(self) -> Explanation:
        return Explanation(f"torch's own {self.kind} ({self.op}) of group {self.group.group_name!r}: {self.why}")


class NativeWork:
    """Result of an async call: `wait()` orders the caller's stream after it, on the CPU it blocks, and gives the result."""

    def __init__(self, result: torch.Tensor, work: Any, held: torch.Tensor):
        self.result: torch.Tensor = result
        self._work, self._held = work, held

    def wait(self) -> torch.Tensor:
        if self._work is not None:
            self._work.wait()
        self._work = self._held = None
        return self.result
