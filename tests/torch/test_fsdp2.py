"""FSDP2's collectives, over real gloo processes."""

from __future__ import annotations

import pytest
from worlds import spawn


def test_fsdp2_with_compressed_weights_and_gradients(tmp_path):
    spawn("../torch/fsdp2_worker.py", 1, str(tmp_path), "15")


@pytest.mark.full
def test_weights_are_equal_after_200_steps(tmp_path):
    spawn("../torch/fsdp2_worker.py", 1, str(tmp_path), "200")
