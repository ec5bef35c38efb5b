"""The workload of `coccl-compile --run` is real, differs between ranks and can be repeated."""

from __future__ import annotations

import pytest
import torch

from coccl_dsl.cli.gradients import gradients


@pytest.fixture(scope="module")
def first() -> dict[str, torch.Tensor]:
    return gradients(0, 2)


def test_every_group_is_a_flat_finite_tensor_with_something_in_it(first: dict[str, torch.Tensor]):
    assert set(first) == {"embedding", "attention", "mlp", "norm", "head"}
    for grad in first.values():
        assert grad.dtype == torch.float32 and grad.dim() == 1 and grad.is_contiguous()
        assert grad.isfinite().all() and grad.count_nonzero() > grad.numel() // 4
    assert 3_000_000 < sum(g.numel() for g in first.values()) < 6_000_000


def test_ranks_bring_different_gradients_of_the_same_shapes(first: dict[str, torch.Tensor]):
    second = gradients(1, 2)
    assert {k: v.shape for k, v in first.items()} == {k: v.shape for k, v in second.items()}
    assert all(not torch.equal(first[k], second[k]) for k in first)


def test_equal_arguments_give_equal_bits_and_leave_the_random_state_alone(first: dict[str, torch.Tensor]):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    with torch.no_grad():
        again = gradients(0, 2)
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert torch.equal(before, torch.get_rng_state())


def test_another_seed_is_another_model(first: dict[str, torch.Tensor]):
    assert not torch.equal(first["head"], gradients(0, 2, seed=1)["head"])


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 100_000)])
def test_a_rank_without_a_share_of_the_text_is_refused(rank: int, world: int):
    with pytest.raises(ValueError, match=r"rank|ranks"):
        gradients(rank, world)
