"""Compressed collectives in a notebook: `%load_ext coccl_dsl` brings `%%coll`, `%%comp` and `%coll_bench`; objects show themselves.

magics.py    the three magics, and where their texts are kept
displays.py  what a Collective, a Plan, a compressor, an error look like
explore.py   sliders over one collective
compare.py   collectives side by side: bytes, lossy steps, error on real data, predicted time
results.py   a table of measured rows, from coccl-bench's JSON
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compare import Comparison, compare
    from .explore import explore
    from .results import Results, results

_WHERE = {
    "Comparison": "compare",
    "compare": "compare",
    "explore": "explore",
    "Results": "results",
    "results": "results",
}

__all__ = ["Comparison", "Results", "compare", "explore", "load_ipython_extension", "results"]


def __getattr__(name: str) -> Any:
    """Each needs torch, ipywidgets or the benchmark, which take seconds to import."""
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module 'coccl_dsl.notebook' has no attribute {name!r}")


def load_ipython_extension(ip: Any) -> None:
    """What `%load_ext coccl_dsl` calls."""
    from .magics import load

    load(ip)
