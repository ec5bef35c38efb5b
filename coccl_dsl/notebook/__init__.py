"""Compressed collectives in a notebook: `%load_ext coccl_dsl` brings `%%coll`, `%%comp` and `%coll_bench`; objects show themselves.

magics.py      the three magics, and where their texts are kept
displays.py    what a Collective, a Plan, a compressor, an error look like
explorer.py    sliders over one collective
comparison.py  collectives side by side: bytes, lossy steps, error on real data, predicted time
measured.py    measured rows, from coccl-bench's JSON; benchmark.py runs it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .comparison import Comparison, compare
    from .explorer import explore
    from .measured import Results, results

_WHERE = {
    "Comparison": "comparison",
    "compare": "comparison",
    "explore": "explorer",
    "Results": "measured",
    "results": "measured",
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
