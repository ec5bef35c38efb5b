"""Measured rows, from coccl-bench's JSON, as a table and a chart."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..bench.rows import Row
from ..cli.show import columns
from ..pictures.picture import Picture
from ..pictures.spacetime import bytes_text
from ..shown import Printed
from .displays import bundle, table

HEAD = (
    "collective",
    "dtype",
    "wire",
    "size",
    "mode",
    "us",
    "NCCL us",
    "ratio",
    "wire's ceiling",
    "relative error",
    "same bits",
)
RIGHT = (3, 5, 6, 7, 8, 9)


@dataclass(frozen=True, repr=False)
class Results(Printed):
    """rows: of `bench.rows`, errors included; about: machine, versions and date."""

    rows: tuple[Row, ...]
    about: str

    def where(self, **only: Any) -> Results:
        """Rows with these values, such as collective="all_reduce", mode="graph". Raises ValueError for a column that there is not."""
        known = [f.name for f in fields(Row)]
        for name in only:
            if name not in known:
                raise ValueError(f"rows have no {name!r}; they have {', '.join(known)}")
        return Results(tuple(r for r in self.rows if all(getattr(r, k) == v for k, v in only.items())), self.about)

    def chart(self) -> Picture:
        """Time against size, ours and NCCL's, with the wire's ceiling."""
        from ..pictures.charts import time_against_size

        return time_against_size(self.rows)

    def cells(self) -> list[list[str]]:
        return [
            [r.collective, r.dtype, r.compressor, bytes_text(r.size), r.mode]
            + (
                [f"WRONG: {r.error}", "", "", "", "", "no"]
                if r.error
                else [
                    f"{r.us:.0f}",
                    f"{r.nccl_us:.0f}",
                    f"{r.ratio:.2f}",
                    f"{r.ceiling:.2f}",
                    _error(r),
                    _same(r),
                ]
            )
            for r in self.rows
        ]

    def __repr__(self) -> str:
        return str(self)


def _error(r: Row) -> str:
    """Of a send_recv the recorded error is the sender's, which holds what it held."""
    return "-" if r.collective == "send_recv" else f"{r.relative_error:.4f}"


def _same(r: Row) -> str:
    return "yes" if r.same_as_simulate and r.ranks_equal is not False else "no"


@bundle.register
def _(r: Results) -> dict[str, str]:
    html = f"<div>{table(r.cells(), HEAD, RIGHT)}<small>{r.about}</small></div>"
    return {"text/html": html, "text/plain": columns(HEAD, r.cells(), RIGHT) + f"\n  {r.about}"}


def results(file: str | Path) -> Results:
    """Read what `coccl-bench --json FILE` wrote. Raises OSError where there is no file, ValueError where it is something else."""
    document = json.loads(Path(file).read_text(encoding="utf-8"))
    known = {f.name for f in fields(Row)}
    if not isinstance(document, dict) or not all(known == r.keys() for r in document.get("rows", [{}])):
        raise ValueError(f"{file} is no file of coccl-bench --json")
    return of_document(document)


def of_document(document: dict[str, Any]) -> Results:
    machine, versions = document["machine"], document["versions"]
    about = (
        f"{machine['gpus']} x {machine['gpu']}, torch {versions['torch']}, NCCL {versions['nccl']}, triton {versions['triton']}, "
        f"{document['date']}: {document['command']}"
    )
    return Results(tuple(Row(**r) for r in document["rows"]), about)
