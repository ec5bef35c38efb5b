"""Policies: which collectives of a training job run compressed, and how. Nothing here imports torch.

[[rule]]
on = "dp.all_reduce"
compressor = "int8"
"""

from .model import CALL_OPS, ROLES, Call, Policy, Rule, Selector
from .read import read_policy, read_policy_text

__all__ = ["CALL_OPS", "ROLES", "Call", "Policy", "Rule", "Selector", "read_policy", "read_policy_text"]
