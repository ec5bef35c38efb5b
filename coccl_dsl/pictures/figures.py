"""Matplotlib's figures as Pictures: one look, legible on light and dark pages. Import needs matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .colours import DARK, LIGHT
from .picture import Picture

try:
    import matplotlib
except ImportError as e:  # pragma: no cover - the extra is installed where tests run
    raise ImportError("charts need matplotlib: pip install 'coccl-dsl[notebook]'") from e
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

MARKERS = "osD^vP*X"

# A point is 4/3 of a pixel: nothing is smaller than 11 pixels.
LOOK: dict[Any, Any] = {
    "svg.fonttype": "path",
    "svg.hashsalt": "coccl",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LIGHT.edge,
    "axes.labelcolor": LIGHT.ink,
    "axes.facecolor": LIGHT.paper,
    "figure.facecolor": LIGHT.paper,
    "text.color": LIGHT.ink,
    "xtick.color": LIGHT.muted,
    "ytick.color": LIGHT.muted,
    "grid.color": LIGHT.rule,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
}


@contextmanager
def figure(width: float = 680, height: float = 320, panels: int = 1) -> Iterator[tuple[Figure, list[Any]]]:
    """A figure of the house's look, in pixels, with its axes in a row."""
    with matplotlib.rc_context(LOOK):
        made = Figure(figsize=(width / 96, height / 96), layout="constrained")
        FigureCanvasAgg(made)  # measures text
        axes = made.subplots(1, panels, squeeze=False)[0]
        yield made, list(axes)


def picture(made: Figure, text: str) -> Picture:
    """The figure as it is now. Call it within `figure`."""
    out = io.StringIO()
    made.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    return Picture(
        re.sub(r"<svg ", '<svg class="cc-chart" ', svg, count=1).replace("<defs>", _dark() + "<defs>", 1), text
    )


def _dark() -> str:
    """Matplotlib writes colours into every element; on a dark page those of text, rules and background change."""
    pairs = [(getattr(LIGHT, name), getattr(DARK, name)) for name in ("paper", "ink", "muted", "rule", "edge", "box")]
    pairs += zip(LIGHT.series, DARK.series, strict=True)
    rules = [
        f'.cc-chart [style*="{kind}: {light.lower()}"]{{{kind}:{dark}!important}}'
        for light, dark in pairs
        if light != dark
        for kind in ("fill", "stroke")
    ]
    return f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
