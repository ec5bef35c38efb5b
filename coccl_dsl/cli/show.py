"""What coccl-compile prints: summary, proof, steps, compressors. Tables are drawn on a terminal and plain columns in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..check.report import Report
from ..check.values import Trace
from ..diagnostics import CompileError
from ..lang import ast
from ..lang.files import read
from ..lang.parse import parse_binding, parse_comp
from ..pipeline import Collective, World, raw_codec
from ..plan import show
from ..plan.cut import cut
from ..plan.model import GPU, axis_of, level_times, predicted
from ..plan.ops import Exchange, Launch, Plan
from ..wire.codec import DTYPES, TYPES, Codec
from ..wire.compile import compile_codec
from ..wire.layout import bits_per_value, wire_bytes
from ..wire.scope import Scope, bind


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """right: columns whose values stand at the right edge."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        drawn = Table(*head)
        for i in right:
            drawn.columns[i].justify = "right"
        for row in rows:
            drawn.add_row(*row)
        Console().print(drawn, markup=False)
        return
    print(columns(head, rows, right))


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """The same table in plain columns."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines)


# ---------------------------------------------------------------- one world


@dataclass(frozen=True)
class Facts:
    """A proven world with one rank's plan. count: elements of the input that byte counts are for. codecs: all, by their names in the text.
    axes: names of a mesh's axes."""

    world: World
    trace: Trace
    plan: Plan
    count: int
    codecs: dict[str, Codec]
    axes: tuple[str, ...] = ()


def facts(collective: Collective, world: World, dtype: str, rank: int, count: int | None) -> Facts:
    trace = collective.trace(world, dtype=dtype)
    plan = collective.plan(world, rank, dtype=dtype, trace=trace)
    codecs = {"": raw_codec(dtype), **collective.program(dtype).codecs}
    return Facts(
        world, trace, plan, show.fitting(plan, show.COUNT if count is None else count), codecs, collective.axes
    )


def bytes_by_rank(f: Facts) -> list[tuple[int, int]]:
    """What each rank sends, and what the same messages take uncompressed."""
    lengths = cut(f.plan, f.count).lengths
    other = next(iter(lengths.values()))  # chunks of other ranks are of one length wherever one rank does not know all
    totals = [(0, 0)] * f.trace.world
    for m in f.trace.messages:
        sent, plain = totals[m.source]
        for w in m.sent:
            length = lengths.get(w.extent, other)
            sent += wire_bytes(f.codecs[w.codec], length)
            plain += length * TYPES[f.plan.dtype][0] // 8
        totals[m.source] = sent, plain
    return totals


def same_bits(kind: str, divergent: bool) -> str:
    if kind in ("reduce_scatter", "all_to_all", "send_recv"):
        return "each rank has a result of its own"
    if kind == "reduce":
        return "only the root's result is promised"
    return "not promised: the text says `allow divergent`" if divergent else "on all ranks"


def worlds_text(report: Report) -> str:
    sizes = list(dict.fromkeys(w.sizes for w in report.worlds))
    if all(len(s) == 1 for s in sizes):
        return "n = " + ", ".join(str(s[0]) for s in sizes)
    return "meshes " + ", ".join("x".join(map(str, s)) for s in sizes)


def print_summary(f: Facts, report: Report) -> None:
    plan, trace = f.plan, f.trace
    used = {w.codec for m in trace.messages for w in m.sent}
    per_rank = bytes_by_rank(f)
    sends = [sum(m.source == r for m in trace.messages) for r in range(trace.world)]
    worst = max(range(trace.world), key=lambda r: per_rank[r][0])
    sent, plain = per_rank[worst]
    some = "" if len(set(per_rank)) == 1 else f", rank {worst}'s, which sends most"
    mesh = f" ({', '.join(f'{n}={v}' for n, v in plan.mesh)})" if len(plan.mesh) > 1 else ""
    root = f", root {plan.root}" if plan.kind in ("broadcast", "reduce") else ""
    print(f"{plan.name} : {plan.kind} is right for {worlds_text(report)}, every rank and chunk")
    rows = [
        ("world", f"{trace.world} ranks{mesh}, {plan.dtype}, {plan.op}{root}"),
        ("sends", f"{trace.sends} messages, {max(sends)} a rank{'' if len(set(sends)) == 1 else ' at most'}"),
        ("steps", str(trace.levels)),
        (
            "wire bytes",
            f"{sent:,} a rank of {plain:,} uncompressed, {show.ratio(sent, plain)}{some} ({f.count:,} elements)",
        ),
        ("lossy steps", f"{trace.lossy} on the worst path"),
        ("same bits", same_bits(plan.kind, trace.divergent)),
        ("launches", f"{plan.launches} a slice on rank {plan.rank}; slices {', '.join(map(str, plan.depths))}"),
        ("scratch", f"{show.scratch_bytes(plan, f.count):,} bytes on rank {plan.rank}"),
    ]
    rows += [(f"compressor {key}", show.describe(c)) for key, c in f.codecs.items() if key in used]
    print("\n".join(show.table(rows)))


# ---------------------------------------------------------------- proof and steps


def print_report(report: Report) -> None:
    print(f"{report.name} : {report.kind} is right for {worlds_text(report)}")
    rows = []
    for sizes in dict.fromkeys(w.sizes for w in report.worlds):
        here = [w for w in report.worlds if w.sizes == sizes]
        ends = same_bits(report.kind, not all(w.same_bits for w in here))
        most = [max(getattr(w, name) for w in here) for name in ("sends", "chunks_sent", "steps", "lossy")]
        rows.append(["x".join(map(str, sizes)), *map(str, most), ends])
    if any("root" in w.params for w in report.worlds):
        print("  with every rank as the root")
    print_table(["ranks", "sends", "chunks sent", "steps", "lossy steps", "same bits"], rows, right=range(5))


