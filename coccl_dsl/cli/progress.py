"""A progress bar on stderr for a person at a terminal; nothing at all in a pipe, a log or CI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], what: str) -> Iterator[T]:
    """Yield `items`; meanwhile a bar labelled `what` counts them. The bar is gone when they are done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        total = len(items) if isinstance(items, Sized) else None
        yield from progress.track(items, total=total, description=what)
