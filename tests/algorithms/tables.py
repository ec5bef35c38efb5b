"""The formulas of docs/algorithms.md, as functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
Formula = Callable[[tuple[int, ...]], Fraction]


@dataclass(frozen=True)
class Row:
    """One row of a table: column -> formula over the sizes of a world. `use` is its advice."""

    name: str
    mesh: bool
    formulas: dict[str, Formula]
    use: str


def formula(text: str) -> Formula:
    """`2 (n - 1) / n`: a space between two factors is a product."""
    code = compile(re.sub(r"(?<=[\w)]) (?=[\w(])", "*", text), text, "eval")

    def run(sizes: tuple[int, ...]) -> Fraction:
        n = prod(sizes)
        f, c = n.bit_length() - 1, (n - 1).bit_length()
        names = {"n": n, "f": f, "c": c, "p": 1 << f, "e": n - (1 << f), "g": max(0, n - (1 << f) - 1).bit_length()}
        if len(sizes) == 2:
            names |= {"m": sizes[0], "k": sizes[1]}
        return eval(code, {"min": min, "max": max}, {k: Fraction(v) for k, v in names.items()})  # noqa: S307 - our own page

    return run


@lru_cache(maxsize=1)
def rows() -> dict[str, Row]:
    found: dict[str, Row] = {}
    head: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("|-"):
            continue
        if not line.startswith("| "):
            head = []
            continue
        cells = [c.strip() for c in line.strip("|").split("|")]
        if not head:
            head = cells
            continue
        values = dict(zip(head, cells, strict=True))
        columns = [h for h in head if h not in ("algorithm", "on a mesh", "use it")]
        formulas = {h: formula(values[h].strip("`")) for h in columns}
        found[cells[0]] = Row(cells[0], "on a mesh" in head, formulas, values["use it"])
    return found
