"""lark's parse errors in the user's words: what stands wrong, a short list of what could stand there, and the likely mend."""

from __future__ import annotations

import difflib
import re
from typing import NoReturn

from lark import Lark, Token
from lark.exceptions import LarkError, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from ..diagnostics import CompileError, Diagnostic, Source, Span

_OPERATORS = {"STAR", "SLASH", "MOD", "DIV", "SUM", "CMP", "BITOP", "SHIFT", "OR", "AND"}
_EXPRESSION = {"NAME", "NUMBER", "LPAR", "MINUS", "NOT", "COMPRESS", "DECOMPRESS", "BASIS", "WIRE"}
_STATEMENT = {"LET", "FOR", "WHEN", "SEND", "PHASE", "NAME"}
_DECLARATION = {
    "RANKS",
    "MESH",
    "SIZE",
    "IN",
    "INOUT",
    "OUT",
    "SCRATCH",
    "COMPRESSOR",
    "WIRE",
    "REQUIRE",
    "ALLOW",
    "SCHEDULE",
}
_PART = {
    "BASIS",
    "STATE",
    "WIRE",
    "NONFINITE",
    "EXACT",
    "ONLY",
    "FLAG",
    "COMPRESS",
    "DECOMPRESS",
    "UPDATE",
    "CLAIM",
}
# (tokens that show that the group is meant, tokens that it stands for, how it reads)
_GROUPS = (
    ({"RANKS"}, _DECLARATION | _STATEMENT, "a declaration, a statement"),
    ({"NONFINITE"}, _PART, "another part of the compressor"),
    ({"SEND"}, _STATEMENT, "a statement"),
    ({"LET"}, {"LET", "NAME"}, "an assignment, `let`"),
    ({"NUMBER", "NAME", "LPAR"}, _EXPRESSION, "an expression"),
    ({"SUM"}, _OPERATORS | {"LPAR", "LSQB", "DOT", "COLON", "EQUAL"}, "an operator"),
)
_WORDS = {"NAME": "a name", "NUMBER": "a number", "STRING": "a file in quotes", "$END": "the end of the file"}
_SIGNS = {
    "LBRACE": "{",
    "RBRACE": "}",
    "LPAR": "(",
    "RPAR": ")",
    "LSQB": "[",
    "RSQB": "]",
    "COLON": ":",
    "COMMA": ",",
    "EQUAL": "=",
    "DOT": ".",
    "MINUS": "-",
    "STAR": "*",
    "SLASH": "/",
    "__ANON_0": "+=",
}
_BOTH_ENDS = "`send X to P as W` is both ends: nothing is received or waited for by itself"
_HABITS = {
    "%": "the remainder is written `a mod b`",
    "//": "Ints divide with `a div b`",
    "&&": "conditions are joined by `and`",
    "||": "conditions are joined by `or`",
    "!": "a condition is negated by `not`",
    "**": "powers of two are written `pow2(k)`",
    ";": "statements end by themselves, without `;`",
    "'": 'a file is written in double quotes, "int8.comp"',
    "-=": "there is `=` and `+=`",
    "*=": "there is `=` and `+=`",
    "if": "there is no `if`: `when CONDITION { }` leaves ranks out, select(condition, a, b) picks an Int",
    "else": "there is no `else`: write a second `when` with the opposite condition",
    "while": "there is no `while`: loops are `for s in range(n)`",
    "recv": _BOTH_ENDS,
    "receive": _BOTH_ENDS,
    "wait": _BOTH_ENDS,
    "barrier": _BOTH_ENDS,
    "return": "a collective returns nothing: its `out` or `inout` buffer is the result",
}
_COMP_HABITS = {
    "return": "`decompress` ends with `yield VALUES`",
    "**": "powers of two are `ldexp(1.0, k)`, squares `x * x`",
    "if": "there is no `if`: select(condition, a, b) takes each value from `a` or `b`",
    "else": "there is no `else`: select(condition, a, b) takes each value from `a` or `b`",
    "?": "select(condition, a, b) takes each value from `a` or `b`",
    "for": "there are no loops: operations take all values of a group at once",
    "while": "there are no loops: operations take all values of a group at once",
    "+=": "every name is given once: write a new name",
}
_TOKEN = re.compile(r"[A-Za-z_0-9]+|//|&&|\|\||\*\*|[-+*]=|[=!<>]=|<<|>>|[^\s]")


def _accepted(parser: Lark, text: str) -> set[str]:
    """Names of the tokens that may follow `text`."""
    found = set()
    try:
        state = parser.parse_interactive(text)
        state.exhaust_lexer()
    except LarkError:
        return found
    for name in {"$END", *(t.name for t in parser.terminals)} & set(state.choices()):
        trial = state.copy(deepcopy_values=False)
        try:
            trial.feed_token(Token(name, ""))
        except LarkError:
            continue
        found.add(name.removeprefix("expr__"))
    return found


def _keyword(token: str) -> str:
    return token.lower() if token.isalpha() and token.isupper() and token not in _WORDS else ""


