"""Small things about launching Triton kernels."""

from __future__ import annotations

import torch


class PinnedPointer:
    """A pinned host tensor as a kernel argument: under unified addressing its address is valid on the device, though Triton would refuse the
    CPU tensor itself."""

    def __init__(self, tensor: torch.Tensor):
        assert tensor.is_pinned()
        self.tensor = tensor
        self.dtype = tensor.dtype

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()
