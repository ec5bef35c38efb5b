"""The Plan: what one rank does, as data. Made by lower, fuse and schedule; printed, verified, run by the executor.

A plan depends on texts, parameters, world, dtype and op, never on lengths: chunks are named by their *extent* (which input chunk of the
collective), and each call turns extents into lengths. There are four things to do: a `Launch` of Folds of one signature, an `Exchange` of
wires (one level of sends), a `Copy` of chunks that stay as they are, and `Commit` (states written during the call become current).

    y     = sum of dense sources, in order, then of opened wires, in order           float32, left to right, in one basis
    w     = close(out codec, y)
    sinks <- y or open(w); places <- w; update(state)

`Signature` is what a kernel is compiled for; everything else about a Fold is a row of a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..shown import Printed
from ..wire.codec import Codec

SCHEMA = 1


@dataclass(frozen=True)
class Dense:
    """A dense place. role: input (the user's tensor, tensor dtype, chunk `index`, op's factor applied when read), output (tensor dtype,
    chunk `index`), scratch (float32, plan's scratch `index`, in `basis`)."""

    role: str
    index: int
    basis: int = 0


@dataclass(frozen=True)
class StateRef:
    """State of a compress site for one chunk. owner: the rank that compresses (a receiver keeps `both` state under the sender's name)."""

    site: int
    extent: int
    owner: int


@dataclass(frozen=True)
class Opened:
    """A wire that a Fold opens. `state` where its codec has `both` state; `update` in the one Fold that updates it."""

    wire: int
    state: StateRef | None = None
    update: bool = False


@dataclass(frozen=True)
class Sink:
    """A dense place that gets y, or open(w) when `opened`."""

    place: Dense
    opened: bool


@dataclass(frozen=True)
class Remote:
    """A place in a mapped peer's memory: where it expects wire number `position` of those that this rank sends it at `level`."""

    peer: int
    level: int
    position: int


@dataclass(frozen=True)
class Fold:
    """One unit of compute on one chunk. `key` is the 64-bit value number of what is compressed (it seeds stochastic rounding).

    The wire goes to every `remote` place and, if `local`, to its slot here.
    """

    extent: int
    dense: tuple[Dense, ...]
    opened: tuple[Opened, ...]
    basis: int
    in_codec: str | None
    out_codec: str | None
    wire: int | None
    sinks: tuple[Sink, ...]
    key: int = 0
    state: StateRef | None = None
    remote: tuple[Remote, ...] = ()
    local: bool = True

    @property
    def signature(self) -> Signature:
        return Signature(
            tuple((d.role, d.basis) for d in self.dense),
            self.in_codec,
            any(o.update for o in self.opened),
            self.basis,
            self.out_codec,
            self.wire is not None,
            tuple((s.place.role, s.place.basis, s.opened) for s in self.sinks),
        )


@dataclass(frozen=True)
class Signature:
    """What a Fold kernel is compiled for, beside the tensor dtype and whether the op has a factor. `dense` is (role, basis) a source,
    `sinks` (role, basis, opened) a sink; codecs are keys of `Plan.codecs`; `update_in`: opened wires update `both` state."""

    dense: tuple[tuple[str, int], ...]
    in_codec: str | None
    update_in: bool
    basis: int
    out_codec: str | None
    wire: bool
    sinks: tuple[tuple[str, int, bool], ...]

    def __str__(self) -> str:
        parts = [role if not basis else f"{role}.h{basis}" for role, basis in self.dense]
        if self.in_codec:
            parts.append(f"open({self.in_codec})*")
        text = " + ".join(parts)
        if self.out_codec:
            text += f" -> {self.out_codec}"
        places = [
            ("open " if opened else "") + (role if not basis else f"{role}.h{basis}")
            for role, basis, opened in self.sinks
        ]
        return text + (" -> " + ", ".join(places) if places else "")


@dataclass(frozen=True)
class Launch:
    """Folds of one signature, run as one kernel launch. copies: (input, output) chunks that it hands on beside them, bit for bit."""

    signature: Signature
    folds: tuple[Fold, ...]
    copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Transfer:
    """One message: wires, in order, to or from `peer` (group rank). direct: the peer is mapped, so the bytes were stored by Folds (or are
    copied) and the transfer is a signal."""

    peer: int
    wires: tuple[int, ...]
    direct: bool = False


@dataclass(frozen=True)
class Exchange:
    """One level of sends of this rank, issued as one group. copies: wires forwarded into mapped memory. gather: the wires of all ranks, in their
    order, where the level is an all-gather and may be issued as one; they lie side by side."""

    level: int
    sends: tuple[Transfer, ...]
    recvs: tuple[Transfer, ...]
    copies: tuple[tuple[int, Remote], ...] = ()
    gather: tuple[int, ...] = ()


@dataclass(frozen=True)
class Copy:
    """Input chunks that are output chunks as they are: (input, output) pairs, copied bit for bit, beside everything else. Nothing is done
    where the two are one place."""

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Commit:
    """States written during the call become current. Last, and only in plans with state."""


Step = Launch | Exchange | Copy | Commit


@dataclass(frozen=True)
class WireInfo:
    """codec: key of `Plan.codecs`; extent: which chunk; slot: index of `Plan.slots`; text: how diagnostics and prints call it."""

    codec: str
    extent: int
    slot: int = -1
    text: str = ""


@dataclass(frozen=True)
class ScratchInfo:
    """A float32 chunk that the plan has to keep outside a kernel, in `basis`."""

    extent: int
    basis: int
    slot: int = -1


@dataclass(frozen=True)
class Buffers:
    """How the user's tensors are cut. inputs[i] / outputs[i] is the extent of chunk i of the input / output tensor, in order.
    aliases[i] is the input chunk at the same place as output chunk i when the op runs in torch's in-place form, or -1."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: tuple[int, ...]


@dataclass(frozen=True)
class Credits:
    """Reuse of mapped memory from call to call: wait for a credit of each rank in `awaits` before the first store of a call, grant one to
    each rank in `grants` after the last read."""

    awaits: tuple[int, ...]
    grants: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Plan(Printed):
    """One rank's plan. mapped: peers whose memory is mapped here. slots[i] lists the wires and scratches (as ("wire", id) or ("scratch", id)) that share slot i in turn."""

    name: str
    kind: str
    rank: int
    world: int
    mesh: tuple[tuple[str, int], ...]
    dtype: str
    op: str
    buffers: Buffers
    codecs: dict[str, Codec]
    wires: dict[int, WireInfo]
    scratch: dict[int, ScratchInfo]
    steps: tuple[Step, ...]
    slots: tuple[tuple[tuple[str, int], ...], ...] = ()
    depths: tuple[int, ...] = (1,)
    alignment: int = 1
    levels: int = 0
    root: int = 0
    states: dict[StateRef, str] = field(default_factory=dict)
    mapped: frozenset[int] = frozenset()
    credits: Credits | None = None

    def __repr__(self) -> str:
        return f"Plan({self.name} : {self.kind}, rank {self.rank} of {self.world}, {self.dtype}, {self.op}, {len(self.steps)} steps)"

    @property
    def launches(self) -> int:
        """Kernel launches of one slice."""
        return sum(isinstance(s, Launch) for s in self.steps)

    @property
    def stateful(self) -> bool:
        return bool(self.states)

    @property
    def stochastic(self) -> bool:
        return any(c.stochastic for c in self.codecs.values())
