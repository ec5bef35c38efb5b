"""The reference: compressors evaluated with torch on any device, bit for bit what the generated kernels give.

Values are float32 [elements] of one piece of one chunk: whole frames, but for the chunk's tail. They are already in the codec's basis, so there
are `layout.live_elements` of them. State tensors hold one value an element and come back rounded up to whole groups, zeros at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..plan.ops import Signature
from ..wire.codec import Codec
from ..wire.layout import live_elements, wire_bytes
from .batches import batches
from .casts import TORCH_DTYPES, has_no_nan, to_dtype
from .evaluate import Batch, butterflies
from .launch import FoldArgs, OpContext, Place, StatePlaces, UserKernel
from .packing import read_frames, write_frames
from .philox import uniform
from .pieces import Part, States, parts

# Claims are about groups of magnitudes up to this; a code times a scale, or a difference, may overflow beyond.
CLAIMED = 1e38


@dataclass(frozen=True)
class Compressed:
    """wire uint8[bytes]; opened float32[elements], what receivers will read; states: new values in the state's dtype, whole groups;
    flags: name -> int64 scalar tensor, the number of groups flagged."""

    wire: Tensor
    opened: Tensor
    states: dict[str, Tensor]
    flags: dict[str, Tensor]


@dataclass(frozen=True)
class Opened:
    """values float32[elements]; states: new values of the receiver's states; mismatch bool[frames], frames of another version, or None
    where the codec has none."""

    values: Tensor
    states: dict[str, Tensor]
    mismatch: Tensor | None


@dataclass(frozen=True)
class ClaimCheck:
    """One claim of a compressor, evaluated: its text, its bound float32[elements] where it has the form abs(..) <= bound, and whether it
    holds (bool scalar tensor) for every live element of the groups whose x is at most CLAIMED and that no flag poisons."""

    text: str
    bound: Tensor | None
    holds: Tensor


def rotate(x: Tensor, size: int) -> Tensor:
    """Orthonormal Hadamard transform of consecutive blocks of `size` elements: float32[n] -> float32[n rounded up to whole blocks].

    The last block is padded with zeros. The transform is its own inverse; the caller drops the padding.
    """
    blocks = torch.nn.functional.pad(x, (0, -x.numel() % size)).reshape(-1, size)
    return butterflies(blocks, size).reshape(-1)


def _as_it_is(codec: Codec, x: Tensor) -> bool:
    """Whether the wire is the bytes of x: float32 sent raw, without a NaN, which would become canonical."""
    return codec.cast and codec.dtype == "f32" and has_no_nan(x)


def compress(
    codec: Codec,
    x: Tensor,
    *,
    start: int = 0,
    states: dict[str, Tensor] | None = None,
    rng: Tensor | None = None,
    key: int = 0,
    version: Tensor | None = None,
    reopen: bool = True,
    out: Tensor | None = None,
) -> Compressed:
    """Compress one piece of a chunk.

    x        float32[n], in the codec's basis
    start    index in the chunk of the piece's first element, a multiple of 32768
    states   state name -> values before the call, n or n rounded up to whole groups, in the state's dtype
    rng      int64[2] on x's device, seed and call number: for stochastic codecs
    key      64-bit value number of x
    version  int32[1] on x's device: for codecs with `both` state
    reopen   False: `opened` is not computed, and is empty
    out      uint8[bytes of the wire], where the wire goes (`opened` may then be x itself); else new memory

    Raises TypeError where x is not float32, ValueError where the codec needs a state, rng or version that is not given.
    """
    run = _Sender(codec, x, start, states, rng, key)
    if codec.versioned and version is None:
        raise ValueError(f"compressor {codec.name} sends a version: give `version`")
    size = wire_bytes(codec, x.numel())
    wire = torch.empty(size, dtype=torch.uint8, device=x.device) if out is None else out
    if _as_it_is(codec, x):
        wire[: 4 * x.numel()] = x.contiguous().view(torch.uint8)
        wire[4 * x.numel() :] = 0
        return Compressed(wire, x if out is not None else x.clone(), {}, {})
    wire.zero_()
    opened = torch.empty_like(x) if reopen else x.new_empty(0)
    new = run.states.fresh(codec.sender_updates)
    dtypes = {s.name: s.dtype for s in codec.states}
    flags = {name: torch.zeros((), dtype=torch.int64, device=x.device) for name in codec.flags}
    for part, batch in run.batches():
        values = {name: batch.value(node) for name, node in codec.compress.items()}
        write_frames(codec, part.frames_of(wire, codec), part.elements, values, version)
        if reopen:
            part.put(opened, batch.value(codec.reopened))
        for name, node in codec.sender_updates.items():
            part.put(new[name], to_dtype(batch.masked(batch.value(node), 0.0), dtypes[name]))
        for name, node in codec.flags.items():
            flags[name] += batch.value(node).expand(batch.frames, batch.groups, 1).sum()
    return Compressed(wire, opened, new, flags)


def open_wire(
    codec: Codec,
    wire: Tensor,
    count: int,
    *,
    states: dict[str, Tensor] | None = None,
    version: Tensor | None = None,
    update: bool = True,
    borrow: bool = False,
) -> Opened:
    """Decompress one piece of a chunk of `count` elements.

    wire     uint8, at least `layout.wire_bytes(codec, count)` long
    states   values before the call of the codec's `both` states
    version  int32[1] on wire's device; a frame of another version opens as NaN and leaves its states as they were
    update   False: new states are not computed
    borrow   True: the values may be the wire's own memory

    The result has `live_elements(codec, count)` values, in the codec's basis. Raises ValueError where the wire is too short or a state or
    the version is missing.
    """
    n = live_elements(codec, count)
    if wire.numel() < wire_bytes(codec, n):
        raise ValueError(
            f"{count} elements of {codec.name} take {wire_bytes(codec, n)} bytes, the wire has {wire.numel()}"
        )
    if codec.versioned and version is None:
        raise ValueError(f"compressor {codec.name} sends a version: give `version`")
    if codec.cast and codec.dtype == "f32" and wire.data_ptr() % 4 == 0:
        values = wire[: 4 * n].view(torch.float32)
        if _as_it_is(codec, values):
            return Opened(values if borrow else values.clone(), {}, None)
    values = torch.empty(n, dtype=torch.float32, device=wire.device)
    kept = States(codec, n, states, wire.device)
    updates = codec.receiver_updates if update else {}
    new = kept.fresh(updates)
    dtypes = {s.name: s.dtype for s in codec.states}
    stale: list[Tensor] = []
    for part in parts(n, wire.device):
        batch = part.batch(codec, wire.device)
        batch.states = kept.of(part, batch)
        batch.fields, found = read_frames(codec, part.frames_of(wire, codec), part.elements)
        opened = batch.value(codec.decompress)
        wrong = None
        if found is not None and version is not None:
            stale.append(found != version)
            wrong = stale[-1].view(-1, 1, 1)
            opened = torch.where(wrong, torch.nan, opened)
        part.put(values, opened)
        for name, node in updates.items():
            value = batch.value(node)
            if wrong is not None:
                value = torch.where(wrong, batch.states[name], value)
            part.put(new[name], to_dtype(batch.masked(value, 0.0), dtypes[name]))
    empty = torch.zeros(0, dtype=torch.bool, device=wire.device)
    return Opened(values, new, torch.cat([empty, *stale]) if codec.versioned else None)


def bounds(
    codec: Codec,
    x: Tensor,
    *,
    start: int = 0,
    states: dict[str, Tensor] | None = None,
    rng: Tensor | None = None,
    key: int = 0,
) -> list[ClaimCheck]:
    """Evaluate the codec's claims on `x` (float32[n], in the codec's basis); arguments as for `compress`."""
    run = _Sender(codec, x, start, states, rng, key)
    limits = [None if c.bound is None else torch.empty_like(x) for c in codec.claims]
    holds = [torch.ones((), dtype=torch.bool, device=x.device) for _ in codec.claims]
    for part, batch in run.batches():
        assert batch.x is not None
        skipped = ~(batch.x.abs() <= CLAIMED).all(-1, keepdim=True)
        for flag in codec.flags.values():
            skipped = skipped | batch.value(flag)
        for i, c in enumerate(codec.claims):
            limit = limits[i]
            if limit is not None and c.bound is not None:
                part.put(limit, batch.value(c.bound))
            holds[i] &= (batch.masked(batch.value(c.test), True) | skipped).all()
    return [ClaimCheck(c.text, limit, ok) for c, limit, ok in zip(codec.claims, limits, holds, strict=True)]


class _Sender:
    """Batches over `x` with everything that compress's graphs read."""

    def __init__(
        self, codec: Codec, x: Tensor, start: int, states: dict[str, Tensor] | None, rng: Tensor | None, key: int
    ):
        if x.dtype != torch.float32 or x.dim() != 1:
            raise TypeError(f"compress takes float32[n], not {x.dtype} of shape {tuple(x.shape)}")
        self.codec, self.x, self.start, self.rng, self.key = codec, x, start, rng, key
        self.states = States(codec, x.numel(), states, x.device)

    def batches(self) -> Iterator[tuple[Part, Batch]]:
        for part in parts(self.x.numel(), self.x.device):
            batch = part.batch(self.codec, self.x.device)
            batch.x = part.take(self.x, batch)
            batch.states = self.states.of(part, batch)
            if self.rng is not None:
                batch.uniform = self._draws(part, batch, self.rng)
            yield part, batch

    def _draws(self, part: Part, batch: Batch, rng: Tensor) -> Callable[[int], Tensor]:
        shape = (batch.frames, batch.groups, self.codec.group)
        count = batch.frames * batch.groups * self.codec.group

        def draw(stream: int) -> Tensor:
            first = self.start + part.first
            return uniform(rng[0], rng[1], self.key, stream, first, count, self.x.device).view(shape)

        return draw


