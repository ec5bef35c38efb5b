"""DistributedDataParallel with compressed gradients: a communication hook, and its state.

    state = coccl_dsl.torch.DDPState(compressor="int4", error_feedback=True)
    model.register_comm_hook(state, coccl_dsl.torch.ddp_hook)

or `state = coccl_dsl.torch.apply_ddp(model, compressor="int4", error_feedback=True)`, which takes the group from the model. All ranks get the same
bits, so replicas stay equal. On CUDA a bucket's call runs on a stream of its own, beside the rest of backward.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.utils.weak import WeakIdKeyDictionary

from ..pipeline import Collective
from ..plan.cut import cut
from ..runtime.dispatch import capturing, refuse_states
from ..runtime.dtypes import dtype_name
from ..runtime.errors import CollectiveError
from ..runtime.op import Op
from . import traffic
from .calls import Asked, Compressors, binding, bound_op, check, codecs_of, member, tell
from .saving import loaded, restart, saved

ROLE = "dp"


@dataclass
class _Bucket:
    """What a bucket's op is bound for, in the bucket's order: names and sizes of parameters."""

    names: list[str]
    sizes: list[int]
    op: Op


@dataclass
class _Kept:
    """A bucket's states without its op. places: state -> where in the bucket its elements are: [start, end]."""

    names: list[str]
    sizes: list[int]
    plan: str
    places: dict[str, list[int]]
    state: dict[str, torch.Tensor]