def print_steps(f: Facts) -> None:
    """Each step of one rank: the launches before it, who sends to whom, bytes, lossy steps behind what is sent by any rank; and what the model
    of `plan/model.py` expects of the slowest rank."""
    plan = f.plan
    lengths = cut(plan, f.count).lengths
    other = next(iter(lengths.values()))
    times = level_times(f.trace, lambda w: wire_bytes(f.codecs[w.codec], lengths.get(w.extent, other)))
    rows, launches = [], 0
    for step in plan.steps:
        if isinstance(step, Launch):
            launches += 1
        elif isinstance(step, Exchange):
            by_axis: dict[int, int] = {}
            for t in step.sends:
                axis = axis_of(f.trace, plan.rank, t.peer)
                size = sum(wire_bytes(plan.codecs[plan.wires[w].codec], lengths[plan.wires[w].extent]) for w in t.wires)
                by_axis[axis] = by_axis.get(axis, 0) + size
            sent = " + ".join(
                f"{size:,}" + (f" along {f.axes[axis]}" if f.axes else "") for axis, size in sorted(by_axis.items())
            )
            lossy = max((w.lossy for m in f.trace.messages if m.level == step.level for w in m.sent), default=0)
            to = ", ".join(str(t.peer) for t in step.sends) or "-"
            source = ", ".join(str(t.peer) for t in step.recvs) or "-"
            time = times[step.level]
            expected = f"{1e6 * time.seconds:,.0f} us, {time.link.name}"
            rows.append([str(step.level), str(launches), to, source, sent or "0", str(lossy), expected])
            launches = 0
    total = f"{1e6 * predicted(times, plan.launches):,.0f} us in all"
    rows.append(["end", str(launches), "", "", "", str(f.trace.lossy), total])
    print(show.headline(plan) + f"   {f.count:,} elements")
    head = [
        "step",
        "launches before",
        f"rank {plan.rank} sends to",
        "receives from",
        "bytes sent",
        "lossy so far",
        "predicted",
    ]
    print_table(head, rows, right=(0, 1, 4, 5, 6))
    print(
        f"  predicted: one slice on GPUs, {GPU.inside.bandwidth / 1e9:g} GB/s and {1e6 * GPU.inside.latency:g} us inside a node, "
        f"{GPU.across.bandwidth / 1e9:g} GB/s and {1e6 * GPU.across.latency:g} us across, {1e6 * GPU.launch:g} us a launch"
    )


# ---------------------------------------------------------------- compressors


@dataclass(frozen=True)
class Checked:
    """A compressor of a .comp file, bound. dtypes: the tensor dtypes that it takes; filled: parameters that had no default."""

    definition: ast.CompressorDef
    codec: Codec
    dtypes: tuple[str, ...]
    filled: dict[str, str]


def compressors(path: Path, settings: dict[str, str], dtype: str | None) -> Iterator[Checked]:
    """Compile every compressor of a file, parameters as in `settings`, else their defaults, and int8 where a compressor is wanted.

    Raises CompileError, and ValueError for a setting that no compressor of the file has.
    """
    source = read(path)
    parsed = parse_comp(source)
    scope = Scope(source.path)
    scope.add_file(path)
    known = {p.name for d in parsed.compressors for p in d.params}
    for name in settings:
        if name not in known:
            raise ValueError(
                f"no compressor in {path.name} has a parameter `{name}`; there are {', '.join(sorted(known))}"
            )
    for d in parsed.compressors:
        own = {p.name: settings[p.name] for p in d.params if p.name in settings}
        filled = {
            p.name: "int8" for p in d.params if p.default is None and p.kind == "compressor" and p.name not in own
        }
        given = ", ".join(f"{name}={value}" for name, value in {**own, **filled}.items())
        binding = parse_binding(f"{d.name}({given})", d.name)
        made: dict[str, Codec] = {}
        problem: CompileError | None = None
        for t in DTYPES if dtype is None else (dtype,):
            try:
                made[t] = compile_codec(bind(binding, scope), t)
            except CompileError as e:
                if e.codes != ("E501",):
                    raise
                problem = e
        if not made:
            assert problem is not None
            raise problem
        yield Checked(d, made.get("bf16") or next(iter(made.values())), tuple(made), filled)


def print_compressor(c: Checked) -> None:
    codec = c.codec
    policies = {
        "pass": "each element keeps its own",
        "field": "the group becomes NaN",
        "code": "a code says that the group is NaN",
    }
    rows = [
        ("wire", f"{bits_per_value(codec):g} bits a value ({codec.dtype} tensors), groups of {codec.group}"),
        (
            "fields",
            ", ".join(
                f"{f.name} {f.type}" + (f"[{f.length}]" if f.per == "array" else f" a {f.per}") for f in codec.fields
            ),
        ),
        ("tensors", ", ".join(c.dtypes)),
        ("NaN, Inf", policies[codec.nonfinite]),
    ]
    if codec.basis:
        rows.append(("basis", f"hadamard({codec.basis})"))
    rows += [("state", f"{s.name} : {s.dtype} {s.scope}") for s in codec.states]
    rows += [("exact for", ", ".join(codec.exact_for))] if codec.exact_for else []
    rows += [("flag", name) for name in codec.flags]
    rows += [("claim", claim.text) for claim in codec.claims]
    with_ = f" (with {', '.join(f'{k} = {v}' for k, v in c.filled.items())}, as nothing is set)" if c.filled else ""
    print(f"{codec.name} is right{with_}")
    print("\n".join(show.table(rows)))
