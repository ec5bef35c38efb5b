"""How many slices, and how much of the GPU the stores of a slice may take: a pure function of what all ranks know.

Measured on two H200 over NVLink (benchmarks/results/nvlink.json). A Fold that stores over the link fills every multiprocessor's queue with
stores, and a kernel of another slice beside it is held up by them; so slices help where the two sides of a transfer are different GPUs
(send_recv), and else only if the storing Fold is kept to a few programs, which 8-bit wires stand and 4-bit wires, which need more compute a
byte of wire, do not. Plans of several levels gain nothing: both levels use the link. Nor do plans whose storing Fold takes copies along.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.ops import Launch, Plan
from ..wire.layout import bits_per_value

MIB = 1 << 20
SLICED_FROM = 64 * MIB
ONE_LEVEL_FROM = 128 * MIB
FAR_PROGRAMS = 528
# Calls whose Folds read at most so many bytes, wires counted as what they open to, are one launch each: its 16 programs are slower than a
# whole GPU, and starting kernels takes longer than that up to about here: one_shot of 512 KiB, two_shot of 768 KiB between two ranks.
ONE_LAUNCH_TO = 1536 << 10


@dataclass(frozen=True)
class Tuned:
    """depth: slices; far_programs: limit for launches that store into a peer's memory, or None."""

    depth: int
    far_programs: int | None


def tuned(plan: Plan, size: int, asked: int | None) -> Tuned:
    """For a plan over mapped memory and calls of `size` bytes. asked: the user's number of slices, if any."""
    if not plan.mapped:
        return Tuned(asked if asked is not None else plan.depths[0], None)
    if plan.kind == "send_recv":
        return Tuned(asked if asked is not None else (4 if size >= SLICED_FROM else 1), None)
    bits = min((bits_per_value(c) for c in plan.codecs.values()), default=32.0)
    copies = any(isinstance(s, Launch) and s.copies for s in plan.steps)
    narrow = plan.levels > 1 or bits < 6 or copies
    if asked is not None:
        return Tuned(asked, FAR_PROGRAMS if asked > 1 and not narrow else None)
    if narrow or size < ONE_LEVEL_FROM:
        return Tuned(1, None)
    return Tuned(4, FAR_PROGRAMS)
