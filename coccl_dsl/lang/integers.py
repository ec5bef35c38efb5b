"""The integer functions of algorithm texts. Each raises ValueError, with the reason in words, where it has no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LIMIT = 1 << 62


def _pow2(k: int) -> int:
    if not 0 <= k <= 62:
        raise ValueError(f"pow2({k}) is not an integer below 2^62")
    return 1 << k


def _log2(v: int) -> int:
    if v < 1 or v & (v - 1):
        raise ValueError(f"log2({v}): {v} is no power of two; log2ceil rounds up")
    return v.bit_length() - 1


def _log2ceil(v: int) -> int:
    if v < 1:
        raise ValueError(f"log2ceil({v}) has no result")
    return (v - 1).bit_length()


def _pow2floor(v: int) -> int:
    if v < 1:
        raise ValueError(f"pow2floor({v}) has no result")
    return 1 << v.bit_length() - 1


def _shift(v: int, k: int) -> int:
    if not 0 <= k <= 62:
        raise ValueError(f"a shift by {k} has no result")
    return v << k


FUNCTIONS: dict[str, Any] = {
    "__builtins__": {},
    "min": min,
    "max": max,
    "pow2": _pow2,
    "log2": _log2,
    "log2ceil": _log2ceil,
    "pow2floor": _pow2floor,
    "shift": _shift,
}

# name -> (number of arguments, how the call is written in Python)
WRITTEN: dict[str, tuple[int, Callable[..., str]]] = {
    "select": (3, lambda c, a, b: f"(({a}) if ({c}) else ({b}))"),
    "min": (2, lambda a, b: f"min({a}, {b})"),
    "max": (2, lambda a, b: f"max({a}, {b})"),
    "xor": (2, lambda a, b: f"(({a}) ^ ({b}))"),
    "pow2": (1, lambda a: f"pow2({a})"),
    "log2": (1, lambda a: f"log2({a})"),
    "log2ceil": (1, lambda a: f"log2ceil({a})"),
    "pow2floor": (1, lambda a: f"pow2floor({a})"),
}
