"""Likely mends: index shifts of one. Each index and peer of the text is shifted by one, and the first text that proves is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ..diagnostics import Diagnostic, Span
from ..lang import ast

SHIFTABLE = ("E301", "E302", "E303", "E304", "E305", "E306", "E310")
MAX_TRIALS = 120
# A trial that runs longer in one world is given up, so that an error is shown within seconds.
TRIAL_WORK = 4000


@dataclass(frozen=True)
class Trial:
    """A text with one expression shifted. `old` is the Ref or Dest that holds it, `text` how that would read, `index` the new expression."""

    collective: ast.Collective
    old: Span
    text: str
    index: str


def _swap(node: Any, old: Any, new: Any) -> Any:
    """The tree with `old` (by identity) replaced."""
    if node is old:
        return new
    if isinstance(node, tuple):
        done = tuple(_swap(n, old, new) for n in node)
        return done if any(a is not b for a, b in zip(done, node, strict=True)) else node
    if is_dataclass(node) and not isinstance(node, Span | type):
        changed = {}
        for f in fields(node):
            value = getattr(node, f.name)
            after = _swap(value, old, new)
            if after is not value:
                changed[f.name] = after
        return replace(node, **changed) if changed else node
    return node


def _walk(node: Any) -> Iterator[Any]:
    if isinstance(node, tuple):
        for n in node:
            yield from _walk(n)
    elif is_dataclass(node) and not isinstance(node, Span | type):
        yield node
        for f in fields(node):
            yield from _walk(getattr(node, f.name))


def _shifted(e: ast.Expr, size: ast.Expr, by: int) -> tuple[ast.Expr, str]:
    """e shifted by one, modulo the size, and how it reads."""
    sign = "+" if by > 0 else "-"
    base = e.left if isinstance(e, ast.Binary) and e.op == "mod" and e.right.span.text == size.span.text else e
    moved = ast.Binary(e.span, sign, base, ast.Number(e.span, 1))
    text = base.span.text
    if (
        isinstance(base, ast.Binary)
        and base.op in ("+", "-")
        and isinstance(base.right, ast.Number)
        and base.right.value == 1
        and base.op != sign
    ):
        moved, text = base.left, base.left.span.text
        return ast.Binary(e.span, "mod", moved, size), f"{text} mod {size.span.text}"
    return ast.Binary(e.span, "mod", moved, size), f"({text} {sign} 1) mod {size.span.text}"


def shifts(c: ast.Collective, near: Span | None) -> Iterator[Trial]:
    """Every shift of one, those in the statement at `near` first."""
    sizes: dict[str, tuple[ast.Expr, ...]] = {}
    world: ast.Expr | None = None
    for item in c.items:
        if isinstance(item, ast.Buffer | ast.WireDecl):
            sizes[item.name] = item.dims
        if isinstance(item, ast.Ranks) and len(item.axes) == 1:
            span = item.span
            name = item.axes[0][2]
            start = span.start + span.text.rindex(name)
            at = Span(span.source, start, start + len(name))
            world = ast.Ref(at, name, None, None, at)
    places: list[tuple[Span, ast.Expr, ast.Expr, Any]] = []
    for node in _walk(c.items):
        if isinstance(node, ast.Ref) and node.index and len(sizes.get(node.name, ())) == len(node.index):
            for e, size in zip(node.index, sizes[node.name], strict=True):
                if not isinstance(e, ast.Whole | ast.Interval | ast.Number):
                    places.append((node.span, e, size, node))
        elif isinstance(node, ast.Dest) and node.axis is None and len(node.coordinates) == 1 and world is not None:
            places.append((node.span, node.coordinates[0], world, node))

    def distance(place: tuple[Span, ast.Expr, ast.Expr, Any]) -> tuple[int, int]:
        span = place[0]
        if near is None:
            return 0, 0
        line = abs(span.source.position(span.start)[0] - near.source.position(near.start)[0])
        return line, abs(span.start - near.start)

    for span, e, size, _ in sorted(places, key=distance):
        for by in (-1, 1):
            new, index = _shifted(e, size, by)
            text = span.text[: e.span.start - span.start] + index + span.text[e.span.end - span.start :]
            yield Trial(replace(c, items=_swap(c.items, e, new)), span, text, index)


def suggest(found: list[Diagnostic], c: ast.Collective, proves: Callable[[ast.Collective], bool]) -> list[Diagnostic]:
    """Add `did you mean` to the first diagnostic that a shift would mend."""
    for i, d in enumerate(found):
        if d.code not in SHIFTABLE:
            continue
        for k, trial in enumerate(shifts(c, d.span)):
            if k >= MAX_TRIALS:
                break
            if not proves(trial.collective):
                continue
            same = d.span is not None and trial.old.start == d.span.start
            line = trial.old.source.position(trial.old.start)[0]
            where = "" if same else f" in line {line}"
            label = d.label
            if same and d.code == "E301" and " is chunk " in label:
                label = label.split(" is chunk ")[0] + f" is chunk {trial.index} here"
            return [*found[:i], replace(d, label=label, help=f"did you mean `{trial.text}`{where}?"), *found[i + 1 :]]
        return found
    return found
