"""A bound collective: called with tensors, it checks them, runs the plan over its transport, and keeps calls in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.graph import increment_version
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..codegen.casts import to_dtype
from ..codegen.eager import EagerBackend
from ..pipeline import World
from ..plan.cut import Cut
from ..plan.ops import Copy, Plan
from ..shown import Explanation
from .agreement import Meeting
from .dtypes import dtype_name
from .errors import BindError, CollectiveError
from .executor import Executor
from .own_graphs import OwnGraph, OwnGraphs, unavailable
from .record import Record, record_of
from .replay import call_number, in_region
from .transports.base import Transport, drive
from .transports.local import run_all
from .transports.torch_p2p import group_timeout
from .untraced import leave_untraced

if TYPE_CHECKING:
    from ..pipeline import Collective

_device_locks: dict[torch.device, threading.RLock] = {}
# Of works that nobody waited for: an event, and the tensors that are in use until it comes.
_left: deque[tuple[Any, tuple[torch.Tensor, ...]]] = deque()


@dataclass(frozen=True)
class LocalGroup:
    """All ranks in this process: bind with it, and call the op with one tensor a rank."""

    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"LocalGroup({self.size!r}): a number of ranks is wanted")


@dataclass(frozen=True)
class Settings:
    """What was asked of bind, after defaults."""

    op: str
    capacity: int
    mesh: dict[str, int] | None
    root: int
    seed: int
    depth: int | None
    transport: str
    backend: str
    fuse: bool
    compressors: dict[str, str]
    min_bytes: int = 0
    arena_bytes: int | None = None
    graphs: bool = True
    one_launch: bool | None = None


class Turn:
    """Ops that share wire memory run one after the other, whatever their streams.

    All that a call enqueues on a GPU is enqueued under one lock a device. On the CPU a call blocks until its peers take part, so a lock of all
    groups could be held by two threads that wait for each other on two ranks: there the lock is the group's own.
    """

    def __init__(self, device: torch.device):
        self.last: torch.cuda.Stream | None = None
        self.lock = _device_locks.setdefault(device, threading.RLock()) if device.type == "cuda" else threading.RLock()

    def order(self, stream: torch.cuda.Stream) -> None:
        if self.last is not None and self.last != stream and not torch.cuda.is_current_stream_capturing():
            stream.wait_stream(self.last)
        self.last = stream

    def order_raw(self, stream: int, device: torch.device) -> None:
        """The same for the current stream, given as a cudaStream_t, outside of captures."""
        if self.last is None or self.last.cuda_stream != stream:
            self.order(torch.cuda.current_stream(device))


class Work:
    """Result of an async call. `wait()` orders the caller's stream after it and never blocks the host; holds the tensors until then."""

    def __init__(self, result: torch.Tensor, held: tuple[torch.Tensor, ...], done: Any):
        self.result: torch.Tensor = result
        self._held: tuple[torch.Tensor, ...] | None = held
        self._done = done

    def wait(self) -> torch.Tensor:
        if self._done is not None:
            torch.cuda.current_stream(self.result.device).wait_event(self._done)
        self._held = None
        return self.result

    def __del__(self) -> None:
        # Nobody waited: the side stream may still be at it, and the allocator would hand the memory on.
        if self._done is not None and self._held is not None:
            while _left and _left[0][0].query():
                _left.popleft()
            _left.append((self._done, (self.result, *self._held)))


