"""What pictures are drawn from: a proven world, every rank's plan, and the lengths of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from ..check.values import Message, Trace, Wire
from ..pipeline import Collective, World, load, raw_codec
from ..plan import show
from ..plan.cut import cut, piece
from ..plan.model import GPU, LevelTime, Links, level_times
from ..plan.ops import Plan
from ..wire.codec import TYPES, Codec
from ..wire.layout import wire_bytes


@dataclass(frozen=True, eq=False)
class Schedule:
    """A world of a collective. plans: one a rank; codecs: all, by their names in the text, "" for a bare send; count: elements of the input;
    axes: names of a mesh's axes, else empty."""

    name: str
    kind: str
    trace: Trace
    plans: tuple[Plan, ...]
    codecs: Mapping[str, Codec]
    count: int
    dtype: str
    axes: tuple[str, ...]

    @property
    def world(self) -> int:
        return self.trace.world

    @cached_property
    def lengths(self) -> dict[int, int]:
        """Elements of each chunk that any rank holds or sends."""
        found: dict[int, int] = {}
        for plan in self.plans:
            found |= cut(plan, self.count).lengths
        return found

    def wire_size(self, w: Wire) -> int:
        """Bytes of a wire."""
        return wire_bytes(self.codecs[w.codec], self.lengths[w.extent])

    def message_size(self, m: Message) -> int:
        return sum(map(self.wire_size, m.sent))

    @cached_property
    def sent(self) -> list[int]:
        """Bytes that each rank sends."""
        found = [0] * self.world
        for m in self.trace.messages:
            found[m.source] += self.message_size(m)
        return found

    @cached_property
    def plain(self) -> int:
        """What the messages of the rank that sends most take in the tensor's dtype."""
        busiest = self.sent.index(max(self.sent))
        bits = TYPES[self.dtype][0]
        return sum(
            self.lengths[w.extent] * bits // 8 for m in self.trace.messages if m.source == busiest for w in m.sent
        )

    def level_times(self, links: Links = GPU, part: int = 0, slices: int = 1) -> list[LevelTime]:
        """The model's time of each level of slice `part` of `slices`."""

        def size(w: Wire) -> int:
            return wire_bytes(self.codecs[w.codec], piece(self.lengths[w.extent], part, slices).length)

        return level_times(self.trace, size, links)

    def laid_on(self, mesh: Mapping[str, int]) -> Schedule:
        """A collective over ranks as its links see it where the ranks lie on a mesh, row-major. Raises ValueError where they do not fill it."""
        sizes = tuple(mesh.values())
        if self.axes or prod(sizes) != self.world:
            raise ValueError(f"`{self.name}` on {self.axes or self.world} cannot be laid on a mesh of {dict(mesh)}")
        where = list(product(*map(range, sizes)))
        return replace(self, trace=replace(self.trace, sizes=sizes, coordinates=where), axes=tuple(mesh))

    @property
    def headline(self) -> str:
        mesh = (
            " (" + ", ".join(f"{a}={s}" for a, s in zip(self.axes, self.trace.sizes, strict=True)) + ")"
            if self.axes
            else ""
        )
        return f"{self.name} : {self.kind}   {self.world} ranks{mesh}   {self.dtype}   {self.count:,} elements a rank"

    @property
    def costs(self) -> str:
        t = self.trace
        return (
            f"{_many(t.levels, 'step')}, {_many(t.sends, 'send')}, {max(self.sent):,} bytes sent by the busiest rank "
            f"({show.ratio(max(self.sent), self.plain)} than {self.dtype}), {_many(t.lossy, 'lossy step')} on the worst path"
        )


def _many(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def sizes_of(collective: Collective, ranks: int | Mapping[str, int]) -> tuple[int, ...]:
    """Sizes of the axes of a world. A mesh is given as {"node": 2, "local": 4}. Raises ValueError where it does not fit the collective."""
    axes = collective.axes
    if isinstance(ranks, Mapping):
        if set(ranks) != set(axes):
            wants = f"a mesh of {', '.join(axes)}" if axes else "a number of ranks"
            raise ValueError(f"`{collective.name}` runs on {wants}, not on {dict(ranks)}")
        sizes = tuple(ranks[a] for a in axes)
    elif axes:
        raise ValueError(f"`{collective.name}` runs on a mesh: say {{{', '.join(f'{a!r}: ...' for a in axes)}}}")
    else:
        sizes = (ranks,)
    if min(sizes) < 1 or prod(sizes) < 2:
        raise ValueError(f"a world of {prod(sizes)} sends nothing: it takes at least 2 ranks")
    return sizes


def schedule(
    collective: Collective | str,
    ranks: int | Mapping[str, int] = 4,
    *,
    count: int = show.COUNT,
    dtype: str = "bf16",
    root: int = 0,
    on: Mapping[str, int] | None = None,
    **compressors: str,
) -> Schedule:
    """Prove and plan one world: `schedule("three_shot", {"node": 2, "local": 4}, b="int8")`.

    ranks   how many, or sizes of a mesh's axes
    count   elements of each rank's input, for byte counts; rounded down to what the collective can cut
    dtype   f32, bf16 or f16
    on      for a collective over ranks: the mesh of machines that they lie on, such as {"node": 2, "local": 4}, which decides over which links
            its messages go

    Raises CompileError where the text does not prove, ValueError where the world does not fit it.
    """
    made = load(collective) if isinstance(collective, str) else collective
    world = World(sizes_of(made, ranks), root)
    if not 0 <= root < world.count:
        raise ValueError(f"root={root} is not a rank of 0 .. {world.count - 1}")
    planned = plan_world(made, world, count=count, dtype=dtype, compressors=compressors)
    return planned.laid_on(on) if on is not None else planned


def plan_world(
    collective: Collective, world: World, *, count: int, dtype: str, compressors: dict[str, str] | None = None
) -> Schedule:
    """The same for a World."""
    trace = collective.trace(world, dtype=dtype, compressors=compressors)
    plans = tuple(
        collective.plan(world, r, dtype=dtype, compressors=compressors, trace=trace) for r in range(world.count)
    )
    codecs = {"": raw_codec(dtype), **collective.program(dtype, compressors).codecs}
    fitted = show.fitting(plans[0], count)
    if fitted < 1:
        raise ValueError(f"count={count} is too small for {world.count} ranks")
    return Schedule(collective.name, collective.kind, trace, plans, codecs, fitted, dtype, collective.axes)
