"""Texts and errors in colour: ANSI for terminals and for the errors of a notebook's cells, HTML for pages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html import escape

from pygments.token import Comment, Keyword, Name, Number, Operator, String

from ..diagnostics import CompileError
from ..lang.lexer import CocclLexer

Piece = tuple[str, str]  # text, role

# Colours that stand out on white and on black; JupyterLab's own where the page has them.
_HTML = {
    "error": "color:var(--jp-error-color1,#d1344b);font-weight:bold",
    "caret": "color:var(--jp-error-color1,#d1344b);font-weight:bold",
    "gutter": "color:var(--jp-ui-font-color2,#7a828e)",
    "help": "color:var(--jp-success-color1,#1c8a4d)",
    "keyword": "color:var(--jp-mirror-editor-keyword-color,#1a7f37);font-weight:bold",
    "function": "color:var(--jp-mirror-editor-def-color,#2f6fde)",
    "number": "color:var(--jp-mirror-editor-number-color,#9a6700)",
    "string": "color:var(--jp-mirror-editor-string-color,#c2410c)",
    "comment": "color:var(--jp-mirror-editor-comment-color,#6b7f86);font-style:italic",
}
_ANSI = {
    "error": "1;31",
    "caret": "1;31",
    "gutter": "2",
    "help": "32",
    "keyword": "1",
    "function": "34",
    "number": "35",
    "string": "33",
    "comment": "2",
}
_ROLES = (
    (Comment, "comment"),
    (String, "string"),
    (Number, "number"),
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (Name.Function, "function"),
    (Name.Builtin, "function"),
    (Name.Class, "function"),
)

_HEAD = re.compile(r"(.*?)(error\[E\d+\])(: .*)")
_MARK = re.compile(r"(\s+\| )(\s*)(\^+)(.*)")
_LINE = re.compile(r"(\s*\d+ \| )(.*)")
_HELP = re.compile(r"(   help: )(.*)")


def source_pieces(text: str) -> Iterator[Piece]:
    """A text of either language, token by token."""
    for token, value in CocclLexer(ensurenl=False, stripnl=False).get_tokens(text):
        yield value, next((role for kind, role in _ROLES if token in kind), "")


def error_pieces(error: CompileError) -> Iterator[Piece]:
    """The error's own text, cut into pieces."""
    for i, line in enumerate(str(error).split("\n")):
        if i:
            yield "\n", ""
        if m := _MARK.fullmatch(line):
            yield from zip(m.groups(), ("gutter", "", "caret", "error"), strict=True)
        elif m := _LINE.fullmatch(line):
            yield m[1], "gutter"
            yield from source_pieces(m[2])
        elif m := _HELP.fullmatch(line):
            yield m[1], "help"
            yield m[2], ""
        elif m := _HEAD.fullmatch(line):
            yield from zip(m.groups(), ("gutter", "error", ""), strict=True)
        else:
            yield line, "gutter"


def ansi(pieces: Iterator[Piece]) -> str:
    return "".join(f"\x1b[{_ANSI[role]}m{text}\x1b[0m" if role and text else text for text, role in pieces)


def html(pieces: Iterator[Piece]) -> str:
    """A <pre> that keeps the page's background."""
    inner = "".join(
        f'<span style="{_HTML[role]}">{escape(text)}</span>' if role and text else escape(text) for text, role in pieces
    )
    return f'<pre style="line-height:1.35;margin:0;white-space:pre;overflow-x:auto">{inner}</pre>'


def error_text(error: CompileError, terminal: bool) -> str:
    """The error for stderr: in colour on a terminal, unless NO_COLOR says otherwise (no-color.org)."""
    return ansi(error_pieces(error)) if terminal and not os.environ.get("NO_COLOR") else str(error)
