"""Time against size, ours and NCCL, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .rows import Row

# Told apart by colour-blind readers too (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "os^Dv*"


def panels_of(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """The (collective, dtype, mode) that there are, those with most sizes first."""
    kept = [r for r in rows if not r.error]
    found = list(dict.fromkeys((r.collective, r.dtype, r.mode) for r in kept))
    sizes = {p: len({r.size for r in kept if (r.collective, r.dtype, r.mode) == p}) for p in found}
    return sorted(found, key=lambda p: -sizes[p])


def draw(axes: Sequence[Any], rows: Sequence[Row], panels: Sequence[tuple[str, str, str]]) -> None:
    """One panel an axis. A dotted line is the wire's ceiling: NCCL's time, less what the wire saves in bytes."""
    from matplotlib.ticker import LogLocator

    for axis, panel in zip(axes, panels, strict=True):
        here = [r for r in rows if (r.collective, r.dtype, r.mode) == panel and not r.error]
        native = sorted({r.size / 2**20: r.nccl_us for r in here}.items())
        axis.plot(*zip(*native, strict=True), "P-", color="#6b7280", label="NCCL")
        for i, codec in enumerate(dict.fromkeys(r.compressor for r in here)):
            own = sorted((r.size / 2**20, r.us, r.nccl_us / r.ceiling) for r in here if r.compressor == codec)
            sizes, times, ceilings = zip(*own, strict=True)
            colour = COLOURS[i % len(COLOURS)]
            axis.plot(sizes, times, marker=MARKERS[i % len(MARKERS)], color=colour, label=codec)
            axis.plot(sizes, ceilings, ":", color=colour, linewidth=1.2, label=f"{codec}: wire's ceiling")
        axis.set(xscale="log", yscale="log", xlabel="size, MiB", ylabel="time, us", title=", ".join(panel))
        ticks = sorted({r.size / 2**20 for r in here})
        axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()


def legend(figure: Any, axes: Sequence[Any]) -> None:
    """One legend below all panels."""
    known = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(known.values(), known, loc="outside lower center", ncols=5)


def plot(rows: Sequence[Row], file: Path) -> None:
    """Write SVG or PNG by the file's ending: one panel a collective, dtype and mode. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    panels = panels_of(rows)
    figure = Figure(figsize=(6 * max(len(panels), 1), 4.5), layout="constrained")
    axes = figure.subplots(1, max(len(panels), 1), squeeze=False)[0][: len(panels)]
    draw(axes, rows, panels)
    legend(figure, axes)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
