"""Prepares the kernel that runs a whole call (one_launch_source.py): its tables for even and odd calls, its counters, its compiled variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .launch import OpContext, UserKernel
from .one_launch_source import PROGRAMS, Control, ExchangeArgs, ExchangePart, LaunchArgs, LaunchPart, one_launch_source
from .tiling import Tiling
from .triton_backend import DTYPES, Rows, compiled_once, function_of
from .triton_launch import UserLaunch
from .triton_source import row_of


def function_for(parts: Sequence[LaunchPart | ExchangePart], context: OpContext, shape: Tiling) -> Any:
    """The jit function of a call made of these parts."""
    return function_of(one_launch_source(parts, context.dtype, context.codecs, context.factor is not None, shape))


class OneLaunch:
    """A call of one count, ready to run: `launch.Prepared`. function: `function_for` of its steps."""

    def __init__(
        self,
        function: Any,
        steps: Sequence[LaunchArgs | ExchangeArgs],
        context: OpContext,
        control: Control,
        shape: Tiling,
    ):
        self.steps, self.context, self.control = steps, context, control
        index = context.rng.device.index or 0
        self.tables: list[torch.Tensor] = []
        self.aligned = True
        own: list[Any] = []
        for step in steps:
            own += self._launch(step) if isinstance(step, LaunchArgs) else [step.rows, step.signals, step.waits]
        factor = float(context.factor if context.factor is not None else 1.0)
        shared = [factor, context.rng, context.version, context.flags]
        # The status lies in host memory, which Triton would refuse as a tensor: given by its address.
        tail = [*own, *shared, control.turns, control.status, control.number, control.deadline]
        values = tuple(v.data_ptr() if isinstance(v, torch.Tensor) else v for v in tail)
        dtype = DTYPES[context.dtype]
        kinds = [v.dtype if isinstance(v, torch.Tensor) else v for v in tail]

        def compiled(aligned: bool) -> Any:
            def make() -> Any:
                kernel = function.warmup(
                    dtype, dtype, *kinds, ALIGNED=aligned, grid=(1,), num_warps=shape.warps, enable_fp_fusion=False
                )
                kernel = kernel.result() if hasattr(kernel, "result") else kernel
                assert kernel.run is not None, "loads the kernel"
                return kernel

            with torch.cuda.device(index):
                return compiled_once(function, (index, dtype, aligned), make)

        kernels = {a: compiled(a) for a in (True, False)}
        launch = UserLaunch(index, PROGRAMS, kernels, True, self.aligned, values)
        self.user_kernel: UserKernel | None = launch.user
        self.run = launch.run

    def _launch(self, step: LaunchArgs) -> list[Any]:
        signature, context = step.part.signature, self.context
        row = row_of(signature, context.codecs)
        even, odd = (Rows(row, signature, folds, context) for folds in (step.even, step.odd))
        assert (even.size, even.places_at, len(step.even)) == (odd.size, odd.places_at, len(step.odd))
        self.aligned = self.aligned and even.aligned
        values = [*even.values, *odd.values] or [[0]]
        table = torch.tensor(values, dtype=torch.int64).to(context.rng.device)
        self.tables.append(table)
        return [table, len(step.even), even.size, even.places_at]
