"""Emit: a collective and its plan -> one readable, importable Python module.

before:  Collective ring_q4 on 4 ranks
after:   the texts, rank 0's plan as a comment, one Triton kernel a Fold signature and dtype, and `torch.ops.coccl.ring_q4`

The module needs no .coll or .comp file. It imports on a machine without Triton; kernels that it lacks are generated at bind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..check.values import Trace
from ..diagnostics import CompileError, Source
from ..lang.parse import parse_coll, parse_comp
from ..pipeline import Collective, World, raw_codec
from ..plan import show
from ..plan.ops import Launch, Plan
from ..wire.codec import DTYPES
from ..wire.scope import Scope
from .triton_source import HEADER, KernelSource, kernel_key, kernel_source

# Ranks whose kernels a module holds. Larger worlds have no others, but for texts in which single ranks have a part of their own.
RANKS = 32


@dataclass(frozen=True)
class Kernels:
    """sources: every kernel once; keys: `kernel_key` -> name of its kernel."""

    sources: dict[str, KernelSource]
    keys: dict[str, str]


def kernels_of(plans: Iterable[Plan]) -> Kernels:
    """The Triton kernels that these plans launch, for their op, with those of a first call with other compressors.

    Raises NotImplementedError where a compressor uses an operation that Triton cannot run.
    """
    made = Kernels({}, {})
    for plan in plans:
        first = {n: c.first or c for n, c in plan.codecs.items()}
        for codecs in [plan.codecs, first] if any(c.first for c in plan.codecs.values()) else [plan.codecs]:
            for step in plan.steps:
                if not isinstance(step, Launch):
                    continue
                factor = plan.op != "sum"
                key = kernel_key(step.signature, plan.dtype, codecs, factor)
                if key not in made.keys:
                    source = kernel_source(step.signature, plan.dtype, codecs, factor)
                    made.sources.setdefault(source.name, source)
                    made.keys[key] = source.name
    return made


def plans_of(
    collective: Collective,
    world: World,
    dtype: str,
    compressors: dict[str, str] | None = None,
    trace: Trace | None = None,
) -> list[Plan]:
    """The plans of a world's ranks, of the first 32 in larger worlds. `trace`: of this world and dtype, if there is one. Raises CompileError."""
    trace = trace or collective.trace(world, dtype=dtype, compressors=compressors)
    ranks = range(min(world.count, RANKS))
    return [collective.plan(world, r, dtype=dtype, compressors=compressors, trace=trace) for r in ranks]


def _for_dtype(plans: list[Plan], collective: Collective, dtype: str, compressors: dict[str, str] | None) -> list[Plan]:
    """The same plans for tensors of another dtype: signatures do not depend on it. Raises CompileError where a compressor does not take it."""
    codecs = {**collective.program(dtype, compressors).codecs, "": raw_codec(dtype)}
    return [replace(p, dtype=dtype, codecs={key: codecs[key] for key in p.codecs}) for p in plans]


# ---------------------------------------------------------------- embedding texts


def embedded(
    text: str, file: str, name: str, comps: dict[str, str], compressors: dict[str, str] | None = None
) -> Collective:
    """The collective `name` of a generated module's texts, proven when it is bound.

    text, file   the .coll text and the name that diagnostics show
    comps        .comp file name -> text; each sees those before it
    compressors  rebound compressors, as text
    """
    source = Source(file, text)
    parsed = parse_coll(source)
    scope = Scope()
    for shown, comp in comps.items():
        scope.add(parse_comp(Source(shown, comp)).compressors, Scope(None, dict(scope.known)))
    syntax = next(c for c in parsed.collectives if c.name == name)
    return Collective(source, syntax, scope, parsed.uses, compressors or {})


def comp_sources(scope: Scope) -> dict[str, Source]:
    """The .comp texts that a scope reaches, those that others need first. Raises ValueError where two files define one name."""
    found: dict[str, Source] = {}
    owner: dict[str, str] = {}

    def visit(s: Scope, seen: frozenset[int]) -> None:
        for name, (definition, inner) in s.known.items():
            source = definition.span.source
            place = source.path or source.name
            if owner.setdefault(name, place) != place:
                raise ValueError(f"`{name}` is defined in {owner[name]} and in {place}; a module can hold one of them")
            if id(inner) not in seen:
                visit(inner, seen | {id(inner)})
            found.setdefault(place, source)

    visit(scope, frozenset({id(scope)}))
    named: dict[str, Source] = {}
    for source in found.values():
        shown = source.name
        while shown in named:
            shown = f"other/{shown}"
        named[shown] = source
    return named


