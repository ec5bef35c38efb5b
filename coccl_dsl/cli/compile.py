"""coccl-compile: check an algorithm or a compressor, show what it costs, write the module, run it for real."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING

from .. import pipeline
from ..diagnostics import CompileError
from ..lang.files import find, is_file, library, read
from ..pipeline import Collective, World
from ..wire.codec import DTYPES

if TYPE_CHECKING:
    from .show import Facts

PICTURES = ("steps", "timeline", "links", "wire")
EMITS = ("ast", "plan", "json", "triton", "ptx", "wire")
DEFAULT_RANKS = 4
DEFAULT_AXIS = 2
EXAMPLES = """\
examples:
  coccl-compile ring_q4                              check, summarise, write build/ring_q4.py
  coccl-compile ring_q4 --check                      only prove it, for n = 2 .. 8
  coccl-compile my/ring.coll --ranks 8 --set "q=int8(group=512)" --explain
  coccl-compile three_shot --mesh node=2,local=4 --emit plan
  coccl-compile ring_q4 --run 4                      all-reduce real gradients with 4 processes on this machine
  coccl-compile int4.comp --emit wire                the bytes of a compressor's wire
  coccl-compile ring_q4 --draw ring.svg              a picture of its steps; with a compressor, of its wire
  coccl-compile my/ring.coll --format --write        lay the text out, in place
