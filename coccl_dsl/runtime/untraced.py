"""Python that torch.compile is to leave alone. torch.compiler.disable would cost every call a microsecond, and import Dynamo."""

from __future__ import annotations

from typing import Any

import torch


def leave_untraced(function: Any) -> None:
    """Neither the function nor what it calls is traced: not where it runs between the graphs of torch.compile, as a kernel of an operator does,
    and not where a compiled function calls it, which breaks the graph there."""
    frames: Any = torch._C._dynamo.eval_frame  # pyright: ignore
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    plain = getattr(function, "__func__", function)
    frames.set_code_exec_strategy(plain.__code__, skip)
    plain._torchdynamo_disable = True
