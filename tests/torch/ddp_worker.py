"""One rank of the DDP tests: compressed training against exact, states over rebuilds, saving, DDP's own options, wrong use."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import torch
import torch._dynamo  # here, so that not every rank imports it
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from forks import fork_world, normal, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import coccl_dsl
from coccl_dsl import BindError, CompileError
from coccl_dsl.torch import DDPState, apply_ddp, ddp_hook

CAP = 0.004  # MiB: several buckets for a small model


def raises(kind, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind} with {words!r}")


class Net(nn.Module):
    """The order of use is not the order of registration, so DDP's rebuilt buckets differ from its first ones."""

    def __init__(self, unused: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.last, self.middle, self.first = nn.Linear(48, 4), nn.Linear(32, 48), nn.Linear(16, 32)
        self.unused = nn.Linear(8, 8) if unused else None

    def forward(self, x):
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = normal(32, 16, seed=1000 * step + rank)
    return x, torch.tanh(x @ normal(16, 4, seed=9))


def wrapped(state=None, **options) -> DistributedDataParallel:
    model = DistributedDataParallel(Net(options.pop("unused", False)), bucket_cap_mb=CAP, **options)
    if state is not None:
        model.register_comm_hook(state, ddp_hook)
    return model


def optimizer_for(model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model, optimizer, steps: range) -> float:
    loss = torch.tensor(0.0)
    for step in steps:
        x, y = batch(step, dist.get_rank())
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def same_everywhere(t: torch.Tensor) -> bool:
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t)
    return all(torch.equal(parts[0].view(torch.int32), p.view(torch.int32)) for p in parts)


def quality(model) -> float:
    x, y = batch(10_000, 0)
    with torch.no_grad():
        return nn.functional.mse_loss(model.module(x), y).item()


# ---------------------------------------------------------------- cases


def replicas_stay_equal(steps: int) -> None:
    exact = wrapped()
    train(exact, optimizer_for(exact), range(steps))
    best = quality(exact)
    ways = [{"compressor": "int8"}, {"compressor": "int4", "error_feedback": True}]
    if steps >= 200:
        ways += [
            {"compressor": "int4(round=stochastic)"},
            {"compressor": "int2", "error_feedback": True, "algorithm": "ring"},
        ]
    for options in ways:
        model = wrapped(DDPState(**options))
        train(model, optimizer_for(model), range(steps))
        assert same_everywhere(weights(model)), options
        assert quality(model) < 1.25 * best + 0.02, (options, quality(model), best)
        assert not torch.equal(weights(model), weights(exact)), "nothing was compressed"


def options_of_ddp() -> None:
    steps = range(5)
    plain = wrapped(DDPState("raw"))
    train(plain, optimizer_for(plain), steps)
    for options in (
        {"find_unused_parameters": True, "unused": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"gradient_as_bucket_view": True, "static_graph": True},
    ):
        compressed = wrapped(DDPState("int8", error_feedback=True), **options)
        train(compressed, optimizer_for(compressed), steps)
        assert same_everywhere(weights(compressed)), options
        got = torch.cat([p.detach().reshape(-1) for n, p in compressed.named_parameters() if "unused" not in n])
        assert (got - weights(plain)).abs().max() < 0.01, options
    # Gradients of steps without synchronisation are summed before the one that has it.
    model, other = wrapped(DDPState("raw")), wrapped()
    for m in (model, other):
        with m.no_sync():
            nn.functional.mse_loss(m(batch(0, dist.get_rank())[0]), batch(0, dist.get_rank())[1]).backward()
        nn.functional.mse_loss(m(batch(1, dist.get_rank())[0]), batch(1, dist.get_rank())[1]).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-6, atol=1e-7)


