"""A progress bar for a person: on stderr of a terminal, under the cell of a notebook; nothing at all in a pipe, a log or CI."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from html import escape
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 2.0  # seconds that a notebook waits before it shows a bar


def track(items: Iterable[T], what: str) -> Iterator[T]:
    """Yield `items`; meanwhile a bar labelled `what` counts them. The bar is gone when they are done."""
    total = len(items) if isinstance(items, Sized) else None
    if in_notebook():
        yield from _under_cell(items, what, total)
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(items, total=total, description=what)


@contextmanager
def status(what: str, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Give a function that shows what is being done now, after `what`, in a line that is gone in the end."""
    from rich.console import Console

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda text: None
        return
    with console.status(what) as line:
        yield lambda text: line.update(f"{what}: {text}")


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def _under_cell(items: Iterable[T], what: str, total: int | None) -> Iterator[T]:
    from IPython.core.display import HTML
    from IPython.display import display

    start, handle = time.monotonic(), None
    try:
        for done, item in enumerate(items):
            if time.monotonic() - start > PATIENCE:
                of = f'value="{done}" max="{total}"' if total else ""
                bar = HTML(f"<progress {of}></progress> {escape(what)}: {done}{f' of {total}' if total else ''}")
                if handle is None:
                    handle = display(bar, display_id=True)
                elif handle is not None:
                    handle.update(bar)
            yield item
    finally:
        if handle is not None:
            handle.update(HTML(""))
