"""The one layout of .coll and .comp files. Only white space changes: tokens, comments and the author's line breaks stay.

    collective   a:all_reduce         ->    collective a : all_reduce {
    { ranks r of n                            ranks r of n
       inout buf [n] }                        inout buf[n]
                                            }

The rules:

- Two spaces a brace depth; a line that continues a statement four more, unless it starts with a closing bracket.
- `{` ends the line that it belongs to. A block written in one line stays so; any other has `}` on a line of its own.
- Statements that share a line are three spaces apart; blank lines come one at a time, never at the edge of a block.
- Spaces around operators, after commas; none inside brackets, around the `=` of an argument or before the `:` of an axis or parameter.
- Compressor files: the `:` of wire fields, and the `=` of assignments, on neighbouring lines are aligned.
- Trailing comments of one definition share a column: the next multiple of 8 at least two spaces right of the longest line that has one.
  A multiple of 8, so that small edits do not move them all; lines over 80 columns stand aside, so that one does not push the others out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..diagnostics import Source
from .parse import parse_coll, parse_comp, parse_tree

INDENT = 2
CONTINUED = 4
APART = " " * 3
COMMENT_STEP = 8
COMMENT_LIMIT = 80

_STATEMENTS = frozenset(
    "use collective ranks mesh size tensor scratch bound wires require allow let loop when send assign accumulate phase schedule "
    "pipeline overlap compressor basis state wire field nonfinite_field nonfinite_code exact only flag compress "
    "decompress update claim".split()
)
# Words after which a bracket or a minus opens a new operand.
_BEFORE_OPERAND = frozenset("mesh to and or not mod div when require claim yield send in".split())
_ALIGNED = {"field": ":", "assign": "="}
_TOKEN = re.compile(
    r"""(?P<space>[ \t\f\r]+) | (?P<newline>\n) | (?P<comment>\#[^\n]*) | (?P<string>"[^"\n]*")
      | (?P<name>[A-Za-z_]\w*) | (?P<number>[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?) | (?P<mark>\+=|[=!<>]=|<<|>>|.)""",
    re.VERBOSE | re.ASCII,
)


@dataclass
class _Token:
    kind: str
    text: str
    statement: str = ""  # the grammar rule of the statement that starts here
    gap: str = " "  # what stands before it inside a line
    closes: _Token | None = None  # the `{` of a `}`
    tall: bool = False  # for a `{`: its block takes several lines


@dataclass
class _Line:
    tokens: list[_Token] = field(default_factory=list)
    comment: str = ""
    indent: int = 0
    ends_definition: bool = False

    @property
    def blank(self) -> bool:
        return not self.tokens and not self.comment

    @property
    def code(self) -> str:
        return " " * self.indent + _joined(self.tokens)


def _joined(tokens: list[_Token]) -> str:
    return "".join(t.gap + t.text if i else t.text for i, t in enumerate(tokens))


def format_text(source: Source) -> str:
    """The text of a .coll or .comp file (told by the source's name) in the layout above. Formatting twice changes nothing.

    Raises CompileError where the text does not parse.
    """
    comp = source.name.endswith(".comp")
    (parse_comp if comp else parse_coll)(source)
    tokens = _raise_braces(_scan(source, _starts(source, comp)))
    _space([t for t in tokens if t.kind not in ("newline", "comment")])
    lines = _drop_blanks(_split(tokens))
    _indent(lines)
    if comp:
        _align_marks(lines)
    return "".join(line + "\n" for line in _finished(lines))


def _starts(source: Source, comp: bool) -> dict[int, str]:
    """Offset of each statement -> its grammar rule. An outer statement never starts where an inner one does."""
    starts: dict[int, str] = {}
    for node in parse_tree("comp" if comp else "coll", source).iter_subtrees():
        rule = str(node.data)
        if rule in _STATEMENTS:
            starts[node.meta.start_pos] = rule
    return starts


def _scan(source: Source, starts: dict[int, str]) -> Iterator[_Token]:
    for m in _TOKEN.finditer(source.text):
        kind = m.lastgroup or ""
        if kind != "space":
            # `yield` has no rule of its own in the grammar.
            rule = starts.get(m.start(), "yield" if m[0] == "yield" else "")
            yield _Token(kind, m[0].rstrip(), rule)


def _raise_braces(scanned: Iterator[_Token]) -> list[_Token]:
    """Move each `{` up behind the code before it, pair the braces, and mark the blocks that take several lines."""
    out: list[_Token] = []
    open_braces: list[_Token] = []
    for t in scanned:
        if t.text == "{":
            at = len(out)
            while out[at - 1].kind in ("newline", "comment"):
                at -= 1
            passed = [x for x in out[at:] if x.kind == "comment"]
            first_trails = out[at].kind == "comment" if at < len(out) else False
            del out[at:]
            out.append(t)
            t.tall = bool(passed)
            for i, comment in enumerate(passed):
                if i or not first_trails:
                    out.append(_Token("newline", ""))
                out.append(comment)
            if passed:
                out.append(_Token("newline", ""))
            open_braces.append(t)
            continue
        if t.kind == "newline":
            for brace in open_braces:
                brace.tall = True
        elif t.text == "}":
            t.closes = open_braces.pop()
        out.append(t)
    return out


def _split(tokens: list[_Token]) -> list[_Line]:
    """Tokens -> lines: at the author's line breaks, after `{` and around `}` of tall blocks, and after every comment."""
    lines = [_Line()]
    broken = False  # a break is due, unless a comment or the author's own break comes first
    for t in tokens:
        if t.kind == "newline":
            lines.append(_Line())
            broken = False
            continue
        if t.kind == "comment":
            if lines[-1].comment:
                lines.append(_Line())
            lines[-1].comment = t.text
            broken = True
            continue
        closes_tall = t.closes is not None and t.closes.tall
        if broken or (closes_tall and not lines[-1].blank):
            lines.append(_Line())
        lines[-1].tokens.append(t)
        broken = closes_tall or t.tall
    return lines


def _drop_blanks(lines: list[_Line]) -> list[_Line]:
    kept: list[_Line] = []
    for line in lines:
        if line.blank and (not kept or kept[-1].blank or _opens(kept[-1])):
            continue
        if kept and kept[-1].blank and line.tokens and line.tokens[0].text == "}":
            kept.pop()
        kept.append(line)
    while kept and kept[-1].blank:
        kept.pop()
    return kept


def _opens(line: _Line) -> bool:
    return bool(line.tokens) and line.tokens[-1].text == "{"


def _indent(lines: list[_Line]) -> None:
    """Set every line's indentation. A comment on a line of its own stands with the code that follows it."""
    depth = 0
    waiting: list[_Line] = []
    for line in lines:
        if not line.tokens:
            line.indent = INDENT * depth
            waiting.append(line)
            continue
        first = line.tokens[0]
        line.indent = INDENT * (depth - (first.text == "}"))
        if not first.statement and first.text not in ("}", ")", "]"):
            line.indent += CONTINUED
        if first.text != "}":
            for w in waiting:
                w.indent = line.indent
        waiting.clear()
        depth += sum((t.text == "{") - (t.text == "}") for t in line.tokens)
        line.ends_definition = depth == 0 and line.tokens[-1].text == "}"


def _space(tokens: list[_Token]) -> None:
    """Set the gap before each token, from the tokens around it and the brackets that are open there."""
    nothing = _Token("mark", "")
    before2, before = nothing, nothing
    brackets: list[str] = []
    depth = 0
    tight = False  # the token before is a sign
    for t in tokens:
        inner = brackets[-1] if brackets else ""
        sign = t.text == "-" and (
            before.text in _BEFORE_OPERAND or (before.kind == "mark" and before.text not in (")", "]"))
        )
        if t.statement:
            t.gap = " " if before.text == "{" else APART
        elif tight or _touches(before2, before, t, inner):
            t.gap = ""
        tight = sign
        if t.text in ("(", "["):
            # At depth 0 stand parameters, where `=` gives a default; elsewhere arguments, which `=` names.
            brackets.append("parameters" if t.text == "(" and not brackets and depth == 0 else t.text)
        elif t.text in (")", "]"):
            brackets.pop()
        depth += (t.text == "{") - (t.text == "}")
        before2, before = before, t


def _touches(before2: _Token, before: _Token, t: _Token, inner: str) -> bool:
    """Whether `t` stands right behind `before`; `inner` is the innermost open bracket."""
    if before.text in ("(", "[", ".") or t.text in (")", "]", ",", "."):
        return True
    if t.text == "(":
        return before.kind == "name" and before.text not in _BEFORE_OPERAND
    if t.text == "[":
        return not (before.text == "tune" and before2.text == "pipeline")
    if t.text == ":":
        return inner in ("(", "parameters") or (not inner and before2.text == "to")
    return inner == "(" and "=" in (before.text, t.text)


def _align_marks(lines: list[_Line]) -> None:
    """Widen the gap before the `:` of fields and the `=` of assignments, so that those of neighbouring lines stand in one column."""
    run: list[_Line] = []
    for line in [*lines, _Line()]:
        if run and _aligned_rule(line) != _aligned_rule(run[0]):
            marks = [_mark(r) for r in run]
            widths = [len(_joined(r.tokens[:at])) for r, at in zip(run, marks, strict=True)]
            for r, at, width in zip(run, marks, widths, strict=True):
                r.tokens[at].gap = " " * (1 + max(widths) - width)
            run = []
        if _aligned_rule(line):
            run.append(line)


def _aligned_rule(line: _Line) -> str:
    """`field` or `assign` where the line holds one such statement, up to its mark at least; otherwise empty."""
    statements = [t.statement for t in line.tokens if t.statement]
    if len(statements) != 1 or statements[0] not in _ALIGNED or not line.tokens[0].statement:
        return ""
    return statements[0] if _mark(line) else ""


def _mark(line: _Line) -> int:
    """Index of the line's `:` or `=`, 0 where the author broke the line before it."""
    mark = _ALIGNED[line.tokens[0].statement]
    return next((i for i, t in enumerate(line.tokens) if t.text == mark), 0)


def _finished(lines: list[_Line]) -> Iterator[str]:
    definition: list[_Line] = []
    for i, line in enumerate(lines):
        definition.append(line)
        if line.ends_definition or i == len(lines) - 1:
            yield from _with_comments(definition)
            definition = []


def _with_comments(lines: list[_Line]) -> Iterator[str]:
    """The lines of one definition, trailing comments in their column."""
    widths = [len(line.code) for line in lines if line.tokens and line.comment]
    widest = max((w for w in widths if w <= COMMENT_LIMIT), default=0)
    column = -(-(widest + 2) // COMMENT_STEP) * COMMENT_STEP
    for line in lines:
        if line.tokens and line.comment:
            yield line.code.ljust(max(column, len(line.code) + 2)) + line.comment
        else:
            yield (line.code + line.comment).rstrip()
