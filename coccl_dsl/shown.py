"""How objects look in a notebook. What they look like is made in `coccl_dsl.notebook`, on top of everything, and imported when a notebook asks."""

from __future__ import annotations

from typing import Any


class Shown:
    """A base for what a cell may end with: HTML and SVG where there is a page for them, and text everywhere."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from .notebook.displays import bundle

        return bundle(self)


class Printed(Shown):
    """The same for what has a short repr: print gives the text that a terminal's cell would show."""

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]


class Explanation(str, Shown):
    """What `explain` says: a string."""
