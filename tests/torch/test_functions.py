"""torch.distributed's own signatures, over real gloo processes."""

from __future__ import annotations

from worlds import spawn


def test_torchs_signatures_give_simulates_bits():
    spawn("../torch/functions_worker.py", 1)
