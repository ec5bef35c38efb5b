"""coccl_dsl in PyTorch.

c10d, pairs     torch.distributed's own functions, in place, with a compressor: all_reduce, reduce_scatter_tensor, batch_isend_irecv, ...
library         torch.ops.coccl: functional and in-place operators, for autograd and torch.compile
ddp             a communication hook for DistributedDataParallel
fsdp2           collectives for fully_shard
checkpointing   stochastic rounding in regions that run twice
transparent     a policy for a training script that stays as it is: coccl_dsl.enable, COCCL_POLICY
traffic         what happened: report()

`coccl_dsl.all_reduce` and its like give new tensors; those of this package write into the tensors they are given, as torch.distributed's do.
"""

from . import checkpointing, library
from .c10d import all_gather_into_tensor, all_reduce, all_to_all_single, broadcast, reduce, reduce_scatter_tensor
from .ddp import DDPState, apply_ddp, ddp_hook
from .fsdp2 import FSDPPolicy, FSDPState, apply_fsdp2
from .library import copy_to_group
from .pairs import batch_isend_irecv, irecv, isend, recv, send
from .traffic import report
from .transparent import TransparentState

__all__ = [
    "DDPState",
    "FSDPPolicy",
    "FSDPState",
    "TransparentState",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "apply_ddp",
    "apply_fsdp2",
    "batch_isend_irecv",
    "broadcast",
    "copy_to_group",
    "ddp_hook",
    "irecv",
    "isend",
    "library",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "report",
    "send",
]

checkpointing.install()
