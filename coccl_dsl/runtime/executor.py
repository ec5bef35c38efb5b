"""Runs one rank's plan: memory, per-count preparation, and the order of launches and exchanges over slices.

A call is a generator that yields an `ExchangeCall` where wires must move; the transport (or, for `local`, the driver of all ranks) posts it and
resumes the generator when its wires are there. So the same code runs over every transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from ..codegen.launch import Backend, FoldArgs, OpContext, Place, Prepared, StatePlaces
from ..codegen.one_launch_source import ExchangeArgs, LaunchArgs
from ..pipeline import raw_codec
from ..plan.cut import Cut, Piece, cut, piece, takes_splits
from ..plan.memory import Layout, doubled, incoming, lay_out, passes_of
from ..plan.ops import Commit, Copy, Dense, Exchange, Fold, Launch, Plan, Remote, StateRef, Transfer
from ..wire.codec import Codec
from ..wire.layout import align, live_elements, wire_bytes
from .dtypes import TORCH
from .errors import CollectiveError
from .one_launch import OneLaunchCalls, variant_of

# Counts whose tables are kept. A captured graph keeps the tables that it uses (see Executor.held).
MAX_PREPARED = 256


@dataclass(frozen=True)
class Parcel:
    """Bytes of one message: to or from `peer`, one or more tensors in order (uint8, contiguous, never empty)."""

    peer: int
    tensors: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class ExchangeCall:
    """One level of one slice: messages to move, and for mapped peers bytes to copy into their memory, then whom to signal and to wait for.
    gather: where the messages are an all-gather, this rank's bytes and all ranks' bytes side by side, of which they are part."""

    level: int
    slice: int
    sends: tuple[Parcel, ...]
    recvs: tuple[Parcel, ...]
    copies: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()
    signals: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()
    gather: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass
class _State:
    """Tensors of one StateRef: name -> (current, next)."""

    tensors: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """Piece number `index` of `pieces` of every chunk, which uses the places of slice k."""

    cut: Cut
    k: int
    index: int
    pieces: int

    def of(self, extent: int) -> Piece:
        return piece(self.cut.lengths[extent], self.index, self.pieces)


@dataclass
class _Prepared:
    """One count, one set of codecs: prepared steps of every slice of every pass, in order. copies: (from, to, elements) in the input and the
    output."""

    cut: Cut
    copies: list[tuple[int, int, int]]
    passes: list[list[list[Prepared | ExchangeCall]]]
    commits: list[tuple[torch.Tensor, torch.Tensor]]


class Executor:
    """One rank's plan with its memory on one device."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        device: torch.device,
        capacity: int,
        factor: float | None,
        seed: int,
        depth: int = 1,
        memory: Callable[[int], torch.Tensor] | None = None,
        far_programs: int | None = None,
        min_bytes: int = 0,
        limit: int | None = None,
        one_launch: OneLaunchCalls | None = None,
    ):
        """memory: gives the arena, of at least so many bytes. far_programs: launches that store into a peer's memory run as at most so many
        programs (see `tuning`). min_bytes: chunks that take fewer bytes in the tensor's dtype go raw; both ends of a message see that from
        the chunk's length alone, which they both know. limit: bytes of wire memory; calls that need more run in passes. one_launch: calls are
        one kernel each, over mapped memory."""
        self.plan, self.backend, self.device, self.capacity, self.depth = plan, backend, device, capacity, depth
        self.min_bytes, self.raw = min_bytes, raw_codec(plan.dtype)
        self.layout = lay_out(plan, self.raw, capacity, depth, min_bytes, limit)
        self.one_launch = one_launch
        if one_launch is not None:
            self.layout = doubled(self.layout)
        self.flag_names = tuple(sorted({f for c in plan.codecs.values() for f in c.flags}))
        self.rng = torch.tensor([seed, 0], dtype=torch.int64, device=device)
        self.version = torch.zeros(1, dtype=torch.int32, device=device)
        self.flags = torch.zeros(1 + len(self.flag_names), dtype=torch.int32, device=device)
        self.factor, self.far_programs = factor, far_programs
        self._on_gpu = device.type == "cuda"
        self.calls = 0
        self.fresh = True
        self.has_first = any(c.first for c in plan.codecs.values())
        self.stateful, self.stochastic = plan.stateful, plan.stochastic
        self.count: int | None = None
        self._prepared: dict[tuple[object, ...], _Prepared] = {}
        self.held: dict[int, _Prepared] = {}
        size = self.layout.size
        self.arena = memory(size) if memory is not None else torch.zeros(size, dtype=torch.uint8, device=device)
        self.remote: dict[tuple[int, Remote], Place] = {}
        gathers = [s.gather for s in plan.steps if isinstance(s, Exchange) and s.gather]
        self.gathers: dict[int, tuple[int, ...]] = {w: wires for wires in gathers for w in wires}
        self.states = {ref: self._make_state(ref) for ref in plan.states}

    # ------------------------------------------------------------ memory

    def connect(self, arenas: dict[int, torch.Tensor], plans: Mapping[int, tuple[Plan, Layout]]) -> None:
        """Learn where the peers expect this rank's wires: their mapped arenas, their plans and layouts."""
        for peer, (plan, layout) in plans.items():
            for k, rows in enumerate(incoming(plan, layout)):
                for source, level, offsets in rows:
                    if source == self.plan.rank:
                        for position, offset in enumerate(offsets):
                            self.remote[k, Remote(peer, level, position)] = Place(arenas[peer], offset)

    def _make_state(self, ref: StateRef) -> _State:
        codec = self.plan.codecs[self.plan.states[ref]]
        length = live_elements(codec, self.layout.largest[ref.extent])
        whole = max(1, -(-length // codec.group)) * codec.group
        made = _State()
        for s in codec.states:
            made.tensors[s.name] = (
                torch.zeros(whole, dtype=TORCH[s.dtype], device=self.device),
                torch.zeros(whole, dtype=TORCH[s.dtype], device=self.device),
            )
        return made

    def reset(self) -> None:
        """Forget states: the next call starts as the first one did. The call number goes on."""
        for state in self.states.values():
            for current, following in state.tensors.values():
                current.zero_()
                following.zero_()
        self.version.zero_()
        self.fresh = True

    # ------------------------------------------------------------ preparation

    def warm(self, count: int) -> None:
        """Prepare calls of `count` elements, and some that need kernels in other forms, so that no later call compiles any."""
        self.prepare(count)
        world, own = self.plan.world, self.plan.rank
        if self.min_bytes or self.far_programs:  # chunks that go raw, and such as a few programs see once
            self.prepare(min(world, count))
        if takes_splits(self.plan) and not self.stateful:  # nothing stays here
            shares = tuple(0 if r == own else count // world for r in range(world))
            self.prepare(sum(shares), (shares, shares))

    def prepare(self, count: int, splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None) -> _Prepared:
        """Everything of a call that depends on its count but not on its tensors."""
        first = self.fresh and self.has_first
        key = (count, splits, first)
        found = self._prepared.get(key)
        capturing = self._on_gpu and torch.cuda.is_current_stream_capturing()
        if found is None:
            if capturing:
                raise CollectiveError(
                    f"`{self.plan.name}` was not called with {count} elements yet: call it once before the graph is captured"
                )
            if len(self._prepared) >= MAX_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            found = self._prepared[key] = self._prepare(count, splits, first)
        if capturing:
            self.held.setdefault(id(found), found)
        return found

    @torch.inference_mode(False)
    def _prepare(self, count: int, splits: tuple[tuple[int, ...], tuple[int, ...]] | None, first: bool) -> _Prepared:
        made = cut(self.plan, count, splits)
        for extent, length in made.lengths.items():
            if length > self.layout.largest.get(extent, 0):
                what = f"a chunk of {length}" if splits else str(count)
                most = self.layout.largest.get(extent, 0) if splits else self.capacity
                raise ValueError(
                    f"{what} elements do not fit the op, which is bound for {most}; bind with a larger capacity"
                )
        codecs = {n: (c.first or c) if first else c for n, c in self.plan.codecs.items()}
        context = OpContext(self.plan.dtype, self.factor, codecs, self.rng, self.version, self.flags, self.flag_names)
        plain = replace(context, codecs=dict.fromkeys(codecs, self.raw))
        passes: list[list[list[Prepared | ExchangeCall]]]
        if self.one_launch is not None:
            passes = [[[self._call(self.one_launch, made, context)]]]
        else:
            number = passes_of(self.layout, made, uneven=splits is not None)
            passes = [
                [
                    self._slice(_Part(made, k, p * self.depth + k, self.depth * number), context, plain)
                    for k in range(self.depth)
                ]
                for p in range(number)
            ]
        copies = [
            (made.inputs[i], made.outputs[o], made.lengths[self.plan.buffers.outputs[o]])
            for step in self.plan.steps
            for i, o in (step.pairs if isinstance(step, Copy) else ())
        ]
        return _Prepared(made, [c for c in copies if c[2]], passes, self._commits(made, codecs))

    def _slice(self, part: _Part, context: OpContext, plain: OpContext) -> list[Prepared | ExchangeCall]:
        """Steps of one piece of every chunk. plain: the context of chunks that go raw."""
        steps: list[Prepared | ExchangeCall] = []
        for step in self.plan.steps:
            if isinstance(step, Launch):
                programs = self.far_programs if any(f.remote for f in step.folds) else None
                rows = self._copied(step, part)
                for small, shared in ((False, context), (True, plain)):
                    here = [f for f in step.folds if self._goes_raw(f.extent, part.cut) == small]
                    folds = [a for f in here if (a := self._fold(f, part, context.codecs)) is not None] + rows
                    rows = []
                    if folds:  # raw works in no basis
                        signature = replace(step.signature, basis=0) if small else step.signature
                        steps.append(self.backend.prepare(signature, folds, shared, programs))
            elif isinstance(step, Exchange):
                steps.append(self._exchange(step, part, context.codecs))
        return steps

    def _call(self, one: OneLaunchCalls, made: Cut, context: OpContext) -> Prepared:
        """All steps in one launch. A wire has the place of slice 0 in even calls, that of slice 1 in odd ones."""
        even, odd = (_Part(made, k, 0, 1) for k in (0, 1))
        steps: list[LaunchArgs | ExchangeArgs] = []
        for step in self.plan.steps:
            if isinstance(step, Exchange):
                steps.append(one.exchanges[step.level])
            elif isinstance(step, Launch):
                both = [
                    [a for f in step.folds if (a := self._fold(f, part, context.codecs)) is not None]
                    + self._copied(step, part)
                    for part in (even, odd)
                ]
                steps.append(LaunchArgs(variant_of(step), *both))
        return one.backend.prepare_call(steps, context, one.control, one.shape)

    def _place(self, slot: int, k: int) -> Place:
        return Place(self.arena, self.layout.offsets[k][slot])

    def _wire_place(self, w: int, part: _Part, codecs: Mapping[str, Codec]) -> Place:
        """Of a wire here. Those of an all-gather follow each other without gaps, which their sizes in this call decide."""
        wires = self.gathers.get(w)
        if wires is None:
            return self._place(self.plan.wires[w].slot, part.k)
        first = self._place(self.plan.wires[wires[0]].slot, part.k)
        return Place(first.buffer, first.offset + wires.index(w) * self._stride(wires, part, codecs))

    def _stride(self, wires: tuple[int, ...], part: _Part, codecs: Mapping[str, Codec]) -> int:
        return align(max(self._wire_size(w, part, codecs) for w in wires))

    def _wire_size(self, w: int, part: _Part, codecs: Mapping[str, Codec]) -> int:
        info = self.plan.wires[w]
        codec = self.raw if self._goes_raw(info.extent, part.cut) else codecs[info.codec]
        return wire_bytes(codec, part.of(info.extent).length)

    def _dense(self, d: Dense, part: _Part, start: int) -> int | Place:
        if d.role == "input":
            return part.cut.inputs[d.index] + start
        if d.role == "output":
            return part.cut.outputs[d.index] + start
        return self._place(self.plan.scratch[d.index].slot, part.k)

    def _goes_raw(self, extent: int, made: Cut) -> bool:
        return made.lengths[extent] * TORCH[self.plan.dtype].itemsize < self.min_bytes

    def _copied(self, step: Launch, part: _Part) -> list[FoldArgs]:
        """The rows of a launch that hand chunks on."""
        rows = []
        for i, o in step.copies:
            span = part.of(self.plan.buffers.outputs[o])
            if span.length:
                at, to = part.cut.inputs[i] + span.start, part.cut.outputs[o] + span.start
                rows.append(FoldArgs(span.length, span.start, (at,), (), (), (), copy_to=to))
        return rows

    def _fold(self, f: Fold, part: _Part, codecs: Mapping[str, Codec]) -> FoldArgs | None:
        span = part.of(f.extent)
        if span.length == 0:
            return None
        return FoldArgs(
            length=span.length,
            start=span.start,
            dense=tuple(self._dense(d, part, span.start) for d in f.dense),
            wires=tuple(self._wire_place(o.wire, part, codecs) for o in f.opened),
            places=self._places(f, part, codecs),
            sinks=tuple(self._dense(s.place, part, span.start) for s in f.sinks),
            key=f.key,
            state=self._state_places(f.state, span) if f.state is not None else {},
            wire_states=tuple(self._state_places(o.state, span) if o.state is not None else {} for o in f.opened),
        )

    def _places(self, f: Fold, part: _Part, codecs: Mapping[str, Codec]) -> tuple[Place, ...]:
        if f.wire is None:
            return ()
        here = (self._wire_place(f.wire, part, codecs),) if f.local else ()
        return here + tuple(self.remote[part.k, r] for r in f.remote)

    def _state_places(self, ref: StateRef, span: Piece) -> dict[str, StatePlaces]:
        places = {}
        for name, (current, following) in self.states[ref].tensors.items():
            at = span.start * current.element_size()
            places[name] = StatePlaces(Place(current.view(torch.uint8), at), Place(following.view(torch.uint8), at))
        return places

    def _exchange(self, step: Exchange, part: _Part, codecs: Mapping[str, Codec]) -> ExchangeCall:
        k = part.k

        def size_of(w: int) -> int:
            return self._wire_size(w, part, codecs)

        def part_of(place: Place, size: int) -> torch.Tensor:
            return place.buffer[place.offset : place.offset + size]

        def here(w: int) -> Place:
            return self._wire_place(w, part, codecs)

        def parcels(transfers: Iterable[Transfer]) -> tuple[Parcel, ...]:
            made = (
                Parcel(t.peer, tuple(part_of(here(w), size) for w in t.wires if (size := size_of(w))))
                for t in transfers
                if not t.direct
            )
            return tuple(p for p in made if p.tensors)

        copies = tuple(
            (part_of(here(w), size), part_of(self.remote[k, remote], size))
            for w, remote in step.copies
            if (size := size_of(w))
        )
        signals = tuple(dict.fromkeys(t.peer for t in step.sends if t.direct))
        waits = tuple(dict.fromkeys(t.peer for t in step.recvs if t.direct))
        gather = None
        if step.gather and (stride := self._stride(step.gather, part, codecs)):
            place = here(step.gather[0])
            whole = part_of(place, len(step.gather) * stride)
            gather = whole[self.plan.rank * stride : (self.plan.rank + 1) * stride], whole
        return ExchangeCall(step.level, k, parcels(step.sends), parcels(step.recvs), copies, signals, waits, gather)

    def _commits(self, made: Cut, codecs) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pairs = []
        if any(isinstance(s, Commit) for s in self.plan.steps):
            for ref, state in self.states.items():
                codec = codecs[self.plan.states[ref]]
                whole = -(-made.lengths[ref.extent] // codec.group) * codec.group
                pairs += [(current[:whole], following[:whole]) for current, following in state.tensors.values()]
        return pairs

    # ------------------------------------------------------------ running

    def begin(self, count: int) -> None:
        """States belong to tensors of one size: another count starts afresh."""
        if self.stateful and self.count is not None and self.count != count:
            self.reset()
        self.count = count

    def copy(self, prepared: _Prepared, x: torch.Tensor, y: torch.Tensor) -> None:
        """Hand on the chunks that stay as they are. In torch's in-place forms they are in place already."""
        size = x.element_size()
        for source, target, n in prepared.copies:
            if x.data_ptr() + source * size != y.data_ptr() + target * size:
                y[target : target + n].copy_(x[source : source + n])

    @staticmethod
    def run_slice(
        steps: list[Prepared | ExchangeCall],
        x: torch.Tensor,
        y: torch.Tensor,
        launched: Callable[[Prepared], None] | None = None,
    ) -> Iterator[ExchangeCall]:
        """Run one slice; yields where wires must move. x and y are flat, contiguous, of the op's dtype. launched: is told every launch."""
        for step in steps:
            if isinstance(step, ExchangeCall):
                yield step
            else:
                step.run(x, y)
                if launched is not None:
                    launched(step)

    def finish(self, prepared: _Prepared) -> None:
        """The call is complete: states become current, the call number advances."""
        for current, following in prepared.commits:
            current.copy_(following)
        if self.stateful:
            self.version += 1
            self.fresh = False
        if self.stochastic:
            self.rng[1] += 1
        self.calls += 1

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Copies: call number, version, and each state under `state.SITE.CHUNK.OWNER.NAME`."""
        found = {"rng": self.rng.clone(), "version": self.version.clone(), "fresh": torch.tensor(self.fresh)}
        found["count"] = torch.tensor(-1 if self.count is None else self.count)
        for ref, state in self.states.items():
            for name, (current, _) in state.tensors.items():
                found[f"state.{ref.site}.{ref.extent}.{ref.owner}.{name}"] = current.clone()
        return found

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        """Raises ValueError naming keys that are missing, unknown or of another size."""
        own = self.state_dict()
        if own.keys() != saved.keys():
            raise ValueError(f"state_dict differs in {sorted(own.keys() ^ saved.keys())}")
        for key, value in saved.items():
            if value.shape != own[key].shape or value.dtype != own[key].dtype:
                raise ValueError(
                    f"state_dict[{key!r}] is {value.dtype}{list(value.shape)}, the op has {own[key].dtype}{list(own[key].shape)}"
                )
        self.rng.copy_(saved["rng"])
        self.version.copy_(saved["version"])
        self.fresh = bool(saved["fresh"])
        count = int(saved["count"])
        self.count = None if count < 0 else count
        for ref, state in self.states.items():
            for name, (current, following) in state.tensors.items():
                current.copy_(saved[f"state.{ref.site}.{ref.extent}.{ref.owner}.{name}"])
                following.copy_(current)
