"""Losses of several runs as a picture.

python examples/three_d/curves.py losses.svg native=native.jsonl 3d=3d.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402


def losses(log: Path) -> tuple[list[int], list[float]]:
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    return [row["step"] for row in steps], [row["loss"] for row in steps]


def main(out: str, *runs: str) -> None:
    """Losses above, and below what each run's differ from those of the first, in percent."""
    matplotlib.rcParams["svg.hashsalt"] = "coccl"
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 5), height_ratios=(3, 2), layout="constrained")
    first: dict[int, float] = {}
    for run in runs:
        name, log = run.split("=", 1)
        steps, found = losses(Path(log))
        first = first or dict(zip(steps, found, strict=True))
        above.plot(steps, found, label=name, linewidth=1)
        shared = [(s, 100 * (loss / first[s] - 1)) for s, loss in zip(steps, found, strict=True) if s in first]
        below.plot(*zip(*shared, strict=True), linewidth=1)
    above.set_ylabel("training loss")
    below.set_ylabel("% of the first's")
    below.set_xlabel("step")
    above.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) < 3 or "--help" in sys.argv or not all("=" in run for run in sys.argv[2:]):
        print(__doc__)
        sys.exit(0 if "--help" in sys.argv else 2)
    main(*sys.argv[1:])
