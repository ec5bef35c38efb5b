"""Data for compressors: what a tensor may hold, at its edges and between."""

from __future__ import annotations

import numpy as np
import torch

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
KINDS = (
    "random",
    "constant",
    "negative",
    "zero",
    "subnormal",
    "huge",
    "tiny",
    "outlier",
    "alternating",
    "offset",
    "sparse",
    "wide",
)
# The largest magnitude for which claims are made.
LIMIT = 1e38


def sample(kind: str, count: int, dtype: str = "f32", seed: int = 0) -> torch.Tensor:
    """float32[count] of values that a tensor of `dtype` holds, finite and at most LIMIT."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(count)
    largest = 6e4 if dtype == "f16" else LIMIT
    match kind:
        case "constant":
            x = np.full(count, 0.7)
        case "negative":
            x = np.full(count, -3.3)
        case "zero":
            x = np.zeros(count)
        case "subnormal":
            x = x * (1e-7 if dtype == "f16" else 1e-42)
        case "huge":
            x = np.clip(x, -1, 1) * largest
        case "tiny":
            x = x * (1e-5 if dtype == "f16" else 1e-38)
        case "outlier":
            x[rng.integers(0, count)] = -1000.0
        case "alternating":
            x = np.where(np.arange(count) % 2, -1.0, 1.0)
        case "offset":
            x = 100 + 0.01 * x
        case "sparse":
            x = x * (rng.random(count) < 0.05)
        case "wide":
            x = x * np.exp2(rng.integers(-60, 60, count) if dtype != "f16" else rng.integers(-12, 12, count))
    held = torch.from_numpy(np.clip(x, -largest, largest).astype(np.float32)).to(DTYPES[dtype]).float()
    return torch.where(held.abs() > largest, held.sign() * (largest * 0.99), held).to(DTYPES[dtype]).float()


def gaussian(count: int, outliers: bool, seed: int = 0) -> torch.Tensor:
    """The two reference distributions: standard normal, and the same with one value in a thousand, at random, times 30."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(count)
    if outliers:
        x = np.where(rng.random(count) < 0.001, 30 * x, x)
    return torch.from_numpy(x.astype(np.float32))


def relative_error(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((y.double() - x.double()).norm() / x.double().norm())
