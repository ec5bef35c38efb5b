"""torch.ops.coccl, over real gloo processes: gradients, opcheck, compiled graphs."""

from __future__ import annotations

import pytest
from worlds import spawn


def test_operators_are_differentiable_and_compile():
    spawn("../torch/library_worker.py", 1)


@pytest.mark.full
def test_operators_compile_with_inductor():
    spawn("../torch/library_worker.py", 1, "inductor")
