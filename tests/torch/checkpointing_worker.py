"""One rank of the tests of activation checkpointing: a region's second run sends the wires of its first."""

from __future__ import annotations

from functools import partial

import torch
import torch._dynamo  # here, so that not every rank imports it
import torch.distributed as dist
import torch.utils.checkpoint as module
from forks import fork_world, normal, start
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import checkpoint as imported_by_name  # before coccl_dsl.torch, as a user's module may

import coccl_dsl
import coccl_dsl.torch
from coccl_dsl import CollectiveError
from coccl_dsl.torch import calls

QUANTISED = "int4(round=stochastic)"
ORIGINAL = module.checkpoint.__wrapped__


def raises(kind, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind} with {words!r}")


def numbers() -> list[int]:
    return [int(op._executor.rng[1]) for g in calls._groups.values() for op in g.ops.values() if op.plan.stochastic]


def rewind() -> None:
    for g in calls._groups.values():
        for op in g.ops.values():
            op._executor.rng[1] = 0


class Layer(torch.nn.Module):
    """Two collectives whose results the gradient depends on."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(0.5, 1.5, 300))

    def forward(self, x):
        y = coccl_dsl.all_reduce(x * self.w, compressor=QUANTISED).square()
        return coccl_dsl.all_reduce(y, compressor=QUANTISED).tanh() + y


def gradients(run) -> list[torch.Tensor]:
    """Of two layers, each run by `run(layer, x)`. No run draws other call numbers than the plain one, in all."""
    rewind()
    layers = [Layer(), Layer()]
    x = normal(300, seed=dist.get_rank()).requires_grad_()
    y = x
    for layer in layers:
        y = run(layer, y)
    y.sum().backward()
    assert sum(numbers()) == 8 or run is unwrapped, numbers()
    return [x.grad, *(layer.w.grad for layer in layers)]


def plain(layer, x):
    return layer(x)


def unwrapped(layer, x):
    return ORIGINAL(layer, x, use_reentrant=False)


def equal(a, b) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def regions_repeat_their_wires() -> None:
    gradients(plain)  # binds
    want = gradients(plain)
    assert equal(want, gradients(plain))
    ways = {
        "late": lambda f, x: module.checkpoint(f, x, use_reentrant=False),
        "reentrant": lambda f, x: module.checkpoint(f, x, use_reentrant=True),
        "by name": lambda f, x: imported_by_name(f, x, use_reentrant=False),
        "wrapper": lambda f, x: checkpoint_wrapper(f, CheckpointImpl.NO_REENTRANT)(x),
        "sequential": lambda f, x: module.checkpoint_sequential([f, torch.nn.Identity()], 1, x, use_reentrant=False),
        "nested": lambda f, x: module.checkpoint(lambda v: module.checkpoint(f, v, use_reentrant=False), x, use_reentrant=False),
        "no early stop": lambda f, x: late(f, x),
    }  # fmt: skip

    def late(f, x):
        with module.set_checkpoint_early_stop(False):
            return module.checkpoint(f, x, use_reentrant=False)

    kept = partial(module.create_selective_checkpoint_contexts, [torch.ops.coccl.all_reduce.default])
    ways["kept"] = lambda f, x: module.checkpoint(f, x, use_reentrant=False, context_fn=kept)
    for name, way in ways.items():
        assert equal(want, gradients(way)), name

    def doubled(f, x):
        return module.checkpoint(f, 2 * x, use_reentrant=False) * 2

    def deep(f, x):
        with module.set_checkpoint_early_stop(False):
            return module.checkpoint(doubled, f, x, use_reentrant=False)

    def flat(f, x):
        return f(2 * x) * 2

    assert equal(gradients(flat), gradients(deep))

    assert not equal(want, gradients(unwrapped)), "with the wires of other call numbers the gradients are others"


def backward_twice() -> None:
    rewind()
    layer = Layer()
    x = torch.ones(300, requires_grad=True)
    y = module.checkpoint(layer, x, use_reentrant=False, determinism_check="default")
    grads = []
    for _ in range(2):
        rewind_to = numbers()
        grads.append(torch.autograd.grad(y.sum(), layer.w, retain_graph=True)[0])
        for op, n in zip([o for g in calls._groups.values() for o in g.ops.values() if o.plan.stochastic], rewind_to, strict=True):  # fmt: skip
            op._executor.rng[1] = n  # so that the collectives of both backwards round alike
    assert torch.equal(*grads)


def compiled() -> None:
    """A compiled region repeats its wires where it keeps the collective's result."""
    layer = Layer()
    kept = partial(module.create_selective_checkpoint_contexts, [torch.ops.coccl.all_reduce.default])

    def region(v):
        return coccl_dsl.all_reduce(v * layer.w, compressor=QUANTISED).square()

    def step(x):
        return module.checkpoint(region, x, use_reentrant=False, context_fn=kept)

    found = []
    for f in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        rewind()
        x = torch.ones(300, requires_grad=True)
        f(x).sum().backward()
        found.append(x.grad)
    assert torch.allclose(*found, rtol=1e-5)


def wrong_use() -> None:
    x = torch.ones(300, requires_grad=True)
    kept = coccl_dsl.compile("two_shot", q="error_feedback(int4)").bind(like=x)
    kept(x)
    for reentrant in (False, True):
        raises(
            CollectiveError,
            "`error_feedback(c=int4",
            lambda r=reentrant: module.checkpoint(lambda v: v * kept(v), x, use_reentrant=r),
        )
    kept(x)  # and works on outside of regions
    runs = []

    def changing(v):
        runs.append(1)
        y = coccl_dsl.all_reduce(v, compressor=QUANTISED).square()
        return coccl_dsl.all_reduce(y, "avg", QUANTISED).square() if len(runs) == 2 else y.square()

    y = module.checkpoint(changing, x, use_reentrant=False)
    raises(CollectiveError, "makes other calls than the first", lambda: y.sum().backward())
    raises(ValueError, "from the function", lambda: module.checkpoint(failing, x, use_reentrant=False))
    from coccl_dsl.runtime import replay

    assert replay._local.run is None, "a region that failed has ended"


def failing(x):
    raise ValueError("from the function")


def main() -> None:
    start()
    for case in (regions_repeat_their_wires, backward_twice, compiled, wrong_use):
        case()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    fork_world(2, main)
