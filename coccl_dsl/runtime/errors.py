"""What the runtime raises. All of these name what differs or who is missing, and what to do."""

from __future__ import annotations


class BindError(ValueError):
    """A collective cannot be bound as asked: an argument is wrong, or the ranks do not agree."""


class CollectiveError(RuntimeError):
    """A call failed on the way; the op and its group can no longer be used. The output is undefined, and so are states over mapped memory and NCCL,
    which `state_dict` refuses to give. Inputs are as they were (an in-place input is undefined)."""


class CollectiveTimeout(CollectiveError):
    """A peer did not take part within the group's timeout."""
