"""Sliders over one collective: ranks, slices, compressor, bandwidth; the diagram, the bytes, the lossy steps and the predicted time follow."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

from ..diagnostics import CompileError
from ..lang.files import library
from ..pictures.coloured import error_pieces, html
from ..pictures.schedule import Schedule, schedule
from ..pictures.spacetime import space_time
from ..pictures.timeline import microseconds, predicted_time, timeline
from ..pipeline import Collective, load
from ..plan.model import GPU, Link, Links
from ..plan.show import ratio
from .displays import table

AS_WRITTEN = "as written"


def explore(collective: Collective | str, *, count: int = 1 << 22, dtype: str = "bf16") -> Any:
    """Widgets to look at a collective with: `coccl_dsl.explore("ring_q4")`. The result is an ipywidgets box; end a cell with it.

    count  elements of each rank's input, where the sliders start; dtype: f32, bf16 or f16

    Raises ImportError without ipywidgets, CompileError where the text does not prove, ValueError for a dtype that there is not.
    """
    try:
        import ipywidgets as w
    except ImportError as e:
        raise ImportError("explore needs ipywidgets: pip install 'coccl-dsl[notebook]'") from e
    c = load(collective) if isinstance(collective, str) else collective
    names = list(c.program(dtype).codecs)
    wide = {"style": {"description_width": "9em"}, "layout": {"width": "26em"}, "continuous_update": False}
    if c.axes:
        sizes = {a: w.IntSlider(2, 2 if i else 1, 8, description=f"{a} (ranks)", **wide) for i, a in enumerate(c.axes)}
    else:
        fixed = c.kind == "send_recv"
        sizes = {"": w.IntSlider(2 if fixed else 4, 2, 2 if fixed else 16, description="ranks", **wide)}
    slices = w.IntSlider(1, 1, 8, description="slices in flight", **wide)
    kinds = {
        q: w.Dropdown(options=[AS_WRITTEN, *library("compressors")], description=f"compressor {q}", **_still(wide))
        for q in names
    }
    elements = w.SelectionSlider(
        options=[(f"2^{k}", 1 << k) for k in range(12, 29, 2)],
        value=_nearest(count),
        description="elements a rank",
        **wide,
    )
    inside = w.FloatLogSlider(
        GPU.inside.bandwidth / 1e9, min=0, max=3, step=0.05, readout_format=".3g", description="link, GB/s", **wide
    )
    across = w.FloatLogSlider(
        GPU.across.bandwidth / 1e9,
        min=-1,
        max=3,
        step=0.05,
        readout_format=".3g",
        description="between nodes, GB/s",
        **wide,
    )
    numbers, steps, streams = w.HTML(), w.HTML(), w.HTML()
    still = {"svg": ""}  # for a page without widgets

    def update(_: Any = None) -> None:
        ranks: int | dict[str, int] = {a: s.value for a, s in sizes.items()} if c.axes else sizes[""].value
        bound: dict[str, Any] = {q: d.value for q, d in kinds.items() if d.value != AS_WRITTEN}
        links = Links(_at(GPU.inside, inside.value), _at(GPU.across, across.value), GPU.launch)
        try:
            s = schedule(c, ranks, count=elements.value, dtype=dtype, **bound)
        except (CompileError, ValueError) as e:
            told = html(error_pieces(e)) if isinstance(e, CompileError) else f"<div>{escape(str(e))}</div>"
            numbers.value, steps.value, streams.value, still["svg"] = told, "", "", ""
            return
        numbers.value = table(facts(s, links, slices.value))
        diagram = space_time(s)
        still["svg"] = diagram.svg
        steps.value = diagram.inline
        streams.value = timeline(s, slices=slices.value, links=links).inline

    controls = [*sizes.values(), slices, *kinds.values(), elements, inside, *([across] if c.axes else [])]
    for control in controls:
        control.observe(update, names="value")
    update()
    half = (len(controls) + 1) // 2
    rows = [w.HBox([w.VBox(controls[:half]), w.VBox(controls[half:])]), numbers, steps, streams]

    class Explorer(w.VBox):
        """The box; a page without widgets shows the diagram as it was."""

        def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
            shown = super()._repr_mimebundle_(**options)
            return {
                **(shown or {}),
                "image/svg+xml": still["svg"],
                "text/plain": f"explore({c.name!r}): needs a page with widgets",
            }

    return Explorer(rows)


def facts(s: Schedule, links: Links, slices: int) -> list[tuple[str, str]]:
    """What a choice costs."""
    seconds = predicted_time(s, links, slices)
    most = max(s.sent)
    return [
        ("bytes sent by the busiest rank", f"{most:,}, {ratio(most, s.plain)} than {s.dtype}"),
        ("steps, sends", f"{s.trace.levels}, {s.trace.sends}"),
        ("lossy steps on the worst path", str(s.trace.lossy)),
        ("predicted time", f"{microseconds(seconds)}, {s.count:,} elements"),
    ]


def _still(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k != "continuous_update"}


def _nearest(count: int) -> int:
    return min((1 << k for k in range(12, 29, 2)), key=lambda v: abs(v - count))


def _at(link: Link, gigabytes: float) -> Link:
    return replace(link, bandwidth=gigabytes * 1e9)