class DDPState:
    """State of `ddp_hook`.

    compressor      a compressor for every level of the algorithm, or name in its text -> compressor
    algorithm       auto, the name of a shipped algorithm, or a file
    group           DDP's process group; None: all ranks
    error_feedback  what a step's compression lost is added to the next step's gradient: float32 states, about a gradient's size a level
    mesh            node=..., local=...: how the ranks lie on machines; else found out
    seed            of stochastic rounding
    after_step      the first so many steps are exact

    Errors are kept for each bucket. DDP rebuilds its buckets after the first backward: what is owed moves along, by parameter.

    `state_dict()` holds this rank's part under its rank's name, for torch.save and torch.distributed.checkpoint alike. To continue bit for bit in a
    new process, run one backward before loading (it makes DDP rebuild its buckets, and gradients are discarded); else the errors are handed on by
    parameter, which loses none of them but rounds differently.

    Raises CompileError or BindError for a compressor or an algorithm that there is not, ValueError for error_feedback given as a compressor; the
    hook raises BindError for a compressor that keeps another state.
    """

    def __init__(
        self,
        compressor: Compressors = "int8",
        algorithm: str = "auto",
        group: dist.ProcessGroup | None = None,
        error_feedback: bool = False,
        *,
        mesh: dict[str, int] | None = None,
        seed: int = 0,
        after_step: int = 0,
    ):
        self.compressor, self.algorithm, self.group, self.error_feedback = compressor, algorithm, group, error_feedback
        self.mesh, self.seed, self.after_step = mesh, seed, after_step
        for text in compressor.values() if isinstance(compressor, dict) else [compressor]:
            if text.startswith("error_feedback"):
                raise ValueError(
                    "say DDPState(compressor=..., error_feedback=True): the state moves along when DDP rebuilds its buckets"
                )
        check("all_reduce", compressor, algorithm)
        self.steps = 0
        self._grouped = group is not None
        self._own: bool | None = None
        self._names: Any = WeakIdKeyDictionary()
        self._buckets: dict[int, _Bucket] = {}
        self._kept: list[_Kept] = []
        self._owed: dict[str, torch.Tensor] = {}
        self._unloaded: dict[str, Any] | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        _states.add(self)

    # ------------------------------------------------------------ one bucket

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average the bucket over the group, in place."""
        x = bucket.buffer()
        dtype_name(x.dtype)
        if self._grouped and self.group is None:
            raise ValueError("this DDPState was unpickled, and groups are not pickled: set state.group to DDP's group")
        if self._unloaded is not None:
            state, self._unloaded = self._unloaded, None
            self.load_state_dict(state)
        op = self._op(bucket, x)
        tell(ROLE, op, x.numel())
        if bucket.is_last():
            self.steps += 1
        if x.device.type != "cuda":
            return self._run(op, x, None)
        if x.device not in self._streams:
            self._streams[x.device] = torch.cuda.Stream(x.device)
        stream = self._streams[x.device]
        stream.wait_stream(torch.cuda.current_stream(x.device))
        with torch.cuda.stream(stream):
            return self._run(op, x, [x.device])

    def _run(self, op: Op, x: torch.Tensor, devices: list[torch.device] | None) -> torch.futures.Future[torch.Tensor]:
        op(x, out=x)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)  # pyright: ignore
        future.set_result(x)
        return future

    def _op(self, bucket: GradBucket, x: torch.Tensor) -> Op:
        pg = member(self.group)
        names, sizes = self._layout(bucket)
        if self.steps < self.after_step:
            return bound_op("all_reduce", x, pg, Asked("avg", "raw", self.algorithm, self.mesh))
        if self._own is None:
            self._own = self._draws_or_keeps(x, pg)
        if not self._own:
            return bound_op("all_reduce", x, pg, self._asked)
        held = self._buckets.get(bucket.index())
        if held is not None and held.names == names and held.op.dtype == x.dtype and held.op.device == x.device:
            return held.op
        if held is not None:  # DDP has rebuilt its buckets, all of them
            self._kept += [_keep(b) for b in self._buckets.values()]
            self._buckets.clear()
        made = self._buckets[bucket.index()] = _Bucket(names, sizes, self._bind(bucket.index(), x, pg))
        self._take(made, x)
        return made.op

    @property
    def _asked(self) -> Asked:
        return Asked("avg", self.compressor, self.algorithm, self.mesh)

    def _binding(self, x: torch.Tensor, pg: dist.ProcessGroup) -> tuple[Collective, dict[str, Any]]:
        collective, options = binding("all_reduce", x, pg, self._asked)
        refuse_states(collective, dtype_name(x.dtype), options, "DDPState")
        if self.error_feedback:
            levels = collective.program(dtype_name(x.dtype)).codecs.keys() & options.keys()
            options |= {name: f"error_feedback({options[name]})" for name in levels if options[name] != "raw"}
        return collective, options

    def _bind(self, index: int, x: torch.Tensor, pg: dist.ProcessGroup) -> Op:
        if capturing(x):
            raise CollectiveError(
                "a bucket's first reduction cannot be under CUDA graph capture: run some steps before it"
            )
        collective, options = self._binding(x, pg)
        return collective.bind(pg, like=x, **options | {"capacity": x.numel(), "seed": self.seed + index})

    def _draws_or_keeps(self, x: torch.Tensor, pg: dist.ProcessGroup) -> bool:
        """Whether a bucket needs an op of its own: for its errors, or for the call numbers of stochastic rounding. Both are saved."""
        codecs = codecs_of(x.dtype, *self._binding(x, pg)).values()
        return any(codec.stochastic or codec.stateful for codec in codecs)

    # ------------------------------------------------------------ states from bucket to bucket

    def _layout(self, bucket: GradBucket) -> tuple[list[str], list[int]]:
        """Parameters are named by the order in which they were first seen, which is that of DDP's first buckets, in every process."""
        parameters = bucket.parameters()
        for p in parameters:
            if p not in self._names:
                self._names[p] = str(len(self._names))
        return [self._names[p] for p in parameters], [p.numel() for p in parameters]

    def _restore(self, bucket: _Bucket) -> bool:
        """Load what was kept for a bucket of just this layout, if there is any."""
        for kept in self._kept:
            if (kept.names, kept.sizes, kept.plan) == (bucket.names, bucket.sizes, _text(bucket.op)):
                bucket.op.load_state_dict(kept.state)
                self._kept.remove(kept)
                return True
        return False

    def _take(self, made: _Bucket, x: torch.Tensor) -> None:
        """Load what was kept for this bucket, or add to x what was kept of its parameters in other buckets."""
        if self._restore(made):
            return
        for kept in [k for k in self._kept if set(k.names) & set(made.names)]:
            for name, debt in _debts(kept, x.device).items():
                self._owed[name] = debt + self._owed[name].to(x.device) if name in self._owed else debt
            self._kept.remove(kept)
        ranks, at = made.op.world.count, 0
        for name, size in zip(made.names, made.sizes, strict=True):
            owed = self._owed.pop(name, None)
            if owed is not None:
                if owed.numel() != size:
                    raise ValueError(
                        f"the state that was loaded has {owed.numel()} elements where the model has {size}: it is another model's; call state.reset()"
                    )
                x[at : at + size] += owed.to(x.device) * ranks  # the op averages
            at += size

    def reset(self) -> None:
        """Forget all errors. Call it on all ranks."""
        self._kept.clear()
        self._owed.clear()
        self._unloaded = None
        for bucket in self._buckets.values():
            bucket.op.reset()

    def restart(self) -> None:
        """Start anew, as before the first step. Call it on all ranks."""
        self.reset()
        self.steps = 0
        for bucket in self._buckets.values():
            restart(bucket.op)

    def memory(self) -> int:
        """Bytes of the states."""
        held = sum(t.nbytes for b in self._buckets.values() for t in b.op.states())
        kept = sum(t.nbytes for k in self._kept for t in k.state.values())
        return held + kept + sum(t.nbytes for t in self._owed.values())

    # ------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, bytes]:
        """This rank's part, under its rank's name."""
        pg = member(self.group)
        kept = [asdict(k) for k in [*self._kept, *map(_keep, self._buckets.values())]]
        return {f"rank{pg.rank()}": saved({"steps": self.steps, "world": pg.size(), "kept": kept, "owed": self._owed})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` gave. Call it on all ranks. Raises ValueError where it is of another number of ranks."""
        pg = member(self.group)
        name = f"rank{pg.rank()}"
        if name not in state:
            raise ValueError(f"the saved state has no part {name!r}; it has {', '.join(sorted(state)) or 'none'}")
        told = loaded(state[name])
        if told["world"] != pg.size():
            raise ValueError(
                f"the state was saved by {told['world']} ranks and cannot be loaded by {pg.size()}: call reset()"
            )
        self.steps, self._owed = told["steps"], dict(told["owed"])
        self._kept = [_Kept(**k) for k in told["kept"]]
        # What is loaded replaces what is held; a bucket of another layout is bound afresh and takes its parameters' part.
        self._buckets = {i: b for i, b in self._buckets.items() if self._restore(b)}

    def __getstate__(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {"settings": settings, "grouped": self._grouped, "state": self.state_dict()}

    def __setstate__(self, told: dict[str, Any]) -> None:
        DDPState.__init__(self, **told["settings"])
        self._grouped = told["grouped"]
        self._unloaded = told["state"]


_SETTINGS = ("compressor", "algorithm", "error_feedback", "mesh", "seed", "after_step")


# Without annotations: DDP compares them with classes, and here they are texts.
def ddp_hook(state, bucket):
    """The hook for `register_comm_hook`, of a DDPState and a dist.GradBucket: a future of the average of all ranks' gradients.

    Raises TypeError for gradients other than float32, bfloat16, float16, BindError on all ranks where they do not agree, CollectiveError when a
    peer fails; DDP raises these from backward.
    """
    return state.reduce(bucket)


def apply_ddp(
    model: DistributedDataParallel, compressor: Compressors = "int8", algorithm: str = "auto", **options: Any
) -> DDPState:
    """Register `ddp_hook` on a DistributedDataParallel, over its own group, and return the state. Options as for `DDPState`."""
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"apply_ddp takes a DistributedDataParallel, not {type(model).__name__}")
    state = DDPState(compressor, algorithm, model.process_group, **options)
    model.register_comm_hook(state, ddp_hook)
    return state


def _text(op: Op) -> str:
    return f"{op.collective.name} {sorted(op.settings.compressors.items())} rank {op.rank} of {op.world.count}"


def _keep(bucket: _Bucket) -> _Kept:
    """The bucket's states, and where in the bucket they begin. States in another basis than the gradient's belong to no one parameter."""
    op, places = bucket.op, {}
    state = op.state_dict()
    if op.plan is not None:
        made = cut(op.plan, sum(bucket.sizes))
        starts = dict(zip(op.plan.buffers.outputs, made.outputs, strict=True))
        for ref, codec in op.plan.states.items():
            if op.plan.codecs[codec].basis <= 1:
                start = starts[ref.extent]
                places[f"state.{ref.site}.{ref.extent}.{ref.owner}.error"] = [start, start + made.lengths[ref.extent]]
    return _Kept(bucket.names, bucket.sizes, _text(op), places, state)


def _debts(kept: _Kept, device: torch.device) -> dict[str, torch.Tensor]:
    """Parameter -> what its elements were not given yet, over all levels."""
    debt = torch.zeros(sum(kept.sizes), dtype=torch.float32, device=device)
    for name, (start, end) in kept.places.items():
        debt[start:end] += kept.state[name][: end - start].to(device)
    return dict(zip(kept.names, debt.split(kept.sizes), strict=True))


_states: WeakSet[DDPState] = WeakSet()


def _memory() -> list[traffic.Memory]:
    return [traffic.Memory("error feedback of DDP", held) for s in _states if (held := s.memory())]


traffic.hold(_memory)
