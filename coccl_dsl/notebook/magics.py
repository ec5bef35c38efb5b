"""`%%coll`, `%%comp` and `%coll_bench`.

A cell's definitions are checked and kept: as variables of the notebook, and as files of a folder of this session that is put in front of
COCCL_PATH, so that `use "mine.comp"`, `compile("mine")` and `bind(q="mine")` find them as they find the shipped ones. A cell that does not
prove fails, so that nothing below it runs on an older definition; what is shown is the diagnostic, in colour, and no traceback.
"""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.display import display

from ..cli.compile import _mesh
from ..cli.show import Checked, compressors
from ..diagnostics import Source
from ..lang.parse import parse_coll, parse_comp
from ..pictures.schedule import schedule
from ..pictures.spacetime import space_time
from ..pictures.wire import wire_layout
from ..pipeline import Collective, parse_source


class Usage(Exception):
    """A magic's line that cannot be read. Shown without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Helped(Exception):
    """--help was asked for, and given."""


class _Parser(argparse.ArgumentParser):
    """Errors as exceptions: a notebook must not exit."""

    def error(self, message: str) -> Any:
        raise Usage(f"{self.prog}: {message}\n{self.format_usage().rstrip()}")

    def exit(self, status: int = 0, message: str | None = None) -> Any:
        raise Helped


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as e:
        raise Usage(f"{line!r} cannot be read: {e}") from None


def _world(text: str) -> int | dict[str, int]:
    return int(text) if text.isdigit() else _mesh(text)


def coll_parser() -> argparse.ArgumentParser:
    p = _Parser(prog="%%coll", description="Define, check and keep the collectives of the cell.", add_help=False)
    p.add_argument("--draw", type=_world, metavar="RANKS", help="also draw the steps, for 4 or node=2,local=4 ranks")
    p.add_argument("--quiet", action="store_true", help="show nothing where the text is right")
    return p


def comp_parser() -> argparse.ArgumentParser:
    p = _Parser(prog="%%comp", description="Define, check and keep the compressors of the cell.", add_help=False)
    p.add_argument("--quiet", action="store_true", help="show nothing where the text is right")
    return p


@magics_class
class CocclMagics(Magics):
    """The magics of `%load_ext coccl_dsl`."""

    def __init__(self, shell: Any):
        super().__init__(shell)
        self.ip = shell
        self._held = tempfile.TemporaryDirectory(prefix="coccl_notebook_")  # gone when the kernel ends
        self.folder = Path(self._held.name)
        os.environ["COCCL_PATH"] = os.pathsep.join(
            [str(self.folder), *filter(None, os.environ.get("COCCL_PATH", "").split(os.pathsep))]
        )

    def _source(self, cell: str) -> Source:
        """The cell's text, its lines counted as the editor counts them: the magic's own line is the first."""
        return Source(f"cell {self.ip.execution_count}", "\n" + cell)

    def _refuse_twin(self, name: str, suffix: str) -> None:
        """Files of the working folder come before COCCL_PATH."""
        if Path(name + suffix).is_file():
            raise Usage(
                f"{name}{suffix} is a file of this folder, and `{name}` would mean that one: name the cell's another way"
            )

    def _keep(self, name: str, suffix: str, text: str) -> None:
        (self.folder / f"{name}{suffix}").write_text(text, encoding="utf-8")

    def _name(self, name: str, value: Any) -> None:
        self.ip.user_ns[name] = value

    @cell_magic
    def coll(self, line: str, cell: str) -> None:
        """%%coll [--draw RANKS] [--quiet]: collectives, kept under their names.

        %%coll --draw 4
        collective mine : all_reduce { ... }
        """
        args = coll_parser().parse_args(_words(line))
        source = self._source(cell)
        made: list[Collective] = []
        for syntax in parse_coll(source).collectives:
            c = parse_source(source, syntax.name)
            c._report = c.check()
            made.append(c)
            self._refuse_twin(c.name, ".coll")
        try:
            drawn = [space_time(schedule(c, args.draw)) if args.draw else None for c in made]
        except ValueError as e:
            raise Usage(f"--draw: {e}") from None
        for c, picture in zip(made, drawn, strict=True):
            self._keep(c.name, ".coll", _alone(c))
            self._name(c.name, c)
            if not args.quiet:
                display(c)
            if picture is not None:
                display(picture)

    @cell_magic
    def comp(self, line: str, cell: str) -> None:
        """%%comp [--quiet]: compressors, kept under their names.

        %%comp
        compressor mine(group: int = 64) { ... }
        """
        args = comp_parser().parse_args(_words(line))
        source = self._source(cell)
        names = [d.name for d in parse_comp(source).compressors]
        for name in names:
            self._refuse_twin(name, ".comp")
        with tempfile.TemporaryDirectory() as trial:
            path = Path(trial) / source.name
            path.write_text(source.text, encoding="utf-8")
            checked = list(compressors(path, {}, None))
        for name in names:
            self._keep(name, ".comp", source.text)
        for c in checked:
            self._name(c.definition.name, self._bound(c))
            if not args.quiet:
                display(wire_layout(c.codec))

    def _bound(self, c: Checked) -> Any:
        """What the compressor's name stands for: one to call on tensors, or, where it keeps state and so belongs in a collective, the checked one."""
        if c.codec.stateful:
            return c.codec
        from ..codegen.codec_api import codec

        filled = ", ".join(f"{k}={v}" for k, v in c.filled.items())
        return codec(f"{c.definition.name}({filled})")

    @line_magic
    def coll_bench(self, line: str) -> Any:
        """%coll_bench NAME ... [options of coccl-bench]: a table of measured rows; without GPUs, of what can be known without them.

        %coll_bench ring_q4 two_shot --set int8 int4 --ranks 4
        %coll_bench all_reduce -b 16M -e 256M --mode graph eager
        """
        from .benchmark import benchmark

        try:
            return benchmark(_words(line), _Parser, self.ip.user_ns)
        except Helped:
            return None


def _alone(c: Collective) -> str:
    """A file that holds one of a cell's collectives."""
    text = c.source.text
    names = [other.span.start for other in parse_coll(c.source).collectives]
    starts = [text.rindex("collective", 0, at) for at in names] + [len(text)]
    i = names.index(c.syntax.span.start)
    return text[: starts[0]] + text[starts[i] : starts[i + 1]]


def load(ip: Any) -> None:
    """Register the magics, and colour their cells where IPython's own prompt shows them."""
    ip.register_magics(CocclMagics)
    if hasattr(ip, "pt_app"):
        colour_prompt()


def colour_prompt() -> None:
    """IPython makes a lexer for each prompt, and has no other place to say which magics hold other languages."""
    from IPython.terminal.ptutils import IPythonPTLexer
    from prompt_toolkit.lexers import PygmentsLexer

    from ..lang.lexer import CocclLexer

    make = IPythonPTLexer.__init__
    if getattr(make, "coccl", False):
        return

    def made(self: Any) -> None:
        make(self)
        self.magic_lexers |= dict.fromkeys(("coll", "comp"), PygmentsLexer(CocclLexer))

    made.coccl = True  # type: ignore[attr-defined]
    IPythonPTLexer.__init__ = made
