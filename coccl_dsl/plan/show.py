"""A plan as text and as JSON."""

from __future__ import annotations


def summary(plan, capacity):
    return ""
