"""The whole compiler, in the order in which it happens. Start reading here.

    .coll/.comp text
      parse    -> AST, a span on every node                            lang/parse.py
      resolve  -> names, compressors; each expression Chunk, Wire, Int lang/resolve.py, wire/compile.py
      check    -> lockstep run over all ranks -> Trace, Report         check/run.py, check/prove.py
      lower    -> one rank's straight-line program (SSA)               plan/lower.py
      fuse     -> Folds                                                plan/fuse.py
      schedule -> order, launches, buffers -> Plan                     plan/schedule.py
      emit     -> one Triton kernel a Fold signature + the plan        codegen/module.py

Each step is a pure function; `Collective` calls them, keeps their results, and knows how long each took. Nothing here imports torch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .check.report import Report, check_worlds, default_worlds, param_choices, run_world
from .check.suggest import TRIAL_WORK, suggest
from .check.values import Trace
from .diagnostics import CompileError, Diagnostic, Source, fail
from .lang import ast
from .lang.files import find, is_file, read
from .lang.parse import parse_binding, parse_coll
from .lang.program import Program
from .lang.resolve import resolve
from .plan.credits import assign_credits
from .plan.ops import Plan
from .plan.schedule import make_plan
from .plan.verify import verify
from .shown import Printed
from .wire.codec import DTYPES, Codec
from .wire.compile import compile_codec
from .wire.scope import Scope, bind

if TYPE_CHECKING:
    import torch

    from .runtime.op import Op

OPS = ("sum", "avg")


@cache
def raw_codec(dtype: str) -> Codec:
    """What a bare send uses."""
    return compile_codec(bind(parse_binding("raw"), Scope()), dtype)


@dataclass(frozen=True)
class World:
    """One world: sizes of the axes, root, op. `factor` multiplies each input element, None for a plain sum."""

    sizes: tuple[int, ...]
    root: int = 0
    op: str = "sum"

    @property
    def count(self) -> int:
        return prod(self.sizes)

    @property
    def factor(self) -> float | None:
        return op_factor(self.op, self.count)


def op_factor(op: str, world: int) -> float | None:
    """sum -> None, avg -> 1/world, premul(f) -> f. Raises ValueError on any other op."""
    if op == "sum":
        return None
    if op == "avg":
        return 1.0 / world
    if op.startswith("premul(") and op.endswith(")"):
        try:
            return float(op[7:-1])
        except ValueError:
            pass
    raise ValueError(
        f"op={op!r} is not available: it is sum, avg or premul(factor); max, min and product are out of scope"
    )


class Collective(Printed):
    """A checked algorithm, ready to be planned for a world or bound to a group.

    name, kind  as in the file
    report      what was proved for the default worlds
    """

    def __init__(
        self,
        source: Source,
        syntax: ast.Collective,
        scope: Scope,
        uses: tuple[ast.Use, ...],
        compressors: dict[str, str],
    ):
        self.source, self.syntax, self.scope, self.uses = source, syntax, scope, uses
        self.name, self.kind = syntax.name, syntax.kind
        self.compressors = dict(compressors)
        self.seconds: dict[str, float] = {}
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._codecs: dict[tuple[str, str], Codec] = {}
        self._report: Report | None = None

    def __repr__(self) -> str:
        return f"Collective({self.name} : {self.kind})"

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start

    # ------------------------------------------------------------ steps

    def program(self, dtype: str = "bf16", compressors: dict[str, str] | None = None) -> Program:
        """Resolve for tensors of `dtype` with compressors rebound (name -> text such as `int8(group=512)`)."""
        if dtype not in DTYPES:
            raise ValueError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
        bound = {**self.compressors, **(compressors or {})}
        key = (dtype, tuple(sorted(bound.items())))
        if key not in self._programs:
            self._programs[key] = self._resolve(self.syntax, dtype, bound)
        return self._programs[key]

    def _resolve(self, syntax: ast.Collective, dtype: str, bound: dict[str, str]) -> Program:
        overrides = {name: parse_binding(text, name) for name, text in bound.items()}
        with self._timed("resolve"):
            return resolve(syntax, dtype, lambda b: self._codec(b, dtype), overrides)

    def _codec(self, binding: ast.Binding, dtype: str) -> Codec:
        bound = bind(binding, self.scope)
        key = (bound.name, dtype)
        if key not in self._codecs:
            self._codecs[key] = compile_codec(bound, dtype)
        return self._codecs[key]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the mesh axes; empty for a collective over `ranks`."""
        return tuple(a for a, _, _ in self.program().axes if a is not None)

    @property
    def report(self) -> Report:
        if self._report is None:
            self._report = self.check()
        return self._report

    def check(
        self, worlds: tuple[tuple[int, ...], ...] | None = None, *, dtype: str = "bf16", op: str = "sum"
    ) -> Report:
        """Prove the text for `worlds` (the default ones unless given): every root, all ranks. Raises CompileError."""
        program = self.program(dtype)
        factor = op != "sum"
        with self._timed("check"):
            try:
                return check_worlds(program, raw_codec(dtype), worlds, factor=factor)
            except CompileError as e:
                raise CompileError(self._mended(list(e.diagnostics), program, worlds, factor)) from None

    def _mended(
        self, found: list[Diagnostic], program: Program, worlds: tuple[tuple[int, ...], ...] | None, factor: bool
    ) -> list[Diagnostic]:
        """Try index shifts on the small worlds."""
        small = tuple(w for w in worlds or default_worlds(program) if prod(w) <= 4 or (len(w) > 1 and prod(w) <= 8))
        if not small:
            return found

        def proves(changed: ast.Collective) -> bool:
            try:
                trial = self._resolve(changed, program.dtype, self.compressors)
                check_worlds(trial, raw_codec(program.dtype), small, factor=factor, limit=TRIAL_WORK)
                return True
            except CompileError:
                return False

        return suggest(found, self.syntax, proves)

    def trace(self, world: World, *, dtype: str = "bf16", compressors: dict[str, str] | None = None) -> Trace:
        """Run and prove one world. Raises CompileError."""
        program = self.program(dtype, compressors)
        self.check_sizes(world.sizes)
        params = next(param_choices(program, world.sizes, {"root": world.root}))
        with self._timed("check"):
            return run_world(program, world.sizes, params, raw_codec(dtype), factor=world.factor not in (None, 1.0))

    def plan(
        self,
        world: World,
        rank: int,
        *,
        dtype: str = "bf16",
        compressors: dict[str, str] | None = None,
        trace: Trace | None = None,
        fuse: bool = True,
        collectives: bool = False,
    ) -> Plan:
        """One rank's plan. fuse=False keeps every operation apart. collectives: all-gathers among its levels are marked. Pass `trace` (of the same world, dtype and compressors) to plan several ranks of one run."""
        program = self.program(dtype, compressors)
        trace = trace or self.trace(world, dtype=dtype, compressors=compressors)
        with self._timed("plan"):
            made = make_plan(program, trace, rank, raw_codec(dtype), world.op, apart=not fuse, collectives=collectives)
            return verify(made)

    def mapped_plans(
        self,
        world: World,
        *,
        dtype: str,
        compressors: dict[str, str],
        trace: Trace,
        fuse: bool = True,
        hosts: Sequence[str] | None = None,
    ) -> list[Plan]:
        """All ranks' plans where the ranks of a host map each other's memory, with the credits that they need. hosts: of each rank, in order;
        all ranks are on one unless it is given."""
        program = self.program(dtype, compressors)
        where = hosts if hosts is not None else [""] * trace.world
        near = [frozenset(p for p in range(trace.world) if p != r and where[p] == where[r]) for r in range(trace.world)]
        with self._timed("plan"):
            plans = [
                make_plan(program, trace, r, raw_codec(dtype), world.op, near[r], not fuse) for r in range(trace.world)
            ]
            return assign_credits([verify(p) for p in plans])

    def check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Raises CompileError E314 when the world has another number of axes."""
        axes = self.program().axes
        if len(sizes) != len(axes):
            wants = "mesh " + ", ".join(str(a) for a, _, _ in axes) if axes[0][0] else "a number of ranks"
            fail("E314", f"`{self.name}` runs on {wants}, not on {len(sizes)} axes", self.syntax.span)

    # ------------------------------------------------------------ running

    def bind(self, group: Any = None, like: torch.Tensor | None = None, **options: Any) -> Op:
        """Bind to a process group (None: the world), or to `LocalGroup(n)`: all ranks in this process. Collective: all ranks call it.

        like        a tensor of the dtype and device that calls will have
        op          "sum", "avg" or "premul(0.125)"
        capacity    the largest number of elements of a call's input; like.numel() unless given
        mesh        axis name -> size, for collectives over a mesh
        root        group rank, for broadcast and reduce
        transport   auto, symm, nccl, torch, symm+torch: symm between ranks of a host, torch between hosts (local for a LocalGroup);
                    nccl+collectives, torch+collectives: levels that are all-gathers are the library's own
        seed        of stochastic rounding
        depth       slices in flight; else the first depth that the text's schedule names
        fuse        False runs every operation on its own: slower, the same bits
        backend     auto (Triton on CUDA, eager torch on the CPU), eager or triton
        one_launch  over symm, True: a call is one kernel, which the time of small ones gains by; None: where that is faster
        min_bytes   all_to_all: what goes to a peer is sent raw where it takes fewer bytes in the tensor's dtype
        arena_bytes   at most so many bytes of wire memory a rank; calls that need more run in passes, one after the other
        graphs      on CUDA, replay graphs that the op captures of its own calls (symm and nccl); False: launch every kernel in every call
        source, target, tag   send_recv in a group of any size: the peer's group rank, see `runtime/pair.py`; only two ranks bind
        any other   a compressor of the text, rebound: q="int8(group=512)"

        Raises BindError on all ranks when an argument is wrong on any, or the ranks differ in texts, parameters or versions.
        """
        from .runtime.bind import bind_op

        return bind_op(self, group, like, options)


def parse_source(source: Source, name: str | None = None, compressors: dict[str, str] | None = None) -> Collective:
    """A collective of a text, not checked yet. `name` picks one when there are several. Raises CompileError."""
    file = parse_coll(source)
    names = [c.name for c in file.collectives]
    if len(set(names)) < len(names):
        twice = next(c for i, c in enumerate(file.collectives) if c.name in names[:i])
        fail("E202", f"there are two collectives `{twice.name}`", twice.span)
    if name is None and len(names) > 1:
        fail(
            "E108",
            f"`{source.name}` holds {', '.join(names)}: say which, as {source.name}:{names[0]}",
            file.collectives[1].span,
        )
    if name is not None and name not in names:
        fail(
            "E108",
            f"`{source.name}` holds no collective `{name}`",
            file.collectives[0].span,
            help=f"it holds {', '.join(names)}",
        )
    syntax = next(c for c in file.collectives if name in (None, c.name))
    return Collective(source, syntax, Scope.of(file.uses, source.path), file.uses, compressors or {})


def load(path_or_name: str | Path, compressors: dict[str, str] | None = None) -> Collective:
    """Find and parse `ring_q4`, `my/ring.coll` or `file.coll:name`, without checking it yet."""
    text, name = str(path_or_name), None
    if ":" in text and not is_file(Path(text)):
        text, name = text.rsplit(":", 1)
    path = Path(text)
    if not is_file(path):
        path = find(text, "algorithms", None)
    return parse_source(read(path), name, compressors)


def compile(path_or_name: str | Path, **compressors: str) -> Collective:
    """Compile and prove an algorithm: `compile("ring_q4")`, `compile("my/ring.coll", q="int8(group=512)")`.

    Checks the default worlds (n = 2..8, or several meshes). Raises CompileError with every diagnostic found.
    """
    collective = load(path_or_name, compressors)
    collective._report = collective.check()
    return collective


def compile_text(text: str, name: str = "<text>", **compressors: str) -> Collective:
    """The same for a text in memory."""
    collective = parse_source(Source(name, text), None, compressors)
    collective._report = collective.check()
    return collective
