"""Checkpoints by torch.distributed.checkpoint: weights, optimizer, the compressors' states, the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from coccl_dsl.torch import TransparentState

# Each pipeline stage has its own parameters, and names them in the optimizer's state as the model does.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


class Checkpoint:
    """What a run is, for saving it and going on with it. `step` is the number of steps done."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer = model, optimizer

    def save(self, folder: Path, step: int) -> Path:
        """Collective. Writes FOLDER/step_N."""
        path = folder / f"step_{step}"
        dcp.save(self._state(step), checkpoint_id=path)
        return path

    def load(self, path: Path) -> int:
        """Collective, after one forward and backward: the compressors' states are then there to be filled. Returns the step."""
        state = self._state(0)
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=OPTIONS,
        )
        return int(state["step"])

    def _state(self, step: int) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer, options=OPTIONS)
        return {"model": model, "optimizer": optimizer, "coccl_dsl": TransparentState(), "step": torch.tensor(step)}
