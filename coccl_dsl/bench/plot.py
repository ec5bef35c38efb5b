"""Time against size, ours and NCCL, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .rows import Row

# Told apart by colour-blind readers too (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plot(rows: Sequence[Row], file: Path) -> None:
    """Write SVG or PNG by the file's ending: one panel a collective and mode. Raises ImportError without matplotlib."""
    import matplotlib  # pyright: ignore[reportMissingImports]

    matplotlib.use("Agg")
    from matplotlib import pyplot  # pyright: ignore[reportMissingImports]

    panels = list(dict.fromkeys((r.collective, r.dtype, r.mode) for r in rows))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4.5), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        here = [r for r in rows if (r.collective, r.dtype, r.mode) == panel and not r.error]
        for colour, codec in zip(COLOURS, dict.fromkeys(r.compressor for r in here), strict=False):
            line = sorted((r.size / 2**20, r.us) for r in here if r.compressor == codec)
            axis.plot(*zip(*line, strict=True), "o-", color=colour, label=codec)
        native = sorted({r.size / 2**20: r.nccl_us for r in here}.items())
        axis.plot(*zip(*native, strict=True), "s--", color="#555555", label="NCCL, same dtype")
        axis.set(xscale="log", yscale="log", xlabel="size, MiB", ylabel="time, microseconds", title=", ".join(panel))
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