class Op:
    """A bound collective. Call it with a tensor of the bound dtype and device, of at most `capacity` elements.

    plan       this rank's Plan, or None in a group of one
    transport  the one that is used
    """

    def __init__(
        self,
        collective: Collective,
        world: World,
        rank: int,
        plan: Plan | None,
        executor: Executor | None,
        transport: Transport | None,
        settings: Settings,
        device: torch.device,
        dtype: torch.dtype,
        note: str = "",
        turn: Turn | None = None,
    ):
        self.note = note
        self.collective, self.world, self.rank, self.plan = collective, world, rank, plan
        self._executor, self.transport, self.settings = executor, transport, settings
        self.device, self.dtype = device, dtype
        self._side: torch.cuda.Stream | None = None
        self._on_gpu = device.type == "cuda"
        self.turn = turn if turn is not None else Turn(device)
        self.graphs = OwnGraphs(self._why_no_graphs())
        self.closed = ""
        self.record: Record | None = None
        self.what = ""  # in a record, the same on all ranks
        self._group: dist.ProcessGroup | None = None
        self._changed = False

    def close(self, why: str) -> None:
        """Let go of memory, states, transport and captured graphs. Nothing of the op may still run; calls from now on raise, and say why."""
        with self.turn.lock:
            self.closed = why
            self.graphs.of.clear()
            self._executor = self.transport = self._side = None

    def check_open(self) -> None:
        """Raises CollectiveError for an op that was closed."""
        if self.closed:
            raise CollectiveError(f"{self!r} can no longer be used: {self.closed}")

    def _why_no_graphs(self) -> str:
        """Why calls of this op are not replayed from graphs of its own, or ""."""
        if self._executor is None or self.transport is None or self.plan is None:
            return "nothing is launched"
        if not self.settings.graphs:
            return "graphs=False"
        if isinstance(self._executor.backend, EagerBackend):
            return "its kernels are torch's"
        if any(isinstance(s, Copy) and s.pairs for s in self.plan.steps):
            return "it hands chunks on by copies of the user's memory"
        return self.transport.no_graphs or unavailable(self.device)

    def join(self, group: dist.ProcessGroup, pair: str = "") -> None:
        """Calls are calls of this group from now on. pair: of two of its ranks only."""
        self.record = record_of(group, pair)
        self._group = None if pair else group
        c, s, name = self.collective, self.settings, dtype_name(self.dtype)
        codecs = ", ".join(codec.name for codec in c.program(name, s.compressors).codecs.values())
        over = self.transport.name if self.transport is not None else "nothing"
        self.what = f"{c.kind} {c.name}({codecs}) {s.op} of {name} over {over}"

    @property
    def slices(self) -> int:
        """Slices in flight."""
        return self._executor.depth if self._executor is not None else 1

    def __repr__(self) -> str:
        return f"Op({self.collective.name}, rank {self.rank} of {self.world.count}, {self.settings.op}, {dtype_name(self.dtype)})"

    def __call__(
        self,
        x: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        async_op: bool = False,
        input_splits: Sequence[int] | None = None,
        output_splits: Sequence[int] | None = None,
    ) -> Any:
        """Run the collective on `x`.

        x      any shape; not contiguous tensors are copied first. reduce_scatter and all_to_all take a multiple of the world's size.
        out    where the result goes: contiguous, of the result's size; `out=x` is in place where torch has such a form. Else a new tensor.
        input_splits, output_splits   all_to_all only: elements to and from each rank

        Returns the result, or with async_op a `Work`. Raises TypeError / ValueError for arguments that do not fit, CollectiveError and
        CollectiveTimeout when a peer fails.
        """
        try:
            splits = None
            if input_splits is None and output_splits is None:
                if self.graphs.of and out is not None and not async_op and self._replayed(x, out):
                    return out
            else:
                if self.collective.kind != "all_to_all" or input_splits is None or output_splits is None:
                    raise ValueError("input_splits and output_splits belong together, and to all_to_all")
                splits = (tuple(input_splits), tuple(output_splits))
            # Kernels of the GPU look at addresses alone; entering no_grad costs as much as a launch.
            if (
                self._on_gpu
                and not (isinstance(x, torch.Tensor) and x.requires_grad)
                and not (out is not None and out.requires_grad)
            ):
                with self.turn.lock:
                    return self._call(x, out, async_op, splits)
            with torch.no_grad(), self.turn.lock:
                return self._call(x, out, async_op, splits)
        except CollectiveError as e:
            if self.record is not None:
                self.record.failed(e)
            raise

    def _call(self, x: torch.Tensor, out: torch.Tensor | None, async_op: bool, splits) -> Any:
        self.check_open()
        x = self._check(x, "x")
        flat = _flat(x)
        if self._executor is None:
            return self._alone(flat, x, out, async_op, splits)
        if splits is not None and self._executor.stateful:
            raise ValueError(
                f"{self!r}: a compressor keeps a state for each pair of ranks, which belongs to tensors of one size; splits are for compressors without"
            )
        if self._changed:
            self._compare_states()
        prepared_cut = self._executor.prepare(flat.numel(), splits).cut
        result = self._result(x, out, prepared_cut)
        y = _flat(result)
        if out is not None:
            self._check_alias(flat, y, prepared_cut)
        if self._on_gpu and (self.collective.kind != "send_recv" or self.rank == 1):
            increment_version(result)  # kernels write to it behind autograd's back
        if not self._on_gpu:
            self._drive(flat, y, splits)
            return Work(result, (), None) if async_op else result
        caller = torch.cuda.current_stream(self.device)
        if not async_op:
            self.turn.order(caller)
            self._drive(flat, y, splits)
            return result
        if self._side is None:
            self._side = torch.cuda.Stream(self.device)
        self._side.wait_stream(caller)
        self.turn.order(self._side)
        with torch.cuda.stream(self._side):
            self._drive(flat, y, splits)
            done = self._side.record_event()
        return Work(result, (flat, y, x), done)

    def _replayed(self, x: torch.Tensor, out: torch.Tensor) -> bool:
        """Replay the call if it is one that was captured and its arguments are plainly right: the short way. What is not is for `_call`."""
        try:
            graph = self.graphs.of[x.numel()]
        except (KeyError, AttributeError):
            return False
        index = self.device.index
        if (
            not isinstance(out, torch.Tensor)
            or x.dtype is not self.dtype
            or out.dtype is not self.dtype
            or x.get_device() != index
            or out.get_device() != index
            or not x.is_contiguous()
            or not out.is_contiguous()
            or out.numel() != graph.outputs
        ):
            return False
        px, py, size = x.data_ptr(), out.data_ptr(), self.dtype.itemsize
        if not px or not py:  # of a wrapper, or of no elements
            return False
        apart = px + graph.inputs * size <= py or py + graph.outputs * size <= px
        if not apart and not (px == py and graph.in_place):
            return False
        with self.turn.lock:
            if not self._may_replay(x.numel()) or torch._C._cuda_getDevice() != index:
                return False
            self.turn.order_raw(torch._C._cuda_getCurrentRawStream(index), self.device)
            self._launch(graph, px, py)
        increment_version(out)
        return True

    def _may_replay(self, count: int) -> bool:
        executor = self._executor
        assert executor is not None
        # A first call with a state is another one, and another count begins afresh.
        changed = executor.plan.stateful and (executor.fresh or executor.count != count)
        return not changed and not in_region() and not torch._C._cuda_isCurrentStreamCapturing()

    def _launch(self, graph: OwnGraph, px: int, py: int) -> None:
        assert self._executor is not None and self.transport is not None
        self.transport.check()
        if self.record is not None:
            self.record.add(self.what, graph.inputs)
        graph.launch(px, py, torch._C._cuda_getCurrentRawStream(self.device.index))
        self.transport.replayed()
        self._executor.calls += 1
        self.graphs.replays += 1

    def _drive(self, x: torch.Tensor, y: torch.Tensor, splits) -> None:
        executor, transport, count = self._executor, self.transport, x.numel()
        assert executor is not None and transport is not None
        graph = None
        if not self.graphs.why and splits is None and self._may_replay(count):
            graph = self.graphs.of.get(count)
            if graph is None and self.graphs.due(count):
                graph = self.graphs.of[count] = self._captured(x, y)
        if graph is not None:
            with torch.cuda.device(self.device):
                self._launch(graph, x.data_ptr(), y.data_ptr())
            return
        if self.record is not None:
            self.record.add(self.what, count)
        if not in_region():
            drive(executor, transport, x, y, count, splits)
            return
        with call_number(executor):
            drive(executor, transport, x, y, count, splits)

    def _captured(self, x: torch.Tensor, y: torch.Tensor) -> OwnGraph:
        executor, transport = self._executor, self.transport
        assert executor is not None and transport is not None
        prepared = executor.prepare(x.numel())
        made, aliases = prepared.cut, executor.plan.buffers.aliases
        same = [i for i, a in enumerate(aliases) if a >= 0]
        return OwnGraph(
            self.device,
            lambda launched: drive(executor, transport, x, y, x.numel(), launched=launched),
            x.data_ptr(),
            y.data_ptr(),
            made.input_count,
            made.output_count,
            bool(same) and all(made.inputs[aliases[i]] == made.outputs[i] for i in same),
            prepared,
        )

    def _alone(self, flat: torch.Tensor, x: torch.Tensor, out: torch.Tensor | None, async_op: bool, splits) -> Any:
        if flat.numel() > self.settings.capacity:
            raise ValueError(
                f"{flat.numel()} elements do not fit the op, which is bound for {self.settings.capacity}; bind with a larger capacity"
            )
        if splits is not None and splits != ((flat.numel(),), (flat.numel(),)):
            raise ValueError(f"input_splits {splits[0]} and output_splits {splits[1]}: x has {flat.numel()} elements")
        factor = self.world.factor
        v = flat.float()
        if factor is not None:
            v = v * torch.full((), factor, dtype=torch.float32, device=flat.device)
        if out is None:
            made = to_dtype(v, dtype_name(self.dtype)).reshape(x.shape)
            made = made.clone() if made.data_ptr() == x.data_ptr() else made
            return Work(made, (), None) if async_op else made
        out = self._check(out, "out")
        if out.numel() != flat.numel() or not out.is_contiguous():
            raise ValueError(
                f"out has {out.numel()} elements (contiguous: {out.is_contiguous()}), the result {flat.numel()}"
            )
        if flat.data_ptr() != out.data_ptr() and _overlap(flat, out):
            raise ValueError("out overlaps x in a way that torch's in-place forms do not have")
        out.copy_(to_dtype(v, dtype_name(self.dtype)).reshape(out.shape))
        return Work(out, (), None) if async_op else out

    def _check(self, t: torch.Tensor, name: str) -> torch.Tensor:
        """The tensor itself, or the one that torch's functional collectives will have made. Kernels see addresses, which wrappers do not have."""
        if type(t) is not torch.Tensor and type(t) is not torch.nn.Parameter:
            t = _unwrapped(t, name)
        if t.dtype != self.dtype:
            raise TypeError(f"{name} is {t.dtype}, the op is bound for {self.dtype}")
        if t.device != self.device:
            raise ValueError(f"{name} is on {t.device}, the op is bound on {self.device}")
        return t

    def _result(self, x: torch.Tensor, out: torch.Tensor | None, made: Cut) -> torch.Tensor:
        count = made.output_count
        if out is None:
            return torch.empty(self._shape(x, count), dtype=self.dtype, device=self.device)
        out = self._check(out, "out")
        if out.numel() != count:
            raise ValueError(f"out has {out.numel()} elements, the result {count}")
        if not out.is_contiguous():
            raise ValueError("out is not contiguous; give a contiguous tensor, or none")
        return out.detach() if out.requires_grad else out

    def _shape(self, x: torch.Tensor, count: int) -> tuple[int, ...]:
        n = self.world.count
        match self.collective.kind:
            case "all_gather":
                return (n * x.shape[0], *x.shape[1:]) if x.dim() else (n,)
            case "reduce_scatter":
                return (x.shape[0] // n, *x.shape[1:]) if x.dim() and x.shape[0] % n == 0 else (count,)
        return tuple(x.shape) if x.numel() == count else (count,)

    def _check_alias(self, x: torch.Tensor, y: torch.Tensor, made: Cut) -> None:
        """Disjoint, or torch's in-place form: chunks that share memory stand at the same place."""
        if not _overlap(x, y):
            return
        size, low, start = x.element_size(), x.data_ptr(), y.data_ptr()
        assert self.plan is not None
        aliases = self.plan.buffers.aliases
        same = [i for i, a in enumerate(aliases) if a >= 0]
        if same and all(low + made.inputs[aliases[i]] * size == start + made.outputs[i] * size for i in same):
            return
        raise ValueError("out overlaps x in a way that torch's in-place forms do not have")

    # ------------------------------------------------------------ state and explanation

    def reset(self) -> None:
        """Forget the states of stateful compressors. Collective: call it on all ranks. The next call compares, and raises CollectiveError on all
        ranks where one of them did not."""
        with self._own_turn() as executor:
            if executor is not None:
                executor.reset()
                self._changed = executor.stateful and self._group is not None

    def states(self, name: str | None = None) -> list[torch.Tensor]:
        """The states of stateful compressors themselves, not copies: all of them, or those of one name."""
        self.check_open()
        kept = self._executor.states.values() if self._executor is not None else ()
        return [current for state in kept for own, (current, _) in state.tensors.items() if name in (None, own)]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """States, versions and call number, as copies. Raises CollectiveError after a call that failed: its states are undefined."""
        with self._own_turn() as executor:
            if self.transport is not None:
                self.transport.check()
            return executor.state_dict() if executor is not None else {}

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        """Load what `state_dict` gave. Collective, as `reset` is. Raises ValueError naming what does not fit."""
        with self._own_turn() as executor:
            if executor is None:
                if saved:
                    raise ValueError(f"state_dict has {sorted(saved)}, an op in a group of one has nothing to keep")
                return
            executor.load_state_dict(saved)
            self._changed = executor.stateful and self._group is not None

    def flags(self) -> dict[str, int]:
        """Counters since bind (waits for the device): `version`, wires of another state's version; each `flag` of the compressors."""
        with self._own_turn() as executor:
            if executor is None:
                return {}
            return dict(zip(("version", *executor.flag_names), executor.flags.tolist(), strict=True))

    @contextmanager
    def _own_turn(self) -> Iterator[Executor | None]:
        """On the current stream, after the calls that were issued and before those to come."""
        self.check_open()
        with self.turn.lock:
            if self._on_gpu and self._executor is not None:
                self.turn.order(torch.cuda.current_stream(self.device))
            yield self._executor

    def _compare_states(self) -> None:
        """States change on all ranks or on none: a wire would have another size on its other end."""
        executor, group = self._executor, self._group
        assert executor is not None and group is not None
        meeting = Meeting(
            group, group_timeout(group, self.device), f"first call of {self!r} after reset() or load_state_dict()"
        )
        own = {"fresh": str(executor.fresh), "count": str(executor.count), "version": str(int(executor.version))}
        try:
            meeting.agree(own)
        except BindError as e:
            raise CollectiveError(f"{e}; call reset() or load_state_dict() on all ranks") from None
        self._changed = False

    def explain(self) -> Explanation:
        """Which plan runs, over what, and what it costs."""
        from ..plan.show import summary

        lines = [repr(self)]
        if self.closed:
            return Explanation("\n".join([*lines, f"can no longer be used: {self.closed}"]))
        if self.plan is None or self._executor is None:
            return Explanation("\n".join([*lines, "a group of one: the input times the op's factor; nothing is sent"]))
        describe = getattr(self.transport, "describe", None)
        name = "local" if self.transport is None else self.transport.name
        lines.append(f"transport: {describe() if describe else name} {self.note}".rstrip())
        lines.append(
            f"kernels: {type(self._executor.backend).__name__}, slices: {self.slices}, wire memory: {self._executor.arena.numel()} bytes"
        )
        lines.append(self.graphs.describe())
        return Explanation("\n".join([*lines, summary(self.plan, self.settings.capacity)]))


def _overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Of contiguous tensors."""
    if not x.numel() or not y.numel():
        return False
    low, start = x.data_ptr(), y.data_ptr()
    return start < low + x.numel() * x.element_size() and low < start + y.numel() * y.element_size()


def _unwrapped(t: Any, name: str) -> torch.Tensor:
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name} is {type(t).__name__}, a tensor is wanted")
    if isinstance(t, AsyncCollectiveTensor):
        return t.wait()
    if is_traceable_wrapper_subclass(t):
        raise TypeError(
            f"{name} is a {type(t).__name__}, which holds other tensors: give the one that is meant (of a DTensor, to_local())"
        )
    return t


def _flat(t: torch.Tensor) -> torch.Tensor:
    """One dimension, contiguous, without a gradient: itself where it is so."""
    if t.requires_grad:
        t = t.detach()
    return t if t.dim() == 1 and t.is_contiguous() else t.contiguous().reshape(-1)


leave_untraced(Op.__call__)


class LocalOp:
    """A collective bound to a LocalGroup: called with one tensor a rank, gives one result a rank."""

    def __init__(self, ops: list[Op]):
        self.ops = ops

    def __call__(
        self,
        xs: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor] | None = None,
        splits: Sequence[Sequence[int]] | None = None,
    ) -> list[torch.Tensor]:
        """splits: all_to_all only; splits[i][j] elements go from rank i to rank j."""
        if len(xs) != len(self.ops):
            raise ValueError(f"{len(xs)} tensors for {len(self.ops)} ranks")
        counts = {x.numel() for x in xs if isinstance(x, torch.Tensor)}
        if splits is None and len(counts) > 1:
            raise ValueError(f"the ranks' tensors have different numbers of elements: {sorted(counts)}")
        with torch.no_grad():
            if len(self.ops) == 1:
                own = splits[0] if splits is not None else None
                return [self.ops[0](xs[0], outs[0] if outs else None, input_splits=own, output_splits=own)]
            flats, results = [], []
            columns = (
                None
                if splits is None
                else [(tuple(splits[r]), tuple(row[r] for row in splits)) for r in range(len(xs))]
            )
            for r, (op, x) in enumerate(zip(self.ops, xs, strict=True)):
                x = op._check(x, f"x of rank {op.rank}")
                assert op._executor is not None
                flat = x.detach().contiguous().reshape(-1)
                made = op._executor.prepare(flat.numel(), columns[r] if columns else None).cut
                result = op._result(x, outs[r] if outs else None, made)
                if outs:
                    op._check_alias(flat, result.reshape(-1), made)
                flats.append(flat)
                results.append(result)
            executors = [op._executor for op in self.ops if op._executor is not None]
            run_all(executors, flats, [r.reshape(-1) for r in results], [f.numel() for f in flats], columns)
            return results

    def reset(self) -> None:
        for op in self.ops:
            op.reset()


leave_untraced(LocalOp.__call__)
