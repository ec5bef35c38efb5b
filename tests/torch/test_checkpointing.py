"""Activation checkpointing, over real gloo processes."""

from __future__ import annotations

import torch.utils.checkpoint as module
from worlds import spawn

from coccl_dsl.torch import checkpointing


def test_a_region_that_runs_twice_sends_the_same_wires():
    spawn("../torch/checkpointing_worker.py", 1)


def test_checkpoint_is_wrapped_once():
    wrapped = module.checkpoint
    checkpointing.install()
    assert module.checkpoint is wrapped and wrapped.__name__ == "checkpoint" and wrapped.__wrapped__ is not wrapped
