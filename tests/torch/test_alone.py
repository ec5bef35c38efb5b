"""What does not need a second rank: caches, keys and gradients, over a gloo world of one in this process."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import coccl_dsl
import coccl_dsl.torch
from coccl_dsl.runtime import dispatch
from coccl_dsl.torch import functions


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


def test_threads_make_first_calls_of_a_group_side_by_side(alone: None):
    """Each first call of a size used to look through the calls of all sizes, while another thread added its own."""
    raised: list[BaseException] = []

    def call(start: int) -> None:
        try:
            for count in range(start, 1600, 2):
                coccl_dsl.all_reduce(torch.ones(count))
        except BaseException as e:
            raised.append(e)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call, args=(start,)) for start in (1, 2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not raised and len(functions._quick[dist.group.WORLD]) == 1599


def test_a_destroyed_group_is_freed_with_its_ops(alone: None):
    dispatch.register(coccl_dsl.compile("two_shot"))
    group = dist.new_group([0])
    for _ in range(2):
        coccl_dsl.all_reduce(torch.ones(8), group=group)
        coccl_dsl.torch.all_reduce(torch.ones(8), group=group)
        torch.ops.coccl.two_shot(torch.ones(8), group.group_name)
    held = [weakref.ref(group), *(weakref.ref(op) for op in functions._quick[group].values())]
    coccl_dsl.all_reduce(torch.ones(8))
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert len(held) == 2 and not any(r() for r in held)
    assert list(functions._quick) == [dist.group.WORLD]
