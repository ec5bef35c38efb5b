"""coccl-record: which rank did not make a call that the others made, from what COCCL_RECORD kept of a run."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ..runtime.record import Kept, Noted, read
from .show import print_table

EXAMPLES = """\
example:
  COCCL_RECORD=calls torchrun --nproc_per_node=8 train.py        in a folder of this run's own; on several hosts, one that all see
  coccl-record calls                                             while it hangs, or afterwards

Exit status: 0 where all ranks made the same calls, 1 where they did not or a call failed, 2 where there is nothing to read.
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="coccl-record",
        description="Compare the last calls of all ranks, which COCCL_RECORD=FOLDER keeps.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("folder", metavar="FOLDER", type=Path)
    return p


def findings(kept: Sequence[Kept]) -> list[str]:
    """What is wrong with a group, of the records of its ranks."""
    found = []
    if len(kept) < kept[0].world:
        found.append(f"{kept[0].world - len(kept)} of {kept[0].world} ranks have no record here")
    last = {k.rank: k.calls[-1].number if k.calls else -1 for k in kept}
    most = max(last.values())
    behind = [r for r, n in last.items() if n < most]
    if behind:
        ahead = next(k for k in kept if last[k.rank] == most)
        first = min(last[r] for r in behind) + 1
        call = next((c for c in ahead.calls if c.number == first), None)
        found.append(f"{_ranks(behind)} did not make call {first}" + (f": {call.what}" if call is not None else ""))
    by_number: dict[int, dict[int, Noted]] = defaultdict(dict)
    for k in kept:
        for c in k.calls:
            by_number[c.number][k.rank] = c
    for number, calls in sorted(by_number.items()):
        if len({_same(c) for c in calls.values()}) > 1:
            told = "; ".join(f"rank {r}: {c.what}, {c.elements} elements" for r, c in calls.items())
            found.append(f"call {number} is not the same one on all ranks: {told}")
            break
    return found + [f"rank {k.rank} failed: {k.failure}" for k in kept if k.failure]


def _same(call: Noted) -> tuple[str, int]:
    """What ranks have to agree in. Of an all_to_all each may bring as much as it likes."""
    return call.what, 0 if call.what.startswith("all_to_all") else call.elements


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def main(arguments: Sequence[str] | None = None) -> int:
    folder: Path = parser().parse_args(arguments).folder
    files = sorted(folder.glob("*.rank*.txt"))
    if not files:
        print(f"coccl-record: {folder} has no records: run with COCCL_RECORD={folder}", file=sys.stderr)
        return 2
    groups: dict[str, list[Kept]] = defaultdict(list)
    try:
        for path in files:
            kept = read(path)
            groups[kept.group].append(kept)
    except (OSError, ValueError) as e:
        print(f"coccl-record: {e}", file=sys.stderr)
        return 2
    wrong = 0
    for name, kept in groups.items():
        kept.sort(key=lambda k: k.rank)
        rows = []
        for k in kept:
            last = k.calls[-1] if k.calls else None
            when = datetime.fromtimestamp(last.when).strftime("%H:%M:%S.%f")[:-3] if last else ""
            rows.append(
                [str(k.rank), str(last.number), when, f"{last.elements:,}", last.what]
                if last
                else [str(k.rank)] + ["-"] * 4
            )
        print(f"group {name}")
        print_table(["rank", "last", "at", "elements", "call"], rows, right=[0, 1, 3])
        told = findings(kept)
        wrong += bool(told)
        print("\n".join(told or ["all ranks have made the same calls"]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