"""


@dataclass(frozen=True)
class Target:
    """What the command names: a file of algorithms (`collective`: which of several) or of compressors."""

    given: str
    path: Path
    collective: str | None
    comp: bool


def _mesh(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        if not equals or not size.strip().isdigit() or int(size) < 1 or name.strip() in sizes:
            raise argparse.ArgumentTypeError(f"{text!r}: written as node=2,local=4")
        sizes[name.strip()] = int(size)
    return sizes


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: written as q=int8(group=512)")
    return name.strip(), value.strip()


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 on")
    return int(text)


def _op(text: str) -> str:
    if text.startswith("premul(") and text.endswith(")"):
        try:
            factor = float(text[7:-1])
        except ValueError:
            return text  # told with the ops that there are
        if not isfinite(factor):
            raise argparse.ArgumentTypeError(f"{text!r}: the factor is a finite number, as in premul(0.125)")
    return text


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="coccl-compile",
        description="Check a collective (.coll) or a compressor (.comp), show what it costs, compile it, run it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("file", metavar="FILE|NAME", help="a .coll or .comp file, FILE:COLLECTIVE, or a shipped name")
    what = p.add_argument_group(
        "what to do (default: check, summarise, write the module)"
    ).add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only prove it, for the default worlds and the one given")
    what.add_argument("--emit", choices=EMITS, help="print one form of it instead of writing the module")
    what.add_argument("--explain", action="store_true", help="print a table of its steps instead of writing the module")
    what.add_argument("--draw", type=Path, metavar="FILE", help="draw it, as FILE.svg or FILE.png")
    what.add_argument("--run", type=_count, metavar="N", help="run it for real with N processes on this machine")
    what.add_argument("--format", action="store_true", help="print the text in the one layout")
    p.add_argument("--write", action="store_true", help="with --format: change the file instead of printing")
    p.add_argument(
        "--picture", choices=PICTURES, help="with --draw: steps (default), timeline, links, or wire (of a compressor)"
    )
    p.add_argument("--slices", type=_count, metavar="N", help="with --picture timeline: slices in flight (1)")
    p.add_argument("-o", "--out", metavar="DIR", type=Path, default=Path("build"), help="folder of the module (build)")
    world = p.add_argument_group("the world, and what is bound")
    world.add_argument("--ranks", type=_count, metavar="N", help="how many ranks (4)")
    world.add_argument(
        "--mesh", type=_mesh, metavar="AXIS=N,...", help="sizes of the axes, such as node=2,local=4 (2 each)"
    )
    world.add_argument("--root", type=int, metavar="R", help="root rank, for broadcast and reduce (0)")
    world.add_argument("--op", type=_op, default="sum", help="sum, avg or premul(0.125) (sum)")
    world.add_argument("--dtype", choices=DTYPES, help="dtype of the tensors (bf16; with --run f32, as gradients are)")
    world.add_argument(
        "--set", type=_setting, metavar="Q=COMPRESSOR", action="append", default=[],
        help="rebind a compressor of the text, such as q=int8(group=512), or a parameter of a .comp file; repeatable",
    )  # fmt: skip
    world.add_argument("--rank", type=int, metavar="R", default=0, help="whose plan --emit and --explain show (0)")
    world.add_argument("--count", type=_count, metavar="N", help="elements of a call's input, for byte counts (2^20)")
    return p


def find_target(given: str) -> Target:
    """A path, `path:name`, or a name in the library. Raises CompileError E103."""
    text, name = given, None
    if ":" in text and not is_file(Path(text)):
        text, name = text.rsplit(":", 1)
    path = Path(text)
    if text.endswith(".comp") or (not is_file(path) and _only_compressor(text)):
        return Target(given, path if is_file(path) else find(text, "compressors", None), None, True)
    return Target(given, path if is_file(path) else find(text, "algorithms", None), name, False)


def _only_compressor(name: str) -> bool:
    """A name that is no algorithm, but a compressor."""
    try:
        find(name, "algorithms", None)
        return False
    except CompileError:
        return name in library("compressors") or is_file(Path(f"{name}.comp"))


def load(target: Target, settings: dict[str, str]) -> Collective:
    return pipeline.parse_source(read(target.path), target.collective, settings)


def world_of(collective: Collective, args: argparse.Namespace) -> World:
    """The world that the options name. Raises ValueError where they do not fit the collective."""
    axes, mesh = collective.axes, args.mesh
    count = args.run or args.ranks
    if not axes:
        if mesh:
            raise ValueError(f"`{collective.name}` runs on ranks: say --ranks {prod(mesh.values())} instead of --mesh")
        sizes: tuple[int, ...] = (count or (2 if collective.kind == "send_recv" else DEFAULT_RANKS),)
    elif mesh is None:
        sizes = (DEFAULT_AXIS,) * len(axes)
        if count is not None and count != prod(sizes):
            example = ",".join(
                f"{a}={s}" for a, s in zip(axes, (*sizes[1:], max(1, count // prod(sizes[1:]))), strict=True)
            )
            raise ValueError(
                f"`{collective.name}` runs on a mesh of {', '.join(axes)}: say how {count} ranks are cut, as --mesh {example}"
            )
    else:
        if set(mesh) != set(axes):
            raise ValueError(f"--mesh names {', '.join(mesh)}; the axes of `{collective.name}` are {', '.join(axes)}")
        sizes = tuple(mesh[a] for a in axes)
        if count is not None and count != prod(sizes):
            raise ValueError(f"--mesh has {prod(sizes)} ranks, not {count}")
    if collective.kind == "send_recv" and sizes != (2,):
        raise ValueError(f"`{collective.name}` is {collective.kind}, between 2 ranks")
    if prod(sizes) == 1:
        raise ValueError("a group of one runs no text: its result is the input times the op's factor")
    root = args.root or 0
    if args.root is not None and collective.kind not in ("broadcast", "reduce"):
        raise ValueError(f"`{collective.name}` is {collective.kind}, which has no root")
    if not 0 <= root < prod(sizes):
        raise ValueError(f"--root {root} is not a rank of 0 .. {prod(sizes) - 1}")
    if not 0 <= args.rank < prod(sizes):
        raise ValueError(f"--rank {args.rank} is not a rank of 0 .. {prod(sizes) - 1}")
    pipeline.op_factor(args.op, prod(sizes))
    return World(sizes, root, args.op)


def _collective(target: Target, args: argparse.Namespace, settings: dict[str, str]) -> int:
    from . import show

    collective = load(target, settings)
    if args.emit == "ast":
        from .emit import ast_text

        print(ast_text(collective.syntax))
        return 0
    dtype = args.dtype or ("f32" if args.run else "bf16")
    world = world_of(collective, args)
    if args.emit == "wire":
        from .emit import print_wire

        for name, codec in collective.program(dtype).codecs.items():
            print_wire(name, codec)
        return 0
    given = args.ranks or args.mesh
    if args.check:
        worlds = _worlds(collective, world, dtype, bool(given))
        show.print_report(collective.check(worlds, dtype=dtype, op=args.op))
        return 0
    if args.run:
        from .run import run

        return run(
            collective,
            str(target.path) + (f":{target.collective}" if target.collective else ""),
            world,
            dtype,
            settings,
        )
    if args.draw:
        from .draw import draw

        return draw(collective, world, dtype, args)
    facts = show.facts(collective, world, dtype, args.rank, args.count)
    if args.explain:
        show.print_steps(facts)
    elif args.emit:
        from .emit import print_form

        print_form(args.emit, collective, facts)
    else:
        report = collective.check(dtype=dtype, op=args.op)
        show.print_summary(facts, report)
        _write_module(collective, facts, args.out)
    return 0


def _worlds(collective: Collective, world: World, dtype: str, given: bool) -> tuple[tuple[int, ...], ...]:
    from ..check.report import default_worlds

    worlds = default_worlds(collective.program(dtype))
    return (*worlds, world.sizes) if given and world.sizes not in worlds else worlds


def _write_module(collective: Collective, facts: Facts, folder: Path) -> None:
    from ..codegen.module import module_source

    dtypes = (facts.plan.dtype, *(t for t in DTYPES if t != facts.plan.dtype))
    text = module_source(collective, facts.world, dtypes=dtypes, trace=facts.trace)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{collective.name}.py"
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")


def _compressors(target: Target, args: argparse.Namespace, settings: dict[str, str]) -> int:
    """A .comp file: --check (also the default), --emit ast or wire, --draw."""
    from . import emit, show

    if args.draw:
        from .draw import draw_wires

        return draw_wires(
            {c.definition.name: c.codec for c in show.compressors(target.path, settings, args.dtype)}, args
        )

    if args.run or args.explain or args.emit not in (None, "ast", "wire"):
        raise ValueError(
            f"{target.path.name} holds compressors: --check, --draw, --format, --emit ast and --emit wire work on it"
        )
    for checked in show.compressors(target.path, settings, args.dtype):
        if args.emit == "ast":
            print(emit.ast_text(checked.definition))
        elif args.emit == "wire":
            emit.print_wire("", checked.codec)
        else:
            show.print_compressor(checked)
    return 0


def _format(target: Target, args: argparse.Namespace) -> int:
    from ..lang.formatter import format_text

    source = read(target.path)
    text = format_text(source)
    if not args.write:
        print(text, end="")
        return 0
    if not is_file(Path(target.given)):
        raise ValueError(
            f"--write changes the file that it is given; `{target.given}` is a name, and stands for {target.path}"
        )
    if text == source.text:
        print(f"{target.path} has the layout already")
    else:
        target.path.write_text(text, encoding="utf-8")
        print(f"laid out {target.path}")
    return 0


def _print_error(error: CompileError) -> None:
    """In colour on a terminal."""
    from ..pictures.coloured import error_text

    print(error_text(error, sys.stderr.isatty()), file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """0 done, 1 the text, the arguments or the run are wrong (told on stderr), 2 the command line cannot be read."""
    p = parser()
    try:
        args = p.parse_args(argv)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 2
    for given, belongs, name, option in (
        (args.write, args.format, "--write", "--format"),
        (args.picture, args.draw, "--picture", "--draw"),
        (args.slices, args.picture == "timeline", "--slices", "--picture timeline"),
    ):
        if given and not belongs:
            print(f"coccl-compile: error: {name} belongs to {option}", file=sys.stderr)
            return 2
    for name in ("ranks", "count"):
        if args.run and getattr(args, name):
            why = "which says how many processes" if name == "ranks" else "whose tensors have sizes of their own"
            print(f"coccl-compile: error: --{name}: not with --run, {why}; leave it out", file=sys.stderr)
            return 2
    try:
        try:
            target = find_target(args.file)
        except CompileError:
            if not Path(args.file).is_dir():
                raise
            print(
                f"coccl-compile: error: FILE {args.file}: is a folder; name a .coll or .comp file in it",
                file=sys.stderr,
            )
            return 2
        for name in ("ranks", "mesh", "root", "count"):
            if target.comp and getattr(args, name) is not None:
                print(
                    f"coccl-compile: error: --{name}: not with a compressor, {target.path.name}; leave it out",
                    file=sys.stderr,
                )
                return 2
        settings = dict(args.set)
        if args.format:
            return _format(target, args)
        return (_compressors if target.comp else _collective)(target, args, settings)
    except CompileError as e:
        _print_error(e)
    except BrokenPipeError:
        # The reader has gone, as with `| head`. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, OSError, NotImplementedError, RuntimeError) as e:
        print(f"coccl-compile: error: {e}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


if __name__ == "__main__":
    sys.exit(main())
