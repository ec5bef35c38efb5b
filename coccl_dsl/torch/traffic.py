"""What happened: calls and bytes a role and op, which plan ran, and what went native and why.

    print(coccl_dsl.torch.report())            a table
    coccl_dsl.torch.report().json()            the same for machines

Whatever compresses on a user's behalf (the transparent path, the DDP hook, the FSDP2 comms) tells it here. Counts are of this rank.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Compressed:
    """Calls that ran compressed. raw_bytes: what this rank's messages would take in the tensor's dtype; wire_bytes: what they took.
    error: the largest relative error that debug mode has seen, or None."""

    role: str
    op: str
    algorithm: str
    compressor: str
    calls: int
    raw_bytes: int
    wire_bytes: int
    error: float | None = None


@dataclass(frozen=True)
class Native:
    """Calls that went to torch's own kernel, and why."""

    role: str
    op: str
    reason: str
    calls: int


@dataclass(frozen=True)
class Memory:
    """What is held: wire arenas, states of compressors."""

    what: str
    bytes: int


@dataclass(frozen=True)
class Report:
    """Everything since the start, or since `reset`. Prints as a table."""

    compressed: list[Compressed] = field(default_factory=list)
    native: list[Native] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def json(self) -> str:
        return json.dumps(asdict(self))

    def __rich_console__(self, console: Any, options: Any) -> Any:
        from rich.table import Table

        done = Table("role", "op", "algorithm", "compressor", title="compressed", title_justify="left")
        for name in ("calls", "uncompressed", "sent", "ratio", "error"):
            done.add_column(name, justify="right")
        for c in self.compressed:
            ratio = f"{c.raw_bytes / c.wire_bytes:.2f}x" if c.wire_bytes else "-"
            error = "-" if c.error is None else f"{c.error:.1e}"
            sizes = (_size(c.raw_bytes), _size(c.wire_bytes), ratio, error)
            done.add_row(c.role, c.op, c.algorithm, c.compressor, f"{c.calls:,}", *sizes)
        left = Table("role", "op", "why", title="native", title_justify="left")
        left.add_column("calls", justify="right")
        for n in self.native:
            left.add_row(n.role, n.op, n.reason, f"{n.calls:,}")
        yield done
        yield left
        if self.memory:
            held = Table("memory", title_justify="left")
            held.add_column("bytes", justify="right")
            for m in self.memory:
                held.add_row(m.what, _size(m.bytes))
            yield held

    def __str__(self) -> str:
        import io

        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=140).print(self, markup=False)
        return out.getvalue()


def _size(n: int) -> str:
    power = min(3, max(0, (n.bit_length() - 1) // 10))
    return f"{n / 1024**power:,.1f} {('B', 'KiB', 'MiB', 'GiB')[power]}" if power else f"{n:,} B"


_Key = tuple[str, str, str, str]
_lock = threading.Lock()
_compressed: dict[_Key, list[int]] = {}
_native: dict[tuple[str, str, str], list[int]] = {}
_errors: dict[_Key, float] = {}
_holders: list[Callable[[], list[Memory]]] = []


def record(role: str, op: str, algorithm: str, compressor: str, raw_bytes: int, wire_bytes: int) -> None:
    """One call that ran compressed.

    role        dp, fsdp, tp, pp, ep, cp, or the group's description
    op          all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, send, recv
    algorithm   name of the collective that ran
    raw_bytes   what this rank's messages take in the tensor's dtype: `plan.show.sent_bytes` gives both numbers
    wire_bytes  what this rank sent
    """
    with _lock:
        row = _compressed.setdefault((role, op, algorithm, compressor), [0, 0, 0])
        row[0] += 1
        row[1] += raw_bytes
        row[2] += wire_bytes


def native_counter(role: str, op: str, reason: str) -> list[int]:
    """[calls] of one kind that go to torch's own kernel, to be counted up. reason: a few words, of which there are few different ones."""
    with _lock:
        return _native.setdefault((role, op, reason), [0])


def record_native(role: str, op: str, reason: str) -> None:
    """One such call."""
    native_counter(role, op, reason)[0] += 1


def record_error(role: str, op: str, algorithm: str, compressor: str, relative: float) -> None:
    """Debug mode: |result - exact| / |exact| of one call, in the 2-norm. A NaN stays."""
    key = role, op, algorithm, compressor
    with _lock:
        seen = _errors.get(key, 0.0)
        _errors[key] = seen if seen != seen or relative <= seen else relative


def hold(holder: Callable[[], list[Memory]]) -> None:
    """`holder` says what it holds whenever a report is made."""
    if holder not in _holders:
        _holders.append(holder)


def release(holder: Callable[[], list[Memory]]) -> None:
    """The holder holds no more."""
    if holder in _holders:
        _holders.remove(holder)


def report() -> Report:
    """What this rank's collectives did so far."""
    with _lock:
        compressed = [
            Compressed(*key, row[0], row[1], row[2], _errors.get(key)) for key, row in sorted(_compressed.items())
        ]
        native = [Native(*key, calls[0]) for key, calls in sorted(_native.items()) if calls[0]]
    return Report(compressed, native, [m for holder in _holders for m in holder()])


def reset() -> None:
    """Start counting afresh."""
    with _lock:
        _compressed.clear()
        for calls in _native.values():
            calls[0] = 0
        _errors.clear()
