"""Launching a small Triton kernel with fixed arguments, past the dispatcher that would look at them at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.runtime import driver


class PinnedPointer:
    """A pinned host tensor as a kernel argument: under unified addressing its address is valid on the device, though Triton would refuse the
    CPU tensor itself."""

    def __init__(self, tensor: torch.Tensor):
        assert tensor.is_pinned()
        self.tensor = tensor
        self.dtype = tensor.dtype

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()


def frozen(
    function: Any,
    grid: int,
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
    device: torch.device,
    warps: int = 1,
) -> Callable[[], None]:
    """A launch of `function` with these arguments, on the stream that is current when it is called. Compiles now.

    The caller keeps alive what the arguments point to.
    """
    index = device.index or 0
    with torch.cuda.device(index):
        kernel = function.warmup(*arguments, **constants, grid=(1,), num_warps=warps)
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        run, handle, metadata = kernel.run, kernel.function, kernel.packed_metadata
    values = tuple(a.data_ptr() if hasattr(a, "data_ptr") else a for a in arguments) + tuple(constants.values())
    active: Any = driver.active
    stream_of, current = active.get_current_stream, torch.cuda.current_device

    def launch() -> None:
        if current() != index:
            with torch.cuda.device(index):
                return launch()
        run(grid, 1, 1, stream_of(index), handle, metadata, None, None, None, *values)

    return launch
