"""What does not need a second rank: caches, keys and gradients, over a gloo world of one in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import coccl_dsl
import coccl_dsl.torch
from coccl_dsl.runtime import dispatch


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.mark.parametrize("name", "two_shot all_gather_direct reduce_scatter_direct all_to_all_direct tree_broadcast tree_reduce".split())  # fmt: skip
def test_the_gradient_of_a_registered_text_has_the_ops_factor(alone: None, name: str):
    dispatch.register(coccl_dsl.compile(name))
    x = torch.ones(8, requires_grad=True)
    y = getattr(torch.ops.coccl, name)(x, dist.group.WORLD.group_name, "premul(0.5)")
    y.sum().backward()
    assert x.grad is not None
    assert y.tolist() == x.grad.tolist() == [0.5] * 8