def nothing_is_lost_when_buckets_are_rebuilt() -> None:
    """What was given and what is owed add up to the exact sum of gradients, over rebuilds and loads. The model stays as it is."""
    for algorithm in ("two_shot", "one_shot", "ring", "halving_doubling", "recursive_doubling"):
        late = int(algorithm == "one_shot")  # parameters are first seen in DDP's first buckets all the same
        state = DDPState("int2", algorithm, error_feedback=True, after_step=late)
        model, exact = wrapped(state), wrapped()
        given = wanted = torch.zeros_like(weights(model))
        layouts = set()
        for step in range(6):
            for m in (model, exact):
                m.zero_grad()
                x, y = batch(step, dist.get_rank())
                nn.functional.mse_loss(m(x), y).backward()
            given = given + torch.cat([p.grad.reshape(-1) for p in model.parameters()])
            wanted = wanted + torch.cat([p.grad.reshape(-1) for p in exact.parameters()])
            layouts.add(tuple(tuple(b.names) for b in state._buckets.values()))
            if step == 3:  # as a new process would, whose first buckets are others
                saved = state.state_dict()
                state = DDPState("int2", algorithm, error_feedback=True, after_step=late)
                model = wrapped(state)
                state.load_state_dict(saved)
        assert len(layouts) > 1, "the buckets were not rebuilt"
        owed = torch.zeros_like(given)
        position, at = {}, 0
        for p in model.parameters():
            position[state._names[p]] = at
            at += p.numel()
        from coccl_dsl.torch.ddp import _debts, _keep

        for bucket in state._buckets.values():
            for name, debt in _debts(_keep(bucket), owed.device).items():
                owed[position[name] : position[name] + debt.numel()] += debt
        dist.all_reduce(owed)
        assert not state._owed and not state._kept
        error = (given + owed - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-5, (algorithm, error)
        assert (given - wanted).abs().max() / wanted.abs().max() > 1e-3, "int2 would lose nothing"


def continues_bit_for_bit(folder: Path) -> None:
    for name, options in (
        ("feedback", {"compressor": "int4", "error_feedback": True}),
        ("stochastic", {"compressor": "int4(round=stochastic)", "seed": 3}),
    ):
        state = DDPState(**options)
        model = wrapped(state)
        optimizer = optimizer_for(model)
        train(model, optimizer, range(8))
        dcp.save({"model": model.state_dict(), "hook": state}, checkpoint_id=folder / name)
        momentum = copy.deepcopy(optimizer.state_dict())
        pickled = pickle.dumps(state)
        train(model, optimizer, range(8, 14))
        # A process that has just begun: one backward rebuilds the buckets, then everything is loaded.
        for way in ("checkpoint", "pickle"):
            fresh = pickle.loads(pickled) if way == "pickle" else DDPState(**options)
            again = wrapped(fresh)
            for _ in range(2):
                nn.functional.mse_loss(again(batch(0, 0)[0]), batch(0, 0)[1]).backward()
            other = optimizer_for(again)
            saved = {"model": again.state_dict(), "hook": fresh}
            dcp.load(saved, checkpoint_id=folder / name)
            again.load_state_dict(saved["model"])
            other.load_state_dict(copy.deepcopy(momentum))
            train(again, other, range(8, 14))
            assert torch.equal(weights(again), weights(model)), (name, way)
            assert same_everywhere(weights(again))


def overflow_is_forgotten() -> None:
    state = DDPState("int8", error_feedback=True)
    model = wrapped(state)
    optimizer = optimizer_for(model)
    train(model, optimizer, range(2))
    x, y = batch(2, dist.get_rank())
    (nn.functional.mse_loss(model(x), y) * float("inf")).backward()
    assert not all(torch.isfinite(p.grad).all() for p in model.parameters()), "an overflow has to be seen"
    train(model, optimizer, range(3, 5))
    assert torch.isfinite(weights(model)).all() and same_everywhere(weights(model))


def wrong_use() -> None:
    raises(ValueError, "error_feedback=True", lambda: DDPState("error_feedback(int4)"))
    raises(CompileError, "int9", lambda: DDPState("int9"))
    raises(CompileError, "int9", lambda: DDPState({"a": "int9"}))
    raises(BindError, "not all_reduce", lambda: DDPState(algorithm="all_gather_ring"))
    raises(BindError, "no compressor z", lambda: DDPState({"z": "int8"}, "ring"))
    DDPState("lossless_bf16")
    raises(TypeError, "takes a DistributedDataParallel", lambda: apply_ddp(nn.Linear(2, 2)))
    double = DistributedDataParallel(nn.Linear(4, 4).double())
    double.register_comm_hook(DDPState(), ddp_hook)
    raises(TypeError, "float64", lambda: double(torch.ones(1, 4, dtype=torch.float64)).sum().backward())
    alone = dist.new_group([0])
    other = wrapped(DDPState(group=alone))
    if dist.get_rank() == 1:
        raises(BindError, "not a member", lambda: other(batch(0, 0)[0]).sum().backward())
    else:
        other(batch(0, 0)[0]).sum().backward()
    kept = DDPState("weight_delta4")
    model = wrapped(kept)  # a DDP that is collected takes its hook along
    raises(BindError, "weight_delta4", lambda: model(batch(0, 0)[0]).sum().backward())
    raises(ValueError, "no part 'rank", lambda: kept.load_state_dict({"rank7": b""}))
    from coccl_dsl.torch.saving import saved

    other = saved({"world": 64, "steps": 0, "kept": [], "owed": {}})
    raises(ValueError, "64 ranks", lambda: kept.load_state_dict({f"rank{dist.get_rank()}": other}))


def small_things() -> None:
    late = DDPState("int2", after_step=3)
    model, exact = wrapped(late), wrapped(DDPState("raw"))
    optimizers = optimizer_for(model), optimizer_for(exact)
    for m, o in zip((model, exact), optimizers, strict=True):
        train(m, o, range(3))
    assert torch.equal(weights(model), weights(exact)) and late.steps == 3
    for m, o in zip((model, exact), optimizers, strict=True):
        train(m, o, range(3, 4))
    assert not torch.equal(weights(model), weights(exact))
    grouped = DistributedDataParallel(Net(), process_group=dist.new_group([0, 1]))
    state = apply_ddp(grouped, "int4", error_feedback=True)
    train(grouped, optimizer_for(grouped), range(2))
    assert state.group is grouped.process_group and state.memory() > 0
    told = coccl_dsl.torch.report()
    assert any(c.role == "dp" and c.op == "all_reduce" and "int4" in c.compressor for c in told.compressed)
    assert any("error feedback" in m.what for m in told.memory)
    state.reset()
    assert all(not e.any() for b in state._buckets.values() for e in b.op.states())
    train(grouped, optimizer_for(grouped), range(2))
    unpickled = pickle.loads(pickle.dumps(state))
    again = wrapped(unpickled)
    raises(ValueError, "set state.group", lambda: again(batch(0, 0)[0]).sum().backward())


def main() -> None:
    start()
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    for case in (
        lambda: replicas_stay_equal(steps),
        options_of_ddp,
        nothing_is_lost_when_buckets_are_rebuilt,
        lambda: continues_bit_for_bit(folder),
        overflow_is_forgotten,
        wrong_use,
        small_things,
    ):
        case()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    fork_world(2, main)
