"""The colours of all pictures, and how they change on a dark page.

Okabe and Ito's, which colour-blind readers can tell apart; a dash pattern goes with each where lines cross.
"""

from __future__ import annotations

from dataclasses import dataclass

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# The deep blue is too dark on black, so the two blues change places.
SERIES_DARK = ("#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#0072B2")
DASHES = ("", "7 3", "2 2.5", "9 3 2 3", "4 4", "12 3")


@dataclass(frozen=True)
class Theme:
    """paper: the background that every picture brings along; muted: secondary text; rule: thin lines; box: filled shapes."""

    paper: str
    ink: str
    muted: str
    rule: str
    box: str
    edge: str
    series: tuple[str, ...]


LIGHT = Theme("#ffffff", "#1a1c20", "#565b64", "#d4d8de", "#eef1f5", "#7d8794", SERIES)
DARK = Theme("#14171c", "#e9ebee", "#aab2bd", "#3b424c", "#262c35", "#818b99", SERIES_DARK)


def _rules(t: Theme) -> str:
    lines = [
        f".cc-paper{{fill:{t.paper}}}",
        f".cc-text{{fill:{t.ink}}}",
        f".cc-muted{{fill:{t.muted}}}",
        f".cc-rule{{stroke:{t.rule};fill:none}}",
        f".cc-box{{fill:{t.box};stroke:{t.edge}}}",
        f".cc-critical{{fill:none;stroke:{t.ink};stroke-width:2}}",
        f".cc-bare{{stroke:{t.muted};fill:{t.muted}}}",
    ]
    lines += [f".cc-c{i}{{stroke:{c};fill:{c}}}" for i, c in enumerate(t.series)]
    return "".join(lines)


# A picture of its own follows the reader's choice of light or dark; inside a page of JupyterLab it follows the page's.
ON_DARK = f"@media (prefers-color-scheme:dark){{{_rules(DARK)}}}"
IN_PAGE = "".join(f"[data-jp-theme-light=false] {rule}}}" for rule in _rules(DARK).split("}")[:-1])
STYLE = (
    'text{font-family:system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,"DejaVu Sans",sans-serif;stroke:none}'
    + _rules(LIGHT)
    + ".cc-arrow path{fill:none}.cc-arrow:hover path{stroke-width:3}"
    + ON_DARK
)
