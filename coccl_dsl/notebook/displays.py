"""What objects look like at the end of a cell: {mime type: content} for a Collective, a Plan, a compressor, an error, an explanation.

Tables are HTML without scripts or style sheets, so that they also show where a page strips those. text/plain is what a terminal prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from typing import Any

from ..cli.show import same_bits, worlds_text
from ..diagnostics import CompileError
from ..lang import ast
from ..pictures.coloured import error_pieces, html, source_pieces
from ..pictures.timeline import timeline
from ..pictures.wire import wire_layout
from ..pipeline import Collective
from ..plan import show
from ..plan.ops import Plan
from ..shown import Explanation
from ..wire.codec import Codec

Bundle = dict[str, str]

_CELL = "text-align:left;padding:2px 14px 2px 0"


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), right: Sequence[int] = ()) -> str:
    """An HTML table of plain texts. right: columns of numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        styles = [_CELL.replace("left", "right") if i in right else _CELL for i in range(len(cells))]
        return (
            "<tr>"
            + "".join(f'<{tag} style="{s}">{escape(c)}</{tag}>' for c, s in zip(cells, styles, strict=True))
            + "</tr>"
        )

    body = "".join(line(row, "td") for row in rows)
    top = f"<thead>{line(head, 'th')}</thead>" if head else ""
    return f'<table style="border-collapse:collapse">{top}<tbody>{body}</tbody></table>'


@singledispatch
def bundle(thing: Any) -> Bundle:
    """What `thing` looks like."""
    raise TypeError(f"{type(thing).__name__} has no display")


@bundle.register
def _(c: Collective) -> Bundle:
    rows, worlds = collective_facts(c), world_rows(c)
    head = ["ranks", "sends", "steps", "lossy steps"]
    title = f"{c.name} : {c.kind}"
    shown = (
        f"<div><strong>{escape(title)}</strong>{table(rows)}"
        f"<details><summary>What was proven, world by world</summary>{table(worlds, head, range(1, 4))}</details>"
        f"<details><summary>The text</summary>{html(source_pieces(c.source.text.strip()))}</details></div>"
    )
    return {"text/html": shown, "text/plain": "\n".join([title, *show.table(rows)])}


def collective_facts(c: Collective) -> list[tuple[str, str]]:
    """(what, value): the buffers, the proof, and what it costs over the worlds that were checked."""
    program = c.program()
    buffers = [_buffer(item) for item in c.syntax.items if isinstance(item, ast.Buffer)]
    least, most = c.report.worlds[0], c.report.worlds[-1]

    def span(name: str) -> str:
        all_worlds = [getattr(w, name) for w in c.report.worlds]
        low, high = min(all_worlds), max(all_worlds)
        return str(low) if low == high else f"{low} to {high}"

    worlds = " to ".join(dict.fromkeys("x".join(map(str, w.sizes)) for w in (least, most)))
    rows = [
        ("buffers", ", ".join(buffers)),
        ("right for", f"{worlds_text(c.report)}, every rank and chunk"),
        ("same bits", same_bits(c.kind, not all(w.same_bits for w in c.report.worlds))),
        (
            "costs",
            f"{span('steps')} steps, {span('sends')} sends, {span('lossy')} lossy on the worst path; {worlds} ranks",
        ),
    ]
    rows += [(f"compressor {name}", show.describe(codec)) for name, codec in program.codecs.items()]
    rows += [("requires", r.test.span.text) for r in program.requires]
    return rows


def _buffer(b: ast.Buffer) -> str:
    """`inout buf[n]`."""
    dims = f"[{', '.join(d.span.text for d in b.dims)}]" if b.dims else ""
    return f"{b.role} {b.name}{dims}" + (f" in {b.basis}" if b.basis else "")


def world_rows(c: Collective) -> list[list[str]]:
    rows = {
        "x".join(map(str, w.sizes)): [str(w.sends), str(w.steps), str(w.lossy)] for w in c.report.worlds
    }  # one root stands for all
    return [[sizes, *row] for sizes, row in rows.items()]


@bundle.register
def _(plan: Plan) -> Bundle:
    picture = timeline(plan)
    return {"image/svg+xml": picture.svg, "text/plain": show.text(plan).rstrip()}


@bundle.register
def _(codec: Codec) -> Bundle:
    picture = wire_layout(codec)
    return {"image/svg+xml": picture.svg, "text/plain": picture.text}


@bundle.register
def _(error: CompileError) -> Bundle:
    return {"text/html": html(error_pieces(error)), "text/plain": str(error)}


@bundle.register
def _(told: Explanation) -> Bundle:
    return {"text/html": explanation_html(told), "text/plain": str(told)}


def explanation_html(told: str) -> str:
    """Indented lines as rows of a table, the others as they are."""
    parts: list[str] = []
    rows: list[list[str]] = []

    def flush() -> None:
        if rows:
            width = max(map(len, rows))
            parts.append(table([row + [""] * (width - len(row)) for row in rows]))
            rows.clear()

    for line in told.split("\n"):
        if line.startswith("  "):
            rows.append([cell for cell in line.strip().split("  ") if cell.strip()])
        else:
            flush()
            parts.append(f"<div>{escape(line)}</div>")
    flush()
    return "".join(parts)
