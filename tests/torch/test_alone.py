"""What does not need a second rank: caches, keys and gradients, over a gloo world of one in this process."""

from __future__ import annotations

import gc
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import coccl_dsl
import coccl_dsl.torch
from coccl_dsl.lang import files
from coccl_dsl.pipeline import load
from coccl_dsl.policy import read_policy_text
from coccl_dsl.runtime import dispatch
from coccl_dsl.torch import calls, claims, functions, roles
from coccl_dsl.torch.groups import Groups
from coccl_dsl.torch.patches import Patches
from coccl_dsl.torch.selection import Bound, loaded
from coccl_dsl.wire.codec import Codec


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


@pytest.mark.parametrize("compressor", ["int4(round=stochastic)", "error_feedback(int4(round=stochastic))"])
def test_a_rollback_to_before_an_ops_first_call_starts_it_anew(alone: None, compressor: str):
    groups = Groups(read_policy_text('[[rule]]\non = "dp"\ncompressor = "int8"'), print)
    groups.open(dist.group.WORLD)
    saved = groups.state_dict()
    local = coccl_dsl.compile("one_shot", q=compressor).bind(coccl_dsl.LocalGroup(2), like=torch.empty(100))
    (state,) = groups.states.values()
    bounds = [Bound(op, "one_shot", compressor, "dp.all_reduce") for op in local.ops]
    state.ops["call"], state.idle["message"] = bounds[0], [bounds[1]]
    xs = [torch.randn(100), torch.randn(100)]
    fresh, first = [op.state_dict() for op in local.ops], local(xs)
    assert not torch.equal(local(xs)[0], first[0])
    groups.load_state_dict(saved)
    for op, before in zip(local.ops, fresh, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(op.state_dict().values(), before.values(), strict=True))
    assert torch.equal(local(xs)[0], first[0])


def test_a_coalescing_region_that_raises_is_left(alone: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dist.ProcessGroup, "_start_coalescing", lambda pg, device: None)
    patches = Patches()
    claims.install(patches, Groups(read_policy_text('[[rule]]\non = "dp"\ncompressor = "int8"'), print))
    try:
        with pytest.raises(ZeroDivisionError), dist._coalescing_manager(device=torch.device("cpu")):
            assert roles.why_exact() == "inside a coalescing region"
            raise ZeroDivisionError
        assert roles.why_exact() == ""
    finally:
        patches.undo()


def test_a_log_is_named_by_the_rank_of_a_process_without_RANK(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.delenv("RANK", raising=False)
    groups = Groups(read_policy_text(f'log = "{tmp_path}/{{rank}}.jsonl"'), print)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    groups.open(dist.group.WORLD)
    dist.destroy_process_group()
    groups.close(None)
    assert [p.name for p in tmp_path.iterdir()] == ["1.jsonl"]


def test_edited_texts_are_read_again(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    coll = (files.shipped("algorithms") / "one_shot.coll").read_text().replace("one_shot", "mine")
    comp = (files.shipped("compressors") / "int8.comp").read_text().replace("int8(", "own(")
    coll = coll.replace("int8.comp", "own.comp").replace("int8(", "own(")
    for folder, group in (("a", 128), ("b", 64)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.coll").write_text(coll.replace("group=128", f"group={group}"))
        (tmp_path / folder / "own.comp").write_text(comp)

    def codec() -> Codec:
        return loaded("mine.coll").program("f32").codecs["q"]

    monkeypatch.chdir(tmp_path / "a")
    assert codec().group == 128 and loaded("mine.coll") is loaded("mine.coll")
    monkeypatch.chdir(tmp_path / "b")
    assert codec().group == 64
    Path("mine.coll").write_text(coll.replace("group=128", "group=32"))
    assert codec().group == 32
    dispatch.register(load("mine.coll"))
    torch.ops.coccl.mine(torch.ones(8), dist.group.WORLD.group_name)
    dispatch.register(load("mine.coll"))
    assert dispatch._entries["mine"].bound
    Path("own.comp").write_text(comp.replace("127", "100"))
    assert "100" in codec().text
    dispatch.register(load("mine.coll"))
    assert not dispatch._entries["mine"].bound


def test_a_mesh_that_does_not_fit_is_refused_by_name(alone: None):
    x = torch.ones(8)
    for options, words in (
        ({"mesh": {"nonsense": 99}, "algorithm": "two_shot"}, "mesh={'nonsense': 99}: `two_shot` runs on ranks"),
        ({"mesh": {"nonsense": 99}}, "mesh={'nonsense': 99} is not node=..., local=... of 1 ranks"),
        ({"mesh": {"a": 1, "b": 1}}, "is not node=..., local=..."),
        ({"mesh": {"node": 1, "local": 2}, "algorithm": "two_level"}, "is not node=..., local=... of 1 ranks"),
        ({"mesh": {"node": -1, "local": -1}}, "is not node=..., local=... of 1 ranks"),
    ):
        for call in (coccl_dsl.all_reduce, coccl_dsl.torch.all_reduce):
            with pytest.raises(coccl_dsl.BindError, match=re.escape(words)):
                call(x, **options)
    assert calls._nodes(dist.group.WORLD, x.device, {"local": 4, "node": 2}) == (2, 4)
    coccl_dsl.all_reduce(x, mesh={"local": 1, "node": 1})
