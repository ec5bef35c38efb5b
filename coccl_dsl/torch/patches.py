"""Attributes of torch that are replaced while the transparent path is on, and put back when it is turned off."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any


class Patches:
    """`wrap` replaces, `undo` restores. Modules that are not imported yet are patched when they are."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._watcher = _Watcher()
        self._places: dict[int, list[tuple[Any, str]]] = {}

    def wrap(self, owners: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace `name` of each of the owners (that have it) by `make(original)`."""
        owners = owners if isinstance(owners, tuple) else (owners,)
        original = next((getattr(o, name) for o in owners if hasattr(o, name)), None)
        if original is None:
            return
        made = wraps(original)(make(original))
        for owner in owners:
            if getattr(owner, name, None) is original:
                static = isinstance(owner.__dict__.get(name), staticmethod)
                self.set(owner, name, staticmethod(made) if static else made)

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._undo.append(
            (owner, name, owner.__dict__[name] if name in owner.__dict__ else getattr(owner, name), value)
        )
        setattr(owner, name, value)

    def on_import(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        """Run `patch` on a module, now or once it is imported."""
        found = sys.modules.get(module)
        if found is not None:
            patch(found)
        else:
            self._watcher.watch(module, patch)

    def undo(self) -> None:
        """Put everything back, last first. What someone else has replaced since stays as it is."""
        self._watcher.stop()
        while self._undo:
            owner, name, original, made = self._undo.pop()
            if owner.__dict__.get(name) is made:
                setattr(owner, name, original)


class _Watcher(importlib.abc.MetaPathFinder):
    """Runs patches right after a module's own code."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[ModuleType], None]]] = {}

    def watch(self, module: str, patch: Callable[[ModuleType], None]) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self.waiting.setdefault(module, []).append(patch)

    def stop(self) -> None:
        self.waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patches = self.waiting.pop(fullname, None)
        if patches is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader, run = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for patch in patches:
                patch(module)

        loader.exec_module = exec_module
        return spec
