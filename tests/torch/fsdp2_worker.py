"""One rank of the FSDP2 tests: compressed training against exact, every reduction FSDP asks for, hybrid sharding, saving, wrong use."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch._dynamo  # here, so that not every rank imports it
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from forks import CUDA, fork_world, normal, start
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

import coccl_dsl.torch
from coccl_dsl import BindError, CollectiveError, CompileError
from coccl_dsl.policy import Policy, read_policy_text
from coccl_dsl.torch import FSDPPolicy, apply_fsdp2
from coccl_dsl.torch.fsdp2 import _group_of


def raises(kind, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind} with {words!r}")


class Net(nn.Module):
    def __init__(self, checkpointed: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.checkpointed = checkpointed

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = checkpoint(self.middle, x, use_reentrant=False) if self.checkpointed else self.middle(x)
        return self.last(torch.relu(x))


def sharded(
    policy: FSDPPolicy | Policy | str | Path | None, checkpointed: bool = False, **options
) -> tuple[nn.Module, object]:
    model = Net(checkpointed)
    for part in (model.middle, model):
        fully_shard(part, **options)
    return model, apply_fsdp2(model, policy) if policy is not None else None


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = normal(32, 16, seed=1000 * step + rank)
    return x, torch.tanh(x @ normal(16, 4, seed=9))


def optimizer_for(model) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model, optimizer, steps: range) -> float:
    loss = torch.tensor(0.0)
    for step in steps:
        x, y = batch(step, dist.get_rank())
        loss = nn.functional.mse_loss(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def locals_of(model) -> torch.Tensor:
    return torch.cat([p.to_local().detach().reshape(-1) for p in model.parameters()])


def gradients_of(model) -> torch.Tensor:
    return torch.cat([p.grad.full_tensor().reshape(-1) for p in model.parameters()])


def used_weights(model) -> torch.Tensor:
    """The unsharded weights of a forward on this rank, as gathered."""
    parts = [m for m in model.modules() if isinstance(m, FSDPModule)]
    for m in parts:
        m.unshard()
    found = torch.cat([p.detach().reshape(-1).float() for p in model.parameters()])
    for m in parts:
        m.reshard()
    return found


def same_on(group, t: torch.Tensor) -> bool:
    parts = [torch.empty_like(t) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, t, group=group)
    return all(torch.equal(parts[0].view(torch.int32), p.view(torch.int32)) for p in parts)


def quality(model) -> float:
    x, y = batch(10_000, 0)
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x).float(), y).item()
    model.reshard()
    return loss


# ---------------------------------------------------------------- cases


def training(steps: int) -> None:
    exact, _ = sharded(None)
    train(exact, optimizer_for(exact), range(steps))
    best = quality(exact)
    policies = [
        FSDPPolicy(gradients="int4", weights="int8"),
        FSDPPolicy(gradients=None, weights="weight_delta4"),
        FSDPPolicy(gradients="error_feedback(int4)", algorithm={"gradients": "reduce_scatter_ring"}),
    ]
    if steps >= 200:
        policies += [
            FSDPPolicy(gradients="int8"),
            FSDPPolicy(gradients="int4", weights="weight_delta4"),
            FSDPPolicy(gradients="int8(round=stochastic)", weights="weight_delta8"),
        ]
    for policy in policies:
        model, state = sharded(policy)
        train(model, optimizer_for(model), range(steps))
        assert same_on(None, used_weights(model)), policy
        assert quality(model) < 1.25 * best + 0.03, (policy, quality(model), best)
        assert not torch.equal(locals_of(model), locals_of(exact)), "nothing was compressed"
        kept = "weight_delta" in str(policy.weights) or "feedback" in str(policy.gradients)
        assert (state.memory() > 0) == kept
    told = coccl_dsl.torch.report()
    assert {c.op for c in told.compressed if c.role == "fsdp"} == {"reduce_scatter", "all_gather"}
    assert any(m.what == "compressors of FSDP2" for m in told.memory)


def hybrid_mesh():
    return init_device_mesh("cuda" if CUDA else "cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def nothing(module) -> None:
    pass


def every_reduction() -> None:
    """Gradients of one step against those of FSDP itself."""
    policies = FSDPPolicy(gradients="raw", weights="raw"), FSDPPolicy(gradients="int8", replicas="int8")
    n = dist.get_world_size()
    mesh = hybrid_mesh() if n == 4 else None
    bf16, f32, f16 = torch.bfloat16, torch.float32, torch.float16
    cases = {
        "plain": ({}, nothing, 1e-6),
        "bf16 with f32 gradients": ({"mp_policy": MixedPrecisionPolicy(bf16, f32)}, nothing, 1e-6),
        "bf16": ({"mp_policy": MixedPrecisionPolicy(bf16, bf16)}, nothing, 2e-2),
        "f16": ({"mp_policy": MixedPrecisionPolicy(f16, f16)}, nothing, 4e-3),
        "force sum": ({}, lambda m: m.set_force_sum_reduction_for_comms(True), 1e-6),
        "factor of the world": ({}, lambda m: m.set_gradient_divide_factor(float(n)), 1e-6),
        "factor 8": ({}, lambda m: m.set_gradient_divide_factor(8.0), 1e-6),
        "hybrid": ({"mesh": mesh}, nothing, 1e-6),
        "hybrid force sum": ({"mesh": mesh}, lambda m: m.set_force_sum_reduction_for_comms(True), 1e-6),
        "hybrid factor 8": ({"mesh": mesh}, lambda m: m.set_gradient_divide_factor(8.0), 1e-6),
        "hybrid f16": ({"mesh": mesh, "mp_policy": MixedPrecisionPolicy(f16, f16)}, nothing, 4e-3),
        "kept": ({"reshard_after_forward": False}, nothing, 1e-6),
        "post forward mesh": ({"reshard_after_forward": 2}, nothing, 1e-6),
    }
    x, y = batch(1, dist.get_rank())

    def gradients(policy, options, change) -> tuple[torch.Tensor, nn.Module]:
        model, _ = sharded(policy, **options)
        for m in (model.middle, model):
            change(m)
        nn.functional.mse_loss(model(x).float(), y).backward()
        return gradients_of(model), model

    for name, (options, change, tolerance) in cases.items():
        if n < 4 and ("hybrid" in name or "mesh" in name):
            continue
        eighth = "factor 8" in name  # of which gloo knows nothing
        want = gradients(None, options, nothing if eighth else change)[0] * (n / 8 if eighth else 1)
        for policy, allowed in zip(policies, (tolerance, 0.03), strict=True):
            got, model = gradients(policy, options, change)
            error = (got - want).abs().max() / want.abs().max()
            assert error < allowed, (name, policy.gradients, error)
            if "hybrid" in name:
                local = torch.cat([p.grad.to_local().reshape(-1) for p in model.parameters()])
                assert same_on(mesh.get_group("replicate"), local), name


def hybrid_training(steps: int) -> None:
    mesh = hybrid_mesh()
    exact, _ = sharded(None)
    train(exact, optimizer_for(exact), range(steps))
    policy = FSDPPolicy(gradients="int4", weights="int8", replicas="error_feedback(int4)")
    model, _ = sharded(policy, mesh=mesh)
    optimizer = optimizer_for(model)
    train(model, optimizer, range(steps))
    assert same_on(mesh.get_group("replicate"), locals_of(model)) and same_on(None, used_weights(model))
    assert quality(model) < 1.25 * quality(exact) + 0.03
    assert any(c.op == "all_reduce" for c in coccl_dsl.torch.report().compressed if c.role == "fsdp")
    # Gradients of steps without the all-reduce are summed up first.
    for m in (model, exact):
        m.set_requires_all_reduce(False) if m is model else m.set_requires_gradient_sync(False)
        optimizer.zero_grad()
    nn.functional.mse_loss(model(batch(0, dist.get_rank())[0]), batch(0, dist.get_rank())[1]).backward()
    model.set_requires_all_reduce(True)
    train(model, optimizer, range(1))
    assert same_on(mesh.get_group("replicate"), locals_of(model))
    apply_fsdp2(model, FSDPPolicy(gradients=None))
    assert isinstance(_group_of("model", model)._all_reduce_process_group, dist.ProcessGroup)


def accumulation_and_regions() -> None:
    x, y = batch(3, dist.get_rank())
    found = []
    for policy in (None, FSDPPolicy(gradients="raw", weights="raw")):
        model, _ = sharded(policy)
        model.set_requires_gradient_sync(False)
        nn.functional.mse_loss(model(x), y).backward()
        model.set_requires_gradient_sync(True)
        nn.functional.mse_loss(model(x + 1), y).backward()
        found.append(gradients_of(model))
    assert torch.allclose(*found, rtol=1e-5, atol=1e-7)
    # fully_shard outside of checkpointed regions, as usual: weights with a state are gathered outside too.
    model, _ = sharded(FSDPPolicy(gradients="int4(round=stochastic)", weights="int8(round=stochastic)"), True)
    train(model, optimizer_for(model), range(3))
    assert same_on(None, used_weights(model))
    model, _ = sharded(FSDPPolicy(weights="weight_delta4"), True)
    raises(CollectiveError, "`weight_delta4", lambda: model(x))


def continues_bit_for_bit(folder: Path) -> None:
    policy = FSDPPolicy(gradients="error_feedback(int4(round=stochastic))", weights="weight_delta4")
    model, state = sharded(policy)
    optimizer = optimizer_for(model)
    train(model, optimizer, range(6))
    dcp.save({"model": model.state_dict(), "compression": state}, checkpoint_id=folder)
    momentum = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(6, 10))
    for warm in (False, True):
        again, fresh = sharded(policy)
        other = optimizer_for(again)
        if warm:
            train(again, other, range(2))
        saved = {"model": again.state_dict(), "compression": fresh}
        dcp.load(saved, checkpoint_id=folder)
        again.load_state_dict(saved["model"])
        other.load_state_dict(copy.deepcopy(momentum))
        train(again, other, range(6, 10))
        assert torch.equal(locals_of(again), locals_of(model)), warm
        assert same_on(None, used_weights(again))
    before = state.memory()
    state.reset("middle")
    assert state.memory() == before
    assert not any(e.any() for op in state._calls["middle.gradients"].ops.values() for e in op.states())
    assert any(e.any() for op in state._calls["model.gradients"].ops.values() for e in op.states())


def raw_bytes_stay() -> None:
    """A buffer of mixed dtypes arrives as bytes; small calls are native where the policy says so."""
    from coccl_dsl.torch import fsdp2

    calls = fsdp2._Calls("m", "weights", fsdp2._wanted(FSDPPolicy(weights="int4"))["weights"])
    whole = torch.zeros(32, dtype=torch.uint8)
    mine = whole.narrow(0, 16 * dist.get_rank(), 16).copy_(torch.arange(16) + 16 * dist.get_rank())
    fsdp2._AllGather(calls)(output_tensor=whole, input_tensor=mine, group=dist.group.WORLD)
    assert whole.tolist() == list(range(32))
    assert calls.native(torch.empty(8, dtype=torch.float8_e4m3fn)) == "float8_e4m3fn buffer"
    model, _ = sharded(FSDPPolicy(gradients="int4", weights="int4", min_bytes=1 << 20))
    exact, _ = sharded(None)
    for m in (model, exact):
        train(m, optimizer_for(m), range(2))
    assert torch.equal(locals_of(model), locals_of(exact))
    reasons = {n.reason for n in coccl_dsl.torch.report().native if n.role == "fsdp"}
    assert {"uint8 buffer", "below min_bytes"} <= reasons


def policies_as_enable_takes_them(folder: Path) -> None:
    """A file, and what it says as a Policy, do what an FSDPPolicy of the same compressors does."""
    text = """
    arena_mib = 8
    [[rule]]
    on = "tp"
    compressor = "int8"
    [[rule]]
    on = ["fsdp.reduce_scatter", "dp.all_reduce"]
    compressor = "int4"
    min_bytes = {least}
    {more}
    [[rule]]
    on = "fsdp.all_gather"
    compressor = "weight_delta8"
    algorithm = "all_gather_direct"
    min_bytes = 0
    """
    path = folder / f"policy.{dist.get_rank()}.toml"
    path.write_text(text.format(least=0, more=""))
    algorithm = {"weights": "all_gather_direct"}
    own = FSDPPolicy(gradients="int4", weights="weight_delta8", replicas="int4", algorithm=algorithm)
    found = []
    for policy in (own, path, str(path), read_policy_text(path.read_text())):
        model, _ = sharded(policy)
        train(model, optimizer_for(model), range(3))
        found.append(locals_of(model))
    assert all(torch.equal(found[0], other) for other in found[1:])
    for least, more, reason in (
        (1 << 20, "", "below min_bytes of rule 2"),
        (0, "max_bytes = 64", "above max_bytes of rule 2"),
        (0, 'dtype = "bf16"', "rule 2 is not for f32"),
    ):
        coccl_dsl.torch.traffic.reset()
        model, _ = sharded(read_policy_text(text.format(least=least, more=more)))
        train(model, optimizer_for(model), range(1))
        told = coccl_dsl.torch.report()
        assert {(n.op, n.reason) for n in told.native if n.role == "fsdp"} == {("reduce_scatter", reason)}
        assert {c.op for c in told.compressed} == {"all_gather"}


def unused_parameters() -> None:
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x, both):
            return self.b(self.a(x)) if both else self.a(x)

    x = torch.ones(2, 16)
    model = fully_shard(Part())
    apply_fsdp2(model, FSDPPolicy(gradients="error_feedback(int4)"))
    model(x, True).sum().backward()
    raises(CollectiveError, "set_reduce_scatter_unused_params", lambda: model(x, False).sum().backward())
    model = fully_shard(Part())
    apply_fsdp2(model, FSDPPolicy(gradients="int8"))
    model(x, True).sum().backward()
    model(x, False).sum().backward()


def wrong_use() -> None:
    raises(ValueError, "no FSDPModule", lambda: apply_fsdp2(nn.Linear(2, 2)))
    raises(TypeError, "policy is int: an FSDPPolicy", lambda: apply_fsdp2(nn.Linear(2, 2), 8))
    raises(CompileError, "cannot read `int8`", lambda: apply_fsdp2(nn.Linear(2, 2), "int8"))
    rule = '[[rule]]\non = "fsdp.reduce_scatter"\ncompressor = "int8"\n'
    for text, words in (
        (rule.replace("fsdp.reduce_scatter", "tp.all_reduce"), "no rule of the policy compresses fsdp.reduce_scatter"),
        (rule + "after_step = 3", "rule 1, which is for fsdp.reduce_scatter, has after_step, which apply_fsdp2"),
        (rule + 'group = "a"\ntransport = "torch"', "has group and transport"),
        ("debug_every = 3\n" + rule, "the policy has debug_every"),
    ):
        raises(ValueError, words, lambda text=text: apply_fsdp2(nn.Linear(2, 2), read_policy_text(text)))
    raises(ValueError, "algorithm has grads", lambda: FSDPPolicy(algorithm={"grads": "ring"}))
    raises(CompileError, "int9", lambda: FSDPPolicy(weights="int9"))
    raises(BindError, "not reduce_scatter", lambda: FSDPPolicy(algorithm={"gradients": "ring"}))
    raises(ValueError, "negative", lambda: FSDPPolicy(min_bytes=-1))
    model, state = sharded(FSDPPolicy())
    taken, _ = sharded(None)

    class Mine:
        pass

    taken.middle.set_custom_all_gather(Mine())
    raises(ValueError, "`middle` has Mine already", lambda: apply_fsdp2(taken))
    plain, _ = sharded(None)
    plain.set_allocate_memory_from_process_group_for_comm(True)
    raises(ValueError, "`model` has ProcessGroupAlloc", lambda: apply_fsdp2(plain))
    raises(ValueError, "no part 'rank", lambda: state.load_state_dict({}))
    from coccl_dsl.torch.saving import saved

    own = f"rank{dist.get_rank()}"
    raises(ValueError, "by 64 ranks", lambda: state.load_state_dict({own: saved({"world": 64, "calls": {}})}))
    raises(ValueError, "another model's", lambda: state.load_state_dict({own: saved({"world": 2, "calls": {}})}))
    raises(ValueError, "`nothing` is not one", lambda: state.reset("nothing"))
    double = fully_shard(nn.Linear(16, 16).double())
    apply_fsdp2(double)
    raises(TypeError, "float64", lambda: double(torch.ones(1, 16).double()).sum().backward())


def world(*cases) -> None:
    start()
    for case in cases:
        case()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    two = (
        lambda: training(steps),
        *([every_reduction] if CUDA else []),
        accumulation_and_regions,
        lambda: continues_bit_for_bit(folder),
        raw_bytes_stay,
        lambda: policies_as_enable_takes_them(folder),
        unused_parameters,
        wrong_use,
    )
    fork_world(2, lambda: world(*two))
    fork_world(4, lambda: world(every_reduction, lambda: hybrid_training(steps)))


if __name__ == "__main__":
    main()