def _literal(text: str) -> str:
    """A Python literal of a text, line by line where Python would read it back unchanged."""
    if any(c != "\n" and not c.isprintable() for c in text) or text.endswith("'"):
        return repr(text)
    shown = text.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
    return f"'''\\\n{shown}'''"


# ---------------------------------------------------------------- the module


def module_source(
    collective: Collective,
    world: World,
    *,
    dtypes: Sequence[str] = DTYPES,
    compressors: dict[str, str] | None = None,
    trace: Trace | None = None,
) -> str:
    """The module's text, with kernels for each of `dtypes` that the compressors take. `trace`: of this world and the first dtype, if there is one.

    Raises CompileError where the text does not prove for this world, NotImplementedError where a compressor cannot be generated.
    """
    own: list[Plan] = []
    plans: list[Plan] = []
    problem: CompileError | None = None
    taken: list[str] = []
    for dtype in dtypes:
        try:
            if own:
                plans += _for_dtype(own, collective, dtype, compressors)
            else:
                own = plans_of(collective, world, dtype, compressors, trace if dtype == dtypes[0] else None)
                plans += own
            taken.append(dtype)
        except CompileError as e:
            if set(e.codes) != {"E501"}:
                raise
            problem = problem or e
    if problem is not None and not plans:
        raise problem
    first = plans[0]
    kernels = kernels_of(plans)
    bound = {**collective.compressors, **(compressors or {})}
    parts = [
        _docstring(collective, first, taken),
        _imports(),
        "# ---------------------------------------------------------------- texts",
        _texts(collective),
        "# ---------------------------------------------------------------- plan of rank 0\n",
        "\n".join(f"# {line}".rstrip() for line in show.text(first).splitlines()) + "\n",
        "# ---------------------------------------------------------------- kernels\n",
        _kernel_section(kernels),
        "# ---------------------------------------------------------------- the collective, and the op\n",
        _registration(collective, world, bound),
    ]
    return "\n".join(parts)


def _docstring(collective: Collective, plan: Plan, dtypes: list[str]) -> str:
    from .. import __version__

    n = plan.world
    lines = [
        f'"""{collective.name}: {collective.kind}, compressed. Generated by coccl-compile {__version__} from {collective.source.name}.',
        "",
        *show.summary(plan).splitlines(),
        "",
        f"Importing this module registers torch.ops.coccl.{collective.name}(x, group_name, op='sum'): all ranks call it in one order, the",
        f"first call of a kind binds. The text holds for any world; the plan and the kernels below are those of {n} ranks, for {', '.join(dtypes)}",
        f'and op={plan.op}; others are made at bind."""',
    ]
    return "\n".join(line.replace("\\", "\\\\") for line in lines) + "\n"


def _imports() -> str:
    return (
        "from __future__ import annotations\n\n"
        "from coccl_dsl.codegen.module import embedded\n"
        "from coccl_dsl.runtime.dispatch import register\n\n"
        "try:\n    import triton\nexcept ImportError:\n    triton = None\n"
    )


def _texts(collective: Collective) -> str:
    lines = ["", f"TEXT = {_literal(collective.source.text)}", "", "COMPRESSORS = {"]
    for shown, source in comp_sources(collective.scope).items():
        lines.append(f"    {shown!r}: {_literal(source.text)},")
    return "\n".join([*lines, "}", ""])


def _kernel_section(kernels: Kernels) -> str:
    lines = ["KERNELS = {}", "", "if triton is not None:"]
    body = [line for line in HEADER.splitlines() if line and line != "import triton"]
    for source in kernels.sources.values():
        body += ["", *source.text.rstrip("\n").splitlines()]
    body += ["", "KERNELS = {"]
    body += [f"    {key!r}: {name}," for key, name in kernels.keys.items()]
    body += ["}"]
    return "\n".join([*lines, *(f"    {line}".rstrip() for line in body)]) + "\n"


def _registration(collective: Collective, world: World, bound: dict[str, str]) -> str:
    axes = collective.axes
    mesh = f", mesh={dict(zip(axes, world.sizes, strict=True))!r}" if axes else ""
    root = f", root={world.root}" if world.root else ""
    return (
        f"collective = embedded(TEXT, {collective.source.name!r}, {collective.name!r}, COMPRESSORS, {bound!r})\n"
        f"{collective.name} = register(collective, kernels=KERNELS{mesh}{root})\n"
    )
