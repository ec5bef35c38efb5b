"""The last calls of every group, on each rank: what to look at when a job hangs or a peer was missed.

The n-th call of a group is the same one on all its ranks, so the rank whose record ends first is the one that the others wait for. Where
COCCL_RECORD names a folder, the record is also a file there for each group and rank, mapped and up to date at any time: it can be read while the
process hangs, and after it was killed. `coccl-record FOLDER` compares the ranks' files.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import re
import struct
import time
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import torch.distributed as dist

log = logging.getLogger("coccl_dsl")
LENGTH = 2000  # calls that are kept
_SHOWN = 5  # calls that a failure names
_WIDTH, _FAILED_WIDTH = 192, 1024  # bytes of a line
_NUMBERS = 46
_LINE = struct.Struct(f"{_NUMBERS}s{_WIDTH - _NUMBERS - 1}s")  # without its end
_HEAD = "# Calls of coccl_dsl: group {group}, of {world} ranks; rank {rank} of all"
_HEAD_FORM = re.compile(r"# Calls of coccl_dsl: group (.+), of (\d+) ranks; rank (\d+) of all *")
_LINE_FORM = re.compile(r" *(\d+) +(\d+\.\d+) +(\d+) (.+)")
_records: WeakKeyDictionary[dist.ProcessGroup, dict[str, Record]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Noted:
    """One call. number: of the group, from 0; when: seconds since 1970, as it was enqueued; what: collective, compressors, dtype, transport."""

    number: int
    when: float
    elements: int
    what: str

    def __str__(self) -> str:
        return f"{self.number:>12} {self.when:17.6f} {self.elements:>14} {self.what}"


class Record:
    """Of one group, of `world` ranks, on the process of global rank `rank`. folder: also keep it in a file there."""

    def __init__(self, group: str, rank: int, world: int, folder: str = ""):
        self.group, self.rank, self.world = group, rank, world
        self.calls: deque[tuple[int, float, int, str]] = deque(maxlen=LENGTH)
        self._numbers = itertools.count()
        self._map: mmap.mmap | None = None
        self._told = False
        if folder:
            try:
                self._map = self._opened(Path(folder))
            except OSError as e:  # a full disk is no reason to stop training
                log.warning("COCCL_RECORD=%s: calls of group %s are not recorded in a file: %s", folder, group, e)

    def _opened(self, folder: Path) -> mmap.mmap:
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.:>-]+", "_", self.group)
        size = (LENGTH + 1) * _WIDTH + _FAILED_WIDTH
        with open(folder / f"{name}.rank{self.rank}.txt", "wb+") as f:
            f.truncate(size)
            made = mmap.mmap(f.fileno(), size)
        head = _line(_HEAD.format(group=self.group, rank=self.rank, world=self.world), _WIDTH)
        made[:] = head + _line("", _WIDTH) * LENGTH + _line("", _FAILED_WIDTH)
        return made

    def add(self, what: str, elements: int) -> None:
        """A call is about to be enqueued."""
        number, when = next(self._numbers), time.time()
        self.calls.append((number, when, elements, what))
        if self._map is not None:
            at = (1 + number % LENGTH) * _WIDTH
            self._map[at : at + _LINE.size] = _LINE.pack(b"%12d %17.6f %14d " % (number, when, elements), _plain(what))

    def failed(self, error: Exception) -> None:
        """Log what a call raised and the calls up to it, once: later calls of the group raise as well."""
        if self._told:
            return
        self._told = True
        if self._map is not None:
            self._map[-_FAILED_WIDTH:] = _line(f"! {error}", _FAILED_WIDTH)
        calls = [str(Noted(*c)) for c in list(self.calls)[-_SHOWN:]]
        advice = (
            ""
            if self._map is not None
            else "\nCOCCL_RECORD=FOLDER keeps the last calls of all ranks in files, for coccl-record FOLDER."
        )
        text = "\n".join(["      number              when       elements call", *calls])
        log.error("rank %d, group %s: %s\nIts last calls:\n%s%s", self.rank, self.group, error, text, advice)


def record_of(group: dist.ProcessGroup, pair: str = "") -> Record:
    """The group's record on this rank. pair: names two of its ranks, whose messages are calls of theirs alone."""
    import torch.distributed as dist

    kept = _records.setdefault(group, {})
    found = kept.get(pair)
    if found is None:
        name = f"{group.group_desc or 'group'}.{group.group_name}{'.' if pair else ''}{pair}"
        found = kept[pair] = Record(
            name, dist.get_rank(), 2 if pair else group.size(), os.environ.get("COCCL_RECORD", "")
        )
    return found


@dataclass(frozen=True)
class Kept:
    """What a file holds. calls: the youngest last; failure: what a call raised, or ""."""

    group: str
    rank: int
    world: int
    calls: tuple[Noted, ...]
    failure: str


def read(path: Path) -> Kept:
    """Raises ValueError for a file that is no record."""
    try:
        head, *lines = path.read_text(encoding="ascii").splitlines()
        found = _HEAD_FORM.fullmatch(head)
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"{path} is not a record of coccl_dsl")
    # A line that is being written right now may be none yet.
    parts = [m.groups() for line in lines if (m := _LINE_FORM.fullmatch(line.rstrip()))]
    calls = sorted((Noted(int(n), float(when), int(elements), what) for n, when, elements, what in parts), key=_number)
    failure = next((line[2:].rstrip() for line in lines if line.startswith("! ")), "")
    return Kept(found[1], int(found[3]), int(found[2]), tuple(calls), failure)


def _number(call: Noted) -> int:
    return call.number


@lru_cache(maxsize=1024)
def _plain(what: str) -> bytes:
    return _line(what, _WIDTH - _NUMBERS)[:-1]


def _line(text: str, width: int) -> bytes:
    """Padded, or cut, to so many bytes, the last of which ends the line."""
    plain = " ".join(text.split("\n")).encode("ascii", "replace")
    return plain[: width - 1].ljust(width - 1) + b"\n"
