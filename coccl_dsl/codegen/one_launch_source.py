"""The text of a kernel that runs a whole call: the tiles of its Folds (triton_source.py), one after the other, with exchanges between them.

Every launch takes part of the arguments: `table_i`, its segment table for even calls and behind it the one for odd calls, which have other
places for wires; `folds_i` rows in each, `size_i` columns, `places_i` the first column of places. Every exchange takes `rows_i`, `signals_i` and
`waits_i` (signals.meet). A program takes every step-th tile of every row, whole tiles first: which tiles depends on a row's length alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..plan.ops import Signature
from ..wire.codec import Codec
from .launch import FoldArgs
from .tiling import Tiling, tiling
from .triton_source import ARGUMENTS, KernelSource, span_text

if TYPE_CHECKING:
    import torch

# Programs of such a kernel. A kernel that waits has few, so that those of all ops in flight leave room for what they wait for.
PROGRAMS = 16
# Elements of a whole tile and of a small one where a rank's programs would have to take several of the usual size.
TILE, SMALL, WARP = 8192, 2048, 1024
IMPORT = "from coccl_dsl.codegen import signals\n\n"
SHARED = ("factor", "rng", "version", "flags")
CONTROL = ("turns", "status", "number", "deadline")


@dataclass(frozen=True)
class LaunchPart:
    """A launch: whether each of its folds opens at most one wire, writes one place, and whether it has rows that only copy."""

    signature: Signature
    one_wire: bool
    one_place: bool
    copies: bool


@dataclass(frozen=True)
class ExchangePart:
    """An exchange. peers: an upper bound of its signals and of its waits."""

    level: int
    peers: int


@dataclass(frozen=True)
class LaunchArgs:
    """What a launch is given in one count: the folds of even and of odd calls, which differ in the places of wires alone."""

    part: LaunchPart
    even: list[FoldArgs]
    odd: list[FoldArgs]


@dataclass(frozen=True)
class ExchangeArgs:
    """What an exchange is given. rows: int64[n, 3] on the device, see signals.meet."""

    part: ExchangePart
    rows: torch.Tensor
    signals: int
    waits: int


@dataclass(frozen=True)
class Control:
    """turns: int32[PROGRAMS] on the device, calls so far; status: int32[4] in pinned memory; deadline in milliseconds."""

    turns: torch.Tensor
    status: torch.Tensor
    number: int
    deadline: int


def one_tiling(signatures: Sequence[Signature], codecs: dict[str, Codec], longest: int) -> Tiling:
    """One for all launches of all ranks, so that a tile is the same elements everywhere. longest: elements of the longest chunk."""
    shapes = [tiling(s, codecs) for s in signatures]
    tile, small = max(s.tile for s in shapes), max(s.small for s in shapes)
    if longest > PROGRAMS * tile:
        tile, small = max(TILE, tile), max(SMALL, small)
    return Tiling(tile, small, max(2, min(16, tile // WARP)))


def arguments_of(parts: Sequence[LaunchPart | ExchangePart]) -> list[str]:
    """Names of the kernel's arguments, in order; the constant ALIGNED follows."""
    names = ["x", "y"]
    for i, part in enumerate(parts):
        own = ("table", "folds", "size", "places") if isinstance(part, LaunchPart) else ("rows", "signals", "waits")
        names += [f"{name}_{i}" for name in own]
    return [*names, *SHARED, *CONTROL]


def one_launch_source(
    parts: Sequence[LaunchPart | ExchangePart], dtype: str, codecs: dict[str, Codec], factor: bool, shape: Tiling
) -> KernelSource:
    """Raises NotImplementedError, naming the operation, where a codec uses one that cannot be generated."""
    texts: dict[Signature, str] = {}
    for part in parts:
        if isinstance(part, LaunchPart) and part.signature not in texts:
            name = f"FOLD_{len(texts)}"
            texts[part.signature] = span_text(part.signature, codecs, factor, shape).replace("FOLD", name)
    names = {signature: f"FOLD_{i}" for i, signature in enumerate(texts)}
    text = "\n".join([IMPORT, *texts.values(), *_entry(parts, names, shape)]) + "\n"
    name = f"call_{hashlib.sha256(f'{dtype} {text}'.encode()).hexdigest()[:12]}"
    return KernelSource(name, text.replace("FOLD", name), shape)


def _entry(parts: Sequence[LaunchPart | ExchangePart], names: dict[Signature, str], shape: Tiling) -> list[str]:
    arguments = arguments_of(parts)
    quoted = ", ".join(f'"{a}"' for a in arguments)
    lines = [f"@triton.jit(do_not_specialize=[{quoted}], do_not_specialize_on_alignment=[{quoted}])"]
    lines.append(f"def FOLD({', '.join(arguments)}, ALIGNED: tl.constexpr):")
    body = ["program = tl.program_id(0).to(tl.int64)", "step = tl.num_programs(0).to(tl.int64)"]
    body += ["turn = tl.load(turns + program)", "odd = turn & 1"]
    after_launch = False
    for i, part in enumerate(parts):
        if isinstance(part, ExchangePart):
            peers = 1 << (part.peers - 1).bit_length() if part.peers else 1
            body.append(
                f"signals.meet(rows_{i}, signals_{i}, waits_{i}, {part.level}, program, turn, status, number, deadline, {peers})"
            )
            after_launch = False
            continue
        if after_launch:
            body.append("tl.debug_barrier()")
        after_launch = True
        constants = f"ALIGNED, {part.one_wire}, {part.one_place}, True, {part.copies}, {shape.tile}, {shape.small}"
        values = ", ".join(f"places_{i}" if a == "places_at" else a for a in ARGUMENTS if a not in _TABLE)
        body += [f"# {part.signature}", "k = tl.full([], 0, tl.int64)", f"while k < folds_{i}:"]
        body.append(f"    row = table_{i} + (odd * folds_{i} + k) * size_{i}")
        body += [f"    {names[part.signature]}_span(row, program, step, {values}, {constants})", "    k += 1"]
    body += ["tl.debug_barrier()", "tl.store(turns + program, turn + 1)"]
    return lines + ["    " + line for line in body]


_TABLE = ("table", "folds", "row_size")
