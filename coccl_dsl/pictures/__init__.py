"""Pictures of schedules, wires, errors and times: `Picture` objects that show as SVG in a notebook, as text in a terminal, and save as SVG or PNG.

    from coccl_dsl import pictures
    pictures.space_time(pictures.schedule("ring_q4", 4)).save("ring.svg")

Schedules and wires are drawn here, in SVG; charts are matplotlib's (the `notebook` extra). Nothing below this package imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .picture import Picture
from .schedule import Schedule, schedule
from .spacetime import space_time
from .timeline import timeline
from .wire import wire_layout

if TYPE_CHECKING:
    from .charts import (
        cost_against_ranks,
        error_against_bits,
        error_histogram,
        error_per_hop,
        link_bytes,
        time_against_size,
    )

_CHARTS = (
    "cost_against_ranks",
    "error_against_bits",
    "error_histogram",
    "error_per_hop",
    "link_bytes",
    "time_against_size",
)

__all__ = [
    "Picture",
    "Schedule",
    "cost_against_ranks",
    "error_against_bits",
    "error_histogram",
    "error_per_hop",
    "link_bytes",
    "schedule",
    "space_time",
    "time_against_size",
    "timeline",
    "wire_layout",
]


def __getattr__(name: str) -> Any:
    """Charts need matplotlib (and those of errors torch), which take a second to import."""
    if name in _CHARTS:
        from . import charts

        return getattr(charts, name)
    raise AttributeError(f"module 'coccl_dsl.pictures' has no attribute {name!r}")