# ---------------------------------------------------------------- the back end


class EagerBackend:
    """`launch.Backend` on any torch device: each Fold in turn, its sources left to right."""

    def prepare(
        self, signature: Signature, folds: list[FoldArgs], context: OpContext, programs: int | None = None
    ) -> _EagerFolds:
        """Raises KeyError where the signature names a codec that the context lacks, ValueError where a codec's flag is not in
        `context.flag_names`."""
        return _EagerFolds(signature, folds, context)


class _EagerFolds:
    user_kernel: UserKernel | None = None

    def __init__(self, signature: Signature, folds: list[FoldArgs], context: OpContext):
        self.signature, self.context, self.folds = signature, context, folds
        if context.rng.device.type == "cpu":
            self.folds = [part for f in folds for part in batches(f, signature, context.codecs)]
        self.in_codec = context.codecs[signature.in_codec] if signature.in_codec else None
        self.out_codec = context.codecs[signature.out_codec] if signature.out_codec else None
        flags = self.out_codec.flags if self.out_codec else {}
        self.flag_index = {name: 1 + context.flag_names.index(name) for name in flags}

    def run(self, x: Tensor, y: Tensor) -> None:
        for fold in self.folds:
            self._fold(fold, x, y)

    def _fold(self, fold: FoldArgs, x: Tensor, y: Tensor) -> None:
        s = self.signature
        if fold.copy_to is not None:
            source = fold.dense[0]
            assert isinstance(source, int)
            y[fold.copy_to : fold.copy_to + fold.length] = x[source : source + fold.length]
            return
        total: Tensor | None = None
        for (_, basis), place in zip(s.dense, fold.dense, strict=True):
            v = _rebased(self._dense(fold, place, basis, x), basis, s.basis, fold.length)
            total = v if total is None else total.add_(v)
        for i, place in enumerate(fold.wires):
            # The first value is a copy, which the others are added to.
            v = self._opened(fold, i, place, borrow=total is not None)
            total = v if total is None else total.add_(v)
        assert total is not None, "a Fold has a source"
        opened, opened_basis = total, s.basis
        if self.out_codec is not None:
            opened_basis = self.out_codec.basis
            opened = self._closed(fold, self.out_codec, _rebased(total, s.basis, opened_basis, fold.length))
        for (role, basis, wants_opened), place in zip(s.sinks, fold.sinks, strict=True):
            v, own = (opened, opened_basis) if wants_opened else (total, s.basis)
            v = _rebased(v, own, basis, fold.length)
            if role == "output":
                assert isinstance(place, int)
                y[place : place + fold.length] = to_dtype(v, self.context.dtype)
            else:
                assert isinstance(place, Place)
                _view(place, v.numel(), torch.float32).copy_(v)

    def _dense(self, fold: FoldArgs, place: int | Place, basis: int, x: Tensor) -> Tensor:
        if isinstance(place, Place):
            return _view(place, _live(fold.length, basis), torch.float32).clone()
        # A copy even of float32, because a sink may overwrite x before a later sink reads the sum.
        v = x[place : place + fold.length].to(torch.float32, copy=True)
        if self.context.factor is not None:
            v = v * torch.full((), self.context.factor, dtype=torch.float32, device=v.device)
        return v

    def _opened(self, fold: FoldArgs, i: int, place: Place, borrow: bool) -> Tensor:
        codec = self.in_codec
        assert codec is not None, "opened wires have a codec"
        places = fold.wire_states[i] if fold.wire_states else {}
        opened = open_wire(
            codec,
            _view(place, wire_bytes(codec, fold.length), torch.uint8),
            fold.length,
            states=_read_states(codec, places, fold.length),
            version=self.context.version,
            update=self.signature.update_in,
            borrow=borrow,
        )
        _write_states(places, opened.states)
        if opened.mismatch is not None:
            self.context.flags[0] += opened.mismatch.sum()
        return _rebased(opened.values, codec.basis, self.signature.basis, fold.length)

    def _closed(self, fold: FoldArgs, codec: Codec, v: Tensor) -> Tensor:
        places = [_view(p, wire_bytes(codec, v.numel()), torch.uint8) for p in fold.places]
        done = compress(
            codec,
            v,
            start=fold.start,
            states=_read_states(codec, fold.state, fold.length),
            rng=self.context.rng,
            key=fold.key,
            version=self.context.version,
            reopen=any(opened for _, _, opened in self.signature.sinks),
            out=places[0] if places else None,
        )
        for place in places[1:]:
            place.copy_(done.wire)
        _write_states(fold.state, done.states)
        for name, index in self.flag_index.items():
            self.context.flags[index] += done.flags[name]
        return done.opened


def _live(length: int, basis: int) -> int:
    return length + -length % basis if basis else length


def _rebased(v: Tensor, own: int, wanted: int, length: int) -> Tensor:
    """`v` in basis `own` as values in basis `wanted`; bases are 0 or a block size, and never two different blocks."""
    if own == wanted:
        return v
    assert own == 0 or wanted == 0, "one basis a Fold"
    return rotate(v, wanted) if wanted else rotate(v, own)[:length]


def _view(place: Place, count: int, dtype: torch.dtype) -> Tensor:
    return place.buffer[place.offset : place.offset + count * dtype.itemsize].view(dtype)


def _read_states(codec: Codec, places: dict[str, StatePlaces], length: int) -> dict[str, Tensor]:
    n = live_elements(codec, length)
    whole = -(-n // codec.group) * codec.group
    dtypes = {s.name: TORCH_DTYPES[s.dtype] for s in codec.states}
    return {name: _view(p.current, whole, dtypes[name]) for name, p in places.items() if name in dtypes}


def _write_states(places: dict[str, StatePlaces], new: dict[str, Tensor]) -> None:
    for name, v in new.items():
        _view(places[name].next, v.numel(), v.dtype).copy_(v)
