"""Abstract values: what a chunk or a wire holds, without its data.

A value is (input chunk, set of ranks as a bit mask, number, lossy steps). Numbers are hash-consed terms: equal numbers mean equal bits.

    input(c, r)        chunk c of rank r's input, times the op's factor
    sum(a, b)          float32 a + b; unordered, so sorted. Longer sums associate to the left in text order: sum(sum(a, b), c)
    trip(q, a[, site]) decompress(compress(q, a)); the site stands in it if q has state
    cast(a)            rounded to the tensor's dtype
    turn(B, a)         into, or out of, the Hadamard basis of B

The trace of a run is also the straight-line program of every rank, in SSA form: each value knows how it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from ..diagnostics import Span


class Numbers:
    """Interns terms; a number is a small integer. `key` gives the 64 bits that seed stochastic rounding: they depend on the term alone."""

    def __init__(self) -> None:
        self.terms: list[tuple[Any, ...]] = []
        self._ids: dict[tuple[Any, ...], int] = {}
        self._keys: dict[int, int] = {}

    def intern(self, term: tuple[Any, ...]) -> int:
        number = self._ids.get(term)
        if number is None:
            number = self._ids[term] = len(self.terms)
            self.terms.append(term)
        return number

    def sum(self, a: int, b: int) -> int:
        return self.intern(("sum", a, b) if a <= b else ("sum", b, a))

    def _digest(self, number: int, memo: dict[int, bytes]) -> bytes:
        stack = [number]
        while stack:
            top = stack[-1]
            if top in memo:
                stack.pop()
                continue
            term = self.terms[top]
            needs = {"sum": term[1:], "trip": term[2:3], "cast": term[1:], "turn": term[2:]}.get(term[0], ())
            missing = [n for n in needs if n not in memo]
            if missing:
                stack.extend(missing)
                continue
            match term[0]:
                case "input":
                    text = f"input {term[1]} {term[2]}".encode()
                case "sum":
                    text = b"sum " + b" ".join(sorted(memo[n] for n in term[1:]))
                case "trip":
                    site = "" if term[3] < 0 else f" {term[3]}"
                    text = f"trip {term[1]}{site} ".encode() + memo[term[2]]
                case "cast":
                    text = b"cast " + memo[term[1]]
                case _:
                    text = f"turn {term[1]} ".encode() + memo[term[2]]
            memo[top] = blake2b(text, digest_size=16).digest()
            stack.pop()
        return memo[number]

    def key(self, number: int) -> int:
        """First 64 bits of BLAKE2b over the term: names, layout of the text and order of checking do not enter."""
        if number not in self._keys:
            self._keys[number] = int.from_bytes(self._digest(number, self._memo)[:8], "little")
        return self._keys[number]

    @cached_property
    def _memo(self) -> dict[int, bytes]:
        return {}


class Value:
    """A chunk value on one rank. level: how many levels of sends must be complete before it can be computed.

    op: input (args: chunk position in the input tensor), add (two values), open (a wire), turn (a value; into `basis`).
    """

    __slots__ = ("op", "args", "number", "extent", "mask", "lossy", "level", "basis")

    def __init__(
        self,
        op: str,
        args: tuple[Any, ...],
        number: int,
        extent: int,
        mask: int,
        lossy: int,
        level: int,
        basis: int = 0,
    ):
        self.op, self.args, self.number, self.extent = op, args, number, extent
        self.mask, self.lossy, self.level, self.basis = mask, lossy, level, basis


class Wire:
    """A compressed chunk on one rank. number, mask, lossy are those of what it opens to.

    source: the Value compressed, with its site (-1 for a bare send), or None when the wire was received in `message` at `position`.
    key_number: the number of what was compressed. origin: the rank that compressed it.
    """

    __slots__ = (
        "codec",
        "source",
        "site",
        "number",
        "key_number",
        "extent",
        "mask",
        "lossy",
        "level",
        "message",
        "position",
        "origin",
    )

    def __init__(
        self,
        codec: str,
        source: Value | None,
        site: int,
        number: int,
        key_number: int,
        extent: int,
        mask: int,
        lossy: int,
        level: int,
        origin: int,
    ):
        self.codec, self.source, self.site, self.number, self.key_number = codec, source, site, number, key_number
        self.extent, self.mask, self.lossy, self.level = extent, mask, lossy, level
        self.message: Message | None = None
        self.position = 0
        self.origin = origin

    def arrive(self, message: Message, position: int) -> Wire:
        """The same bytes on the receiving rank."""
        w = Wire(
            self.codec,
            None,
            self.site,
            self.number,
            self.key_number,
            self.extent,
            self.mask,
            self.lossy,
            message.level + 1,
            self.origin,
        )
        w.message, w.position = message, position
        return w


@dataclass(eq=False)
class Message:
    """One send from one rank to another: `sent` wires on the source, `received` on the destination, in order."""

    level: int
    source: int
    target: int
    sent: tuple[Wire, ...]
    received: tuple[Wire, ...]
    axis: int
    step: int
    span: Span


@dataclass(eq=False)
class Trace:
    """A run of one world.

    outputs[rank][i] is what chunk i of the output tensor holds at the end; inputs and outputs are counted in the order of the tensor.
    """

    world: int
    sizes: tuple[int, ...]
    coordinates: list[tuple[int, ...]]
    params: dict[str, int]
    numbers: Numbers
    chunks: int
    input_extents: list[tuple[int, ...]]
    output_extents: list[tuple[int, ...]]
    messages: list[Message] = field(default_factory=list)
    outputs: list[list[Value | None]] = field(default_factory=list)
    writers: list[list[Span | None]] = field(default_factory=list)
    levels: int = 0
    lossy: int = 0
    divergent: bool = False

    @property
    def sends(self) -> int:
        return len(self.messages)

    @property
    def chunks_sent(self) -> int:
        return sum(len(m.sent) for m in self.messages)
