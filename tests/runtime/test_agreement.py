"""How the ranks of a group find a part of the store that no earlier group of that name has written to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from coccl_dsl.runtime.agreement import _agreed_life
from coccl_dsl.runtime.errors import BindError


def lives(store, delays, timeout: float = 20) -> list[str]:
    def one(rank: int) -> str:
        time.sleep(delays[rank])
        return _agreed_life(store, rank, len(delays), timedelta(seconds=timeout), "bind")

    with ThreadPoolExecutor(len(delays)) as pool:
        return list(pool.map(one, range(len(delays))))


def test_each_life_has_a_name_of_its_own_that_all_ranks_know():
    store = dist.HashStore()
    found = []
    for delays in ([0, 0, 0], [0, 0.3, 0], [0.3, 0, 0.1], [0, 0, 0.3], [0.1, 0.2, 0]):
        names = set(lives(store, delays))
        assert len(names) == 1, "some rank took a word of an earlier life"
        found += names
    assert len(set(found)) == 5


def test_who_does_not_come_is_named_also_where_an_earlier_life_left_words():
    store = dist.HashStore()
    lives(store, [0, 0, 0])
    with pytest.raises(BindError, match=r"bind: ranks \[1, 2\] did not bind within 0.2 s"):
        _agreed_life(store, 0, 3, timedelta(seconds=0.2), "bind")
    with pytest.raises(BindError, match=r"ranks \[1, 2\]"):
        _agreed_life(dist.HashStore(), 0, 3, timedelta(seconds=0.2), "bind")
