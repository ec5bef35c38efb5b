"""coccl_dsl in PyTorch: torch.distributed's calls with compression, torch.ops.coccl, DDP and FSDP2, activation checkpointing."""

from . import checkpointing, library
from .ddp import DDPState, apply_ddp, ddp_hook
from .traffic import report

__all__ = ["DDPState", "apply_ddp", "ddp_hook", "library", "report"]

checkpointing.install()
