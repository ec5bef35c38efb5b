"""What a bound op takes and refuses, in this process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from worlds import free_ports

from coccl_dsl import BindError, LocalGroup, codec, simulate
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.simulate import SimState


@pytest.fixture
def alone(monkeypatch):
    """A process group of this process."""
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_ports(1),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert not dist.is_initialized()
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def test_the_result_of_a_group_of_one_is_a_new_tensor(alone):
    x = torch.randn(10)
    op = load("two_shot").bind(like=x)
    y = op(x)
    assert torch.equal(x, y) and y.data_ptr() != x.data_ptr()
    assert op(x, out=x) is x
    big = torch.zeros(11)
    with pytest.raises(ValueError, match="overlaps"):
        op(big[:10], out=big[1:])
    with pytest.raises(ValueError, match="11 elements do not fit"):
        op(torch.randn(11))
    with pytest.raises(ValueError, match="nothing to keep"):
        op.load_state_dict({"nonsense": x})
    with pytest.raises(ValueError, match="x has 10 elements"):
        load("all_to_all_direct").bind(like=x)(x, input_splits=[3], output_splits=[10])


def test_a_local_group_of_one_checks_splits_as_well():
    op = load("all_to_all_direct").bind(LocalGroup(1), like=torch.ones(8))
    assert torch.equal(op([torch.arange(8.0)], splits=[[8]])[0], torch.arange(8.0))
    with pytest.raises(ValueError, match="x has 8 elements"):
        op([torch.ones(8)], splits=[[3]])


def test_a_local_group_refuses_tensors_of_different_sizes():
    op = load("one_shot").bind(LocalGroup(2), like=torch.empty(128))
    with pytest.raises(ValueError, match=r"different numbers of elements: \[100, 128\]"):
        op([torch.ones(128), torch.ones(100)])


def test_tensors_without_memory_of_their_own_are_waited_for_or_refused(alone):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    x = torch.randn(10)
    op = load("two_shot").bind(like=x)
    assert torch.equal(op(AsyncCollectiveTensor(x)), x)
    with pytest.raises(TypeError, match=r"x is a DTensor.*to_local"):
        op(distribute_tensor(x, init_device_mesh("cpu", (1,))))
    with pytest.raises(TypeError, match="x is list"):
        op([1.0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity": True}, "capacity=True"),
        ({"fuse": "no"}, "fuse='no'"),
        ({"graphs": 1}, "graphs=1"),
        ({"root": 1}, "root=1: `two_shot` is all_reduce"),
        ({"op": dist.ReduceOp.AVG}, "'sum', 'avg'"),
        ({"depth": True}, "depth=True"),
        ({"arena_bytes": True}, "arena_bytes=True"),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(options, said):
    with pytest.raises(BindError) as e:
        load("two_shot").bind(LocalGroup(2), like=torch.ones(8), **options)
    assert said in str(e.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: simulate(load("ring"), torch.ones(2, 5)), "a list of tensors"),
        (lambda: simulate(load("ring"), [[1.0], [2.0]]), "a list of tensors"),
        (lambda: simulate("ring", [torch.ones(5)] * 2), r"coccl_dsl.compile\('ring'\)"),
        (lambda: LocalGroup(0), "a number of ranks"),
        (lambda: codec(None), "the text of a compressor"),
        (lambda: codec("int8", seed=2**70), "whole number of 64 bits"),
        (lambda: codec("int8").compress([1.0]), "x is list"),
        (lambda: codec("int8").decompress(torch.ones(3)), "what `compress` gave"),
    ],
)
def test_arguments_of_other_kinds_are_named(call, said):
    with pytest.raises((TypeError, ValueError), match=said):
        call()


def test_bind_needs_a_tensor_also_of_a_local_group():
    with pytest.raises(BindError, match="like=x"):
        load("two_shot").bind(LocalGroup(2))


def test_simulate_starts_afresh_with_another_count_as_the_op_does():
    c, state = load("two_shot"), SimState()
    op = c.bind(LocalGroup(2), like=torch.ones(1024), q="error_feedback(int4)")
    for count in (1024, 1024, 512, 512, 1024):
        xs = [torch.randn(count, generator=torch.Generator().manual_seed(count + r)) for r in range(2)]
        want = simulate(c, xs, state=state, q="error_feedback(int4)")
        assert all(torch.equal(a, b) for a, b in zip(op(xs), want, strict=True)), count
