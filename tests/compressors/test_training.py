"""Error feedback on a real problem: what it saves, that it survives being saved, an Inf and another size. training.py has the problem."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

import coccl_dsl
from coccl_dsl.pipeline import load
from coccl_dsl.runtime.op import LocalOp
from tests.compressors import training

LOSSY = ("int4", "topk(k=5)", "sign1")


def bound(q: str, count: int = training.PARAMETERS) -> LocalOp:
    return load("two_shot").bind(coccl_dsl.LocalGroup(training.WORKERS), like=torch.zeros(count), op="avg", q=q)


@cache
def loss(q: str, steps: int) -> float:
    """At the end of the training, with the mean by two_shot through `q`; an empty q is the exact mean."""
    op = bound(q) if q else None
    return training.final_loss(training.train(op if op else lambda gs: [sum(gs[1:], gs[0]) / len(gs)], steps))


@pytest.mark.full
@pytest.mark.parametrize("q", LOSSY)
def test_with_error_feedback_training_ends_as_without_compression(q: str) -> None:
    assert loss(f"error_feedback({q})", 1000) <= 1.01 * loss("", 1000)


@pytest.mark.full
@pytest.mark.parametrize("q", LOSSY[1:])
def test_without_it_training_ends_worse(q: str) -> None:
    assert loss(q, 1000) >= 1.10 * loss("", 1000)


def test_the_short_form() -> None:
    """60 steps: error feedback follows, plain top-k does not."""
    exact = loss("", 60)
    assert loss("error_feedback(int4)", 60) == pytest.approx(exact, rel=0.01)
    assert loss("error_feedback(topk(k=5))", 60) < exact + 0.6 * (loss("topk(k=5)", 60) - exact)


CONTINUE = """
import sys, torch
torch.set_num_threads(1)
from tests.compressors.test_training import bound, training
saved = torch.load(sys.argv[1])
op = bound(saved["q"])
for one, state in zip(op.ops, saved["states"], strict=True):
    one.load_state_dict(state)
torch.save(training.train(op, saved["steps"], saved["w"], saved["at"]), sys.argv[2])
"""


@pytest.mark.parametrize("q", ["error_feedback(topk)", "error_feedback(int4(round=stochastic))"])
def test_a_saved_state_continues_bit_for_bit_in_a_new_process(q: str, tmp_path: Path) -> None:
    op, at, steps = bound(q), 5, 10
    w = training.train(op, at)
    saved = {"q": q, "w": w, "at": at, "steps": steps, "states": [one.state_dict() for one in op.ops]}
    torch.save(saved, tmp_path / "saved.pt")
    want = training.train(op, steps, w, at)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore", "-c", CONTINUE, str(tmp_path / "saved.pt"), str(tmp_path / "w.pt")]
    subprocess.run(command, check=True, cwd=root, timeout=300)
    assert torch.equal(torch.load(tmp_path / "w.pt"), want)
    assert not torch.equal(training.train(bound(q), steps, w, at), want), "the state matters"


@pytest.mark.parametrize("q", [f"error_feedback({q})" for q in LOSSY])
def test_an_inf_at_one_step_does_not_poison_later_ones(q: str) -> None:
    op = bound(q)
    w = training.train(op, 3)
    gs = training.gradients(w, 3)
    gs[1][5] = float("inf")
    before = [one.state_dict() for one in op.ops]
    assert not op(gs)[0].isfinite().all(), "the step shows it"
    for one, old in zip(op.ops, before, strict=True):
        for name, state in one.state_dict().items():
            assert name in old and state.float().isfinite().all()
    for step in range(4, 8):
        ys = op(training.gradients(w, step))
        assert all(y.isfinite().all() and torch.equal(y, ys[0]) for y in ys)


def test_training_goes_on_after_an_inf() -> None:
    op = bound("error_feedback(int4)")
    spoiled = training.final_loss(training.train(op, 40, spoil=10))
    assert spoiled == pytest.approx(loss("", 40), rel=0.02)


def test_another_size_starts_from_no_error() -> None:
    op, half = bound("error_feedback(int4)"), training.PARAMETERS // 2
    gs = training.gradients(torch.zeros(training.PARAMETERS), 0)
    first = op(gs)
    assert not torch.equal(op(gs)[0], first[0]), "the error of the first call is added"
    short = [g[:half] for g in gs]
    fresh = bound("error_feedback(int4)")(short)
    assert all(torch.equal(a, b) for a, b in zip(op(short), fresh, strict=True))
