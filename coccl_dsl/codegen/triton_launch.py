"""Launching a small Triton kernel with fixed arguments, past the dispatcher that would look at them at every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.runtime import driver

from .launch import UserKernel


class PinnedPointer:
    """A pinned host tensor as a kernel argument: under unified addressing its address is valid on the device, though Triton would refuse the
    CPU tensor itself."""

    def __init__(self, tensor: torch.Tensor):
        assert tensor.is_pinned()
        self.tensor = tensor
        self.dtype = tensor.dtype

    def data_ptr(self) -> int:
        return self.tensor.data_ptr()


def launcher(kernel: Any) -> tuple[Any, tuple[Any, ...]]:
    """What launches a compiled kernel: called with (grid, 1, 1, stream, function, *second, metadata, None, None, None, *arguments), where the
    second of the pair is what this gives. Beneath Triton's launcher, whose Python finds room for scratch memory, where there is none to find:
    that saves a third of a launch."""
    run = kernel.run
    known = triton.__version__.startswith("3.6.")
    if known and run.global_scratch_size == 0 and run.profile_scratch_size == 0:
        return run.launch, (run.launch_cooperative_grid, run.launch_pdl, None, None)
    return run, ()


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
        assert kernel.run is not None, "loads the kernel"
        run, own = launcher(kernel)
        handle = kernel.function
    values = tuple(a.data_ptr() if hasattr(a, "data_ptr") else a for a in arguments) + tuple(constants.values())
    rest = (handle, *own, kernel.packed_metadata, None, None, None, *values)
    active: Any = driver.active
    stream_of, current = active.get_current_stream, torch.cuda.current_device

    def launch() -> None:
        if current() != index:
            with torch.cuda.device(index):
                return launch()
        run(grid, 1, 1, stream_of(index), *rest)

    return launch


class UserLaunch:
    """Launches of a kernel whose arguments are the addresses of x and y, fixed ones, and constants, of which ALIGNED is the first.

    kernels  compiled: aligned -> kernel; the aligned one is for offsets and addresses that keep 16 bytes
    user     what an update of a captured node needs, or None for a kernel that touches neither x nor y
    """

    def __init__(
        self,
        index: int,
        grid: int,
        kernels: dict[bool, Any],
        touches_user: bool,
        offsets_aligned: bool,
        tail: tuple[Any, ...],
        constants: tuple[Any, ...] = (),
    ):
        launches: dict[bool, tuple[Any, ...]] = {}
        variants: dict[bool, tuple[int, int]] = {}
        for aligned, kernel in kernels.items():
            launch, own = launcher(kernel)
            # No launch metadata and no hooks.
            launches[aligned] = launch, (kernel.function, *own, kernel.packed_metadata, None, None, None)
            variants[aligned] = kernel.function, kernel.metadata.shared
        self.user = UserKernel(variants, offsets_aligned) if touches_user else None
        active: Any = driver.active
        stream_of, current_device = active.get_current_stream, torch.cuda.current_device

        def run(x: torch.Tensor, y: torch.Tensor) -> None:
            if current_device() != index:
                with torch.cuda.device(index):
                    return run(x, y)
            px, py = x.data_ptr(), y.data_ptr()
            aligned = not touches_user or (offsets_aligned and (px | py) & 15 == 0)
            launch, before = launches[aligned]
            # The kernel's arguments, constants included.
            launch(grid, 1, 1, stream_of(index), *before, px, py, *tail, aligned, *constants)

        self.run = run
