"""The tensor dtypes that collectives take, by their names in the language."""

from __future__ import annotations

import torch

TORCH = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAMES = {v: k for k, v in TORCH.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """f32, bf16 or f16. Raises TypeError for any other dtype, by name."""
    name = NAMES.get(dtype)
    if name is None:
        raise TypeError(f"{dtype} tensors are not available: compressed collectives take float32, bfloat16 and float16")
    return name