def _expected(accepted: set[str]) -> str:
    rest, words = set(accepted), []
    for shown_by, stands_for, text in _GROUPS:
        if shown_by <= rest:
            rest -= stands_for
            words.append(text)
    words += sorted(_WORDS[t] for t in rest if t in _WORDS)
    words += sorted(f"`{_SIGNS.get(t) or _keyword(t)}`" for t in rest if t not in _WORDS)
    if not words:
        return ""
    return f"expected {', '.join(words[:-1]) + ' or ' if len(words) > 1 else ''}{words[-1]}"


def _open_bracket(source: Source, end: int) -> Span | None:
    """The innermost bracket that is still open at `end`."""
    opened: list[int] = []
    for m in re.finditer(r"#[^\n]*|\"[^\"\n]*\"|[({\[]|[)}\]]", source.text[:end]):
        if m[0] in "({[":
            opened.append(m.start())
        elif m[0] in ")}]" and opened:
            opened.pop()
    return Span(source, opened[-1], opened[-1] + 1) if opened else None


def _unclosed(source: Source) -> Span | None:
    """A `{` whose `}`, going by the indentation, was forgotten."""
    opened: list[tuple[int, int]] = []
    for line, start in zip(source.text.split("\n"), source.line_starts, strict=True):
        indent = len(line) - len(line.lstrip())
        for m in re.finditer(r"[{}]", re.sub(r"#.*|\"[^\"]*\"", lambda m: " " * len(m[0]), line)):
            if m[0] == "{":
                opened.append((start + m.start(), indent))
            elif opened:
                brace, indent_there = opened.pop()
                if not line[: m.start()].strip() and indent != indent_there:
                    return Span(source, brace, brace + 1)
    return None


def _before(text: str, start: int) -> re.Match[str] | None:
    """The token before `start`."""
    blank = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), text[:start])
    found = list(_TOKEN.finditer(blank))
    return found[-1] if found else None


def _habit(source: Source, start: int, end: int) -> tuple[Span, str] | None:
    """A word or sign of other languages at the caret or just before it, and what to write here."""
    habits = _HABITS | _COMP_HABITS if source.name.endswith(".comp") else _HABITS
    line = source.text[source.text.rfind("\n", 0, start) + 1 : start]
    here = _TOKEN.match(source.text, start)
    if here and here[0] == "//" and not line.strip():
        return Span(source, start, here.end()), "comments start with `#`"
    if here and here[0] == '"':
        closed = '"' in source.text[here.end() :].partition("\n")[0]
        help = "numbers and names are written without quotes" if closed else "the closing quote is missing"
        return Span(source, start, here.end()), help
    if here and here[0] in habits:
        return Span(source, start, here.end()), habits[here[0]]
    before = _before(source.text, start)
    if before and before[0] in habits:
        return Span(source, before.start(), before.end()), habits[before[0]]
    if before and here and before.end() == start and before[0] + here[0] in habits:
        return Span(source, before.start(), end), habits[before[0] + here[0]]
    return None


def _misspelt(parser: Lark, source: Source, start: int, end: int) -> tuple[Span, str] | None:
    """A near miss of a keyword at the caret, or just before it where a name was taken for the start of a statement."""
    spans = [Span(source, start, end)]
    before = _before(source.text, start)
    if before:
        spans.append(Span(source, before.start(), before.end()))
    for span in spans:
        words = [_keyword(t) for t in _accepted(parser, source.text[: span.start])]
        near = difflib.get_close_matches(span.text.lower(), [w for w in words if len(w) > 2], 1, 0.7)
        if near and near[0] != span.text:
            return span, f"did you mean `{near[0]}`?"
    return None


def syntax_error(parser: Lark, source: Source, e: UnexpectedInput) -> NoReturn:
    """Raise E101 for what lark found."""
    end_of_file = isinstance(e, UnexpectedEOF) or (isinstance(e, UnexpectedToken) and e.token.type == "$END")
    if end_of_file:
        end = len(re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), source.text).rstrip())
        label = _expected(_accepted(parser, source.text))
        opened = _unclosed(source) or _open_bracket(source, len(source.text))
        also = ((opened, "not closed"),) if opened else ()
        raise CompileError(
            [Diagnostic("E101", "the file ends too early", Span(source, max(0, end - 1), end), label, also=also)]
        )
    start = (e.token.start_pos if isinstance(e, UnexpectedToken) else e.pos_in_stream) or 0
    width = len(str(e.token)) if isinstance(e, UnexpectedToken) else 1
    span = Span(source, start, start + width)
    accepted = _accepted(parser, source.text[:start])
    opened = _open_bracket(source, start)
    if span.text in ")]}" and opened is None:
        raise CompileError([Diagnostic("E101", f"this `{span.text}` closes nothing", span, help="remove it")])
    also = ()
    if opened and opened.text in "([" and {"RPAR", "RSQB"} & accepted and "RBRACE" not in accepted:
        also = ((opened, "not closed yet"),)
    hint = _habit(source, span.start, span.end) or _misspelt(parser, source, span.start, span.end)
    if hint is None and span.text == "=" and "CMP" in accepted:
        hint = span, "equality is written `==`"
    label, help = _expected(accepted), ""
    if hint is not None:
        label, (span, help) = "", hint
    shown = span.text if span.text.isprintable() else ascii(span.text)[1:-1]
    raise CompileError([Diagnostic("E101", f"`{shown}` cannot stand here", span, label, help, also)])
