"""The DDP hook, over real gloo processes."""

from __future__ import annotations

import pytest
from worlds import spawn


def test_ddp_with_compressed_gradients(tmp_path):
    spawn("../torch/ddp_worker.py", 1, str(tmp_path), "30")


@pytest.mark.full
def test_replicas_are_equal_after_200_steps(tmp_path):
    spawn("../torch/ddp_worker.py", 1, str(tmp_path), "200")
