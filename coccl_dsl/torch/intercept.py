"""Kernels on torch's c10d operators, beneath autograd and above the devices: what a training script calls comes through here, groups stay
native (form B of facts/torch_integration.md, sections 1 and 12).

A kernel looks its call up (`Groups.decide`) and either hands it on untouched, with the GIL released, or runs an op of ours on the same
tensors. What a call is decided by is known to all of its ranks alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..runtime.errors import CollectiveError
from ..runtime.untraced import leave_untraced
from . import traffic
from .exchange import all_to_all_parts
from .groups import Groups, Kind, Taken, reduction_of
from .p2p import single
from .selection import Bound
from .works import issue

_PG = "__torch__.torch.classes.c10d.ProcessGroup process_group"
_OP = "__torch__.torch.classes.c10d.ReduceOp reduce_op"
_WORK = "__torch__.torch.classes.c10d.Work"
_END = "bool async_op=True, int timeout=-1"
# What torch 2.11 to 2.14 have. Another torch may pass other arguments, so it is left alone.
SCHEMAS = {
    "allreduce_": f"(Tensor[] tensors, {_PG}, {_OP}, Tensor? sparse_indices, {_END}) -> (Tensor[], {_WORK})",
    "allreduce_coalesced_": f"(Tensor[] tensors, {_PG}, {_OP}, {_END}) -> {_WORK}",
    "_allgather_base_": f"(Tensor output_tensor, Tensor input_tensor, {_PG}, {_END}) -> (Tensor, {_WORK})",
    "allgather_into_tensor_coalesced_": f"(Tensor[] outputs, Tensor[] inputs, {_PG}, bool async_op=True) -> {_WORK}",
    "allgather_": f"(Tensor[][] output_tensors, Tensor[] input_tensors, {_PG}, {_END}) -> (Tensor[][], {_WORK})",
    "_reduce_scatter_base_": f"(Tensor output_tensor, Tensor input_tensor, {_PG}, {_OP}, {_END}) -> (Tensor, {_WORK})",
    "reduce_scatter_tensor_coalesced_": f"(Tensor[] outputs, Tensor[] inputs, {_PG}, {_OP}, {_END}) -> {_WORK}",
    "reduce_scatter_": f"(Tensor[] output_tensors, Tensor[][] input_tensors, {_PG}, {_OP}, {_END}) -> (Tensor[], {_WORK})",
    "alltoall_base_": f"(Tensor output, Tensor input, {_PG}, int[] output_split_sizes, int[] input_split_sizes, {_END}) -> {_WORK}",
    "alltoall_": f"(Tensor[] output_tensors, Tensor[] input_tensors, {_PG}, {_END}) -> (Tensor[], {_WORK})",
    "broadcast_": f"(Tensor[] tensors, {_PG}, int root_rank, int root_tensor, {_END}) -> (Tensor[], {_WORK})",
    "reduce_": f"(Tensor[] tensors, {_PG}, {_OP}, int root_rank, int root_tensor, {_END}) -> {_WORK}",
    "send": f"(Tensor[] tensors, {_PG}, int dst, int tag) -> {_WORK}",
    "recv_": f"(Tensor[] tensors, {_PG}, int src, int tag) -> {_WORK}",
    "recv_any_source_": f"(Tensor[] tensors, {_PG}, int tag) -> {_WORK}",
}
_NSYS = "NSYS_PROFILING_SESSION_ID" in os.environ
_unbox = dist.ProcessGroup.unbox
_AFTER = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


def unknown_schemas() -> list[str]:
    """Operators that this torch does not have, or has with other arguments."""
    odd = []
    for name, expected in SCHEMAS.items():
        try:
            found = str(torch._C._get_schema(f"c10d::{name}", ""))
        except RuntimeError:
            found = "not there"
        if found != f"c10d::{name}{expected}":
            odd.append(f"c10d::{name}: {found}")
    return odd


class Kernels:
    """Kernels on the ops that `install` was called for; `remove` takes them off again. groups: set before the first of them runs."""

    groups: Groups

    def __init__(self) -> None:
        self._library = torch.library.Library("c10d", "IMPL")

    def install(self, op: str) -> None:
        """Look at an op's calls. A kernel in Python costs each of them some microseconds, so there are none for ops that no rule can take."""
        kernels: dict[str, dict[str, Callable[..., Any]]] = {
            "all_reduce": {"allreduce_": self.allreduce, "allreduce_coalesced_": self.allreduce_coalesced},
            "all_gather": {
                "_allgather_base_": self.allgather_base,
                "allgather_into_tensor_coalesced_": self.allgather_coalesced,
                "allgather_": self.allgather_lists,
            },
            "reduce_scatter": {
                "_reduce_scatter_base_": self.reduce_scatter_base,
                "reduce_scatter_tensor_coalesced_": self.reduce_scatter_coalesced,
                "reduce_scatter_": self.reduce_scatter_lists,
            },
            "all_to_all": {"alltoall_base_": self.alltoall_base, "alltoall_": self.alltoall_lists},
            "broadcast": {"broadcast_": self.broadcast},
            "reduce": {"reduce_": self.reduce},
            "send": {"send": self.send, "recv_": self.recv, "recv_any_source_": self.recv_any_source},
        }
        for name, kernel in kernels[op].items():
            native = getattr(torch.ops.c10d, name).default.redispatch
            leave_untraced(kernel)
            self._library.impl(name, partial(kernel, native), "BackendSelect", with_keyset=True)

    def remove(self) -> None:
        self._library._destroy()

    # ------------------------------------------------------------ one tensor

    def allreduce(self, native, ks, tensors, so, rop, sparse=None, *rest):
        pg = _unbox(so)
        if len(tensors) == 1 and not self.groups.passes(pg, "all_reduce", t := tensors[0]) and sparse is None:
            taken = self.groups.decide(pg, "all_reduce", t, t.numel(), rop.op())
            if taken is not None:

                def exact(x):
                    return _wait(native(ks & _AFTER, [x], so, rop, None), x)

                run = self.call(taken, t, t, rop, exact)
                return tensors, issue(pg, t.device, _async(rest), run, tensors, t).boxed()
        return native(ks & _AFTER, tensors, so, rop, sparse, *rest)

    def allgather_base(self, native, ks, out, x, so, *rest):
        pg = _unbox(so)
        taken = self.gathers(pg, x, out)
        if taken is None:
            return native(ks & _AFTER, out, x, so, *rest)

        def exact(given):
            y = torch.empty_like(out)
            return _wait(native(ks & _AFTER, y, given, so), y)

        run = self.call(taken, x, out, None, exact)
        return out, issue(pg, x.device, _async(rest), run, [out], (x, out)).boxed()

    def reduce_scatter_base(self, native, ks, out, x, so, rop, *rest):
        pg = _unbox(so)
        taken = self.scatters(pg, x, out, rop)
        if taken is None:
            return native(ks & _AFTER, out, x, so, rop, *rest)

        def exact(given):
            y = torch.empty_like(out)
            return _wait(native(ks & _AFTER, y, given, so, rop), y)

        run = self.call(taken, x, out, rop, exact)
        return out, issue(pg, x.device, _async(rest), run, [out], (x, out)).boxed()

    def broadcast(self, native, ks, tensors, so, root, root_tensor, *rest):
        pg = _unbox(so)
        if len(tensors) == 1 and not self.groups.passes(pg, "broadcast", t := tensors[0]):
            taken = self.groups.decide(pg, "broadcast", t, t.numel(), where=root)
            if taken is not None:

                def exact(x):
                    return _wait(native(ks & _AFTER, [x], so, root, root_tensor), x)

                run = self.call(taken, t, t, None, exact, root=root)
                return tensors, issue(pg, t.device, _async(rest), run, tensors, t).boxed()
        return native(ks & _AFTER, tensors, so, root, root_tensor, *rest)

    def reduce(self, native, ks, tensors, so, rop, root, root_tensor, *rest):
        pg = _unbox(so)
        if len(tensors) == 1 and not self.groups.passes(pg, "reduce", t := tensors[0]):
            taken = self.groups.decide(pg, "reduce", t, t.numel(), rop.op(), where=root)
            if taken is not None:
                run = self.call(taken, t, t if pg.rank() == root else None, rop, None, root=root)
                return issue(pg, t.device, _async(rest), run, tensors, t).boxed()
        return native(ks & _AFTER, tensors, so, rop, root, root_tensor, *rest)

    # ------------------------------------------------------------ coalesced: each tensor on its own

    def allreduce_coalesced(self, native, ks, tensors, so, rop, *rest):
        def left(some):
            return native(ks & _AFTER, [x for x, _ in some], so, rop, *rest)

        def decide(pg, x, _):
            return (
                None
                if self.groups.passes(pg, "all_reduce", x)
                else self.groups.decide(pg, "all_reduce", x, x.numel(), rop.op())
            )

        return self.coalesced(so, [(t, t) for t in tensors], decide, rop, left, rest)

    def allgather_coalesced(self, native, ks, outs, inputs, so, *rest):
        def left(some):
            return native(ks & _AFTER, [y for _, y in some], [x for x, _ in some], so, *rest)

        return self.coalesced(so, list(zip(inputs, outs, strict=True)), self.gathers, None, left, rest)

    def reduce_scatter_coalesced(self, native, ks, outs, inputs, so, rop, *rest):
        def left(some):
            return native(ks & _AFTER, [y for _, y in some], [x for x, _ in some], so, rop, *rest)

        def decide(pg, x, y):
            return self.scatters(pg, x, y, rop)

        return self.coalesced(so, list(zip(inputs, outs, strict=True)), decide, rop, left, rest)

    def coalesced(self, so, pairs, decide, rop, left, rest):
        """left: runs some of the pairs natively and returns their boxed Work."""
        pg = _unbox(so)
        taken = [decide(pg, x, y) for x, y in pairs]
        if not any(taken):
            return left(pairs)
        runs = [self.call(t, x, y, rop, None) for t, (x, y) in zip(taken, pairs, strict=True) if t is not None]
        others = [p for t, p in zip(taken, pairs, strict=True) if t is None]

        def run() -> None:
            for one in runs:
                one()
            if others:
                dist.Work.unbox(left(others)).wait()

        return issue(pg, pairs[0][0].device, _async(rest), run, [y for _, y in pairs], pairs).boxed()

    # ------------------------------------------------------------ lists

    def allgather_lists(self, native, ks, outs, inputs, so, *rest):
        if len(inputs) == 1 and len(outs) == 1:
            pg, x, parts = _unbox(so), inputs[0], outs[0]
            even = len(parts) == pg.size() and all(p.numel() == x.numel() and p.dtype == x.dtype for p in parts)
            taken = self.gathers(pg, x, None) if even else self.uneven(pg, "all_gather", x)
            if taken is not None:

                def run() -> None:
                    joined = x.new_empty(len(parts) * x.numel())
                    self.call(taken, x, joined, None, None)()
                    for part, piece in zip(parts, joined.chunk(len(parts)), strict=True):
                        part.detach().copy_(piece.view(part.shape))

                return outs, issue(pg, x.device, _async(rest), run, outs, (inputs, outs)).boxed()
        return native(ks & _AFTER, outs, inputs, so, *rest)

    def reduce_scatter_lists(self, native, ks, outs, inputs, so, rop, *rest):
        if len(inputs) == 1 and len(outs) == 1:
            pg, out, parts = _unbox(so), outs[0], inputs[0]
            even = len(parts) == pg.size() and all(p.numel() == out.numel() and p.dtype == out.dtype for p in parts)
            if even:
                count = len(parts) * out.numel()
                shut = self.groups.shut(pg, "reduce_scatter")
                taken = None if shut else self.groups.decide(pg, "reduce_scatter", out, count, rop.op())
            else:
                taken = self.uneven(pg, "reduce_scatter", out)
            if taken is not None:

                def run() -> None:
                    joined = torch.cat([p.detach().reshape(-1) for p in parts])
                    self.call(taken, joined, out, rop, None)()

                return outs, issue(pg, out.device, _async(rest), run, outs, (inputs, outs)).boxed()
        return native(ks & _AFTER, outs, inputs, so, rop, *rest)

    def uneven(self, pg: dist.ProcessGroup, op: str, t: torch.Tensor) -> None:
        self.groups.record_native(pg, op, "tensors of different sizes")

    # ------------------------------------------------------------ all to all

    def alltoall_base(self, native, ks, out, x, so, out_splits, in_splits, *rest):
        pg = _unbox(so)
        taken = None
        if not self.groups.shut(pg, "all_to_all") and out.dtype == x.dtype:
            taken = self.groups.decide(pg, "all_to_all", x, None)
        if taken is None:
            return native(ks & _AFTER, out, x, so, out_splits, in_splits, *rest)
        run = all_to_all_parts(self, taken, x, out, list(in_splits), list(out_splits))
        return issue(pg, x.device, _async(rest), run, [out], (x, out)).boxed()

    def alltoall_lists(self, native, ks, outs, inputs, so, *rest):
        pg = _unbox(so)
        taken = None
        if not self.groups.shut(pg, "all_to_all") and inputs:
            taken = self.groups.decide(pg, "all_to_all", inputs[0], None)
        if taken is None:
            return native(ks & _AFTER, outs, inputs, so, *rest)

        def run() -> None:
            x = torch.cat([t.detach().reshape(-1) for t in inputs])
            y = x.new_empty(sum(t.numel() for t in outs))
            all_to_all_parts(self, taken, x, y, [t.numel() for t in inputs], [t.numel() for t in outs])()
            for t, piece in zip(outs, y.split([t.numel() for t in outs]), strict=True):
                t.detach().copy_(piece.view(t.shape))

        return outs, issue(pg, inputs[0].device, _async(rest), run, outs, (inputs, outs)).boxed()

    # ------------------------------------------------------------ two ranks

    def send(self, native, ks, tensors, so, dst, tag):
        work = single(self.groups, _unbox(so), tensors, True, dst, tag)
        return work.boxed() if work is not None else native(ks & _AFTER, tensors, so, dst, tag)

    def recv(self, native, ks, tensors, so, src, tag):
        work = single(self.groups, _unbox(so), tensors, False, src, tag)
        return work.boxed() if work is not None else native(ks & _AFTER, tensors, so, src, tag)

    def recv_any_source(self, native, ks, tensors, so, tag):
        pg = _unbox(so)
        if any(self.groups.decide(pg, "send", t, t.numel(), where=("any", tag)) for t in tensors):
            raise CollectiveError(
                f"recv of {tensors[0].numel()} elements of {tensors[0].dtype} without a source: the policy compresses what is sent here, and what "
                "comes can only be read where its source is known. Name src=, or leave this group's send out of the policy"
            )
        return native(ks & _AFTER, tensors, so, tag)

    # ------------------------------------------------------------ shared

    def gathers(self, pg: dist.ProcessGroup, x: torch.Tensor, out: torch.Tensor | None) -> Taken | None:
        if (
            self.groups.passes(pg, "all_gather", x)
            or out is not None
            and (out.numel() != x.numel() * pg.size() or out.dtype != x.dtype)
        ):
            return None  # torch says what is wrong
        return self.groups.decide(pg, "all_gather", x, x.numel())

    def scatters(self, pg: dist.ProcessGroup, x: torch.Tensor, out: torch.Tensor, rop: Any) -> Taken | None:
        if self.groups.passes(pg, "reduce_scatter", x) or x.numel() != out.numel() * pg.size() or out.dtype != x.dtype:
            return None
        return self.groups.decide(pg, "reduce_scatter", x, x.numel(), rop.op())

    def call(
        self,
        taken: Taken,
        x: torch.Tensor,
        out: torch.Tensor | None,
        rop: Any,
        exact: Callable[[torch.Tensor], torch.Tensor] | None,
        **options: Any,
    ) -> Callable[[], None]:
        """What runs the op on x into out (None: into nothing). exact: the native result for an input, for debug mode."""
        state, kind, rule = taken
        reduction = (reduction_of(rop.op()) if rop is not None else None) or "sum"
        bound = self.groups.bound(state, rule, kind.op, x, x.numel(), reduction, **options)

        def run() -> None:
            given = x.detach()
            checked = exact is not None and self.checks(kind, x)
            before = given.clone() if checked else None
            with ranged(kind, bound):
                if out is None or out.is_contiguous():
                    bound.op(given, out.detach() if out is not None else None)
                else:
                    out.detach().copy_(bound.op(given.contiguous()).view(out.shape))
            traffic.record(kind.role, kind.op, bound.algorithm, bound.compressor, *bound.sizes(x.numel()))
            if before is not None and exact is not None and out is not None:
                self.compare(kind, bound, out, exact(before))

        return run

    def checks(self, kind: Kind, x: torch.Tensor) -> bool:
        every = self.groups.policy.debug_every
        if not every or kind.calls % every:
            return False
        return x.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()

    def compare(self, kind: Kind, bound: Bound, out: torch.Tensor, right: torch.Tensor) -> None:
        right = right.detach().double()
        size = float(right.norm())
        off = float((out.detach().double() - right).norm())
        relative = off / size if size else off
        traffic.record_error(kind.role, kind.op, bound.algorithm, bound.compressor, relative)


def _async(rest: tuple[Any, ...]) -> bool:
    """Of an operator's last arguments (async_op, timeout), which are left out where they have their defaults."""
    return rest[0] if rest else True


def _wait(result: Any, value: torch.Tensor) -> torch.Tensor:
    """Wait for a boxed Work, alone or after the outputs."""
    dist.Work.unbox(result[-1] if isinstance(result, Sequence) else result).wait()
    return value


def ranged(kind: Kind, bound: Bound) -> Any:
    """A range named by role and plan, while a profiler runs: torch's, or Nsight Systems."""
    name = f"coccl {kind.role}.{kind.op} {bound.algorithm} {bound.compressor}"
    if torch.autograd._profiler_enabled():  # pyright: ignore[reportPrivateImportUsage]
        return torch.profiler.record_function(name)
    return torch.cuda.nvtx.range(name) if _NSYS else nullcontext()
