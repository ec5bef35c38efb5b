"""What a run tells: progress on a terminal, lines when piped, a JSON log, bytes a dimension."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from coccl_dsl.torch import report


class Told:
    """Of rank 0; the others tell nothing. The log has one JSON object a line, each with a `kind`."""

    def __init__(self, log: Path | None, steps: int):
        self.speaks = dist.get_rank() == 0
        terminal = Console().is_terminal
        self.console = Console(quiet=not self.speaks, width=None if terminal else 140)
        self.file = log.open("a") if log and self.speaks else None
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=not self.speaks or not self.console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=steps, note="")

    def __enter__(self) -> Told:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        if self.file:
            self.file.close()

    def note(self, kind: str, **values: Any) -> None:
        if self.file:
            self.file.write(json.dumps({"kind": kind, **values}) + "\n")
            self.file.flush()

    def step(self, step: int, **values: Any) -> None:
        self.note("step", step=step, **values)
        text = f"loss {values['loss']:.4f}  {values['tokens_per_second']:,.0f} tokens/s"
        self.bar.update(self.task, completed=step, note=text)
        if self.bar.disable:
            self.console.print(f"step {step}  {text}", highlight=False)

    def line(self, text: str) -> None:
        self.bar.console.print(text, highlight=False)


def bytes_a_dimension() -> list[dict[str, Any]]:
    """Rows of dimension, op, compressor, calls, bytes before and bytes sent, summed over all ranks, of what was compressed. Collective."""
    mine = {(c.role, c.op, c.compressor): (c.calls, c.raw_bytes, c.wire_bytes) for c in report().compressed}
    all_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_ranks, mine)
    total: dict[Any, list[int]] = {}
    for one in all_ranks:
        for key, values in one.items():
            total[key] = [a + b for a, b in zip(total.get(key, [0, 0, 0]), values, strict=True)]
    names = ("dimension", "op", "compressor", "calls", "raw_bytes", "sent_bytes")
    return [dict(zip(names, (*key, *values), strict=True)) for key, values in sorted(total.items()) if values[1]]


def why_native() -> list[str]:
    """What went through torch's own backend on this rank, and why."""
    return [f"{n.role}.{n.op}: {n.reason}" for n in report().native]


def table_of(rows: list[dict[str, Any]]) -> Table:
    table = Table("dimension", "op", "compressor", title="sent by all ranks", title_justify="left")
    for name in ("calls", "uncompressed MB", "sent MB", "ratio"):
        table.add_column(name, justify="right")
    for r in rows:
        raw, sent = r["raw_bytes"], r["sent_bytes"]
        sizes = (f"{r['calls']:,}", f"{raw / 1e6:,.2f}", f"{sent / 1e6:,.2f}", f"{raw / sent:.2f}x")
        table.add_row(r["dimension"], r["op"], r["compressor"], *sizes)
    return table
