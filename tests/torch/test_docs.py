"""docs/pytorch.md's second part on two ranks; tests/docs runs it on one."""

from __future__ import annotations

import pytest
from worlds import spawn


@pytest.mark.full
def test_the_documented_calls_run_on_two_ranks(tmp_path):
    spawn("../torch/docs_worker.py", 1, str(tmp_path))
