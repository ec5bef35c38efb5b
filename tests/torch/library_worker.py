"""One rank of the tests of torch.ops.coccl: gradients against exact ones, opcheck, compiled graphs, operators of a user's text, wrong use."""

from __future__ import annotations

import sys

import torch
import torch._dynamo  # here, so that not every rank imports it
import torch.distributed as dist
import torch.testing._internal.optests
from forks import CUDA, fork_world, inputs, normal, start
from worlds import same

import coccl_dsl
import coccl_dsl.torch
from coccl_dsl import BindError, CollectiveError
from coccl_dsl.runtime.dispatch import register

OPS = torch.ops.coccl


def raises(kind, words: str, call) -> None:
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind} with {words!r}")


def whole_gradient(f, xs: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """What all ranks' gradients are, where f maps all ranks' inputs to all ranks' outputs and each rank's loss is (weight * output).sum()."""
    xs = [x.clone().requires_grad_() for x in xs]
    sum((w * y).sum() for w, y in zip(weights, f(xs), strict=True)).backward()
    return [x.grad if x.grad is not None else torch.zeros_like(x) for x in xs]


def gradients() -> None:
    """Raw wires: the very gradients; 8-bit wires: close to them, and not the same."""
    rank, n, name = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    xs = [x.reshape(4, 25) for x in inputs(n, 100, torch.float32, 1)]
    splits, columns = [[1, 3], [2, 2]][rank], [[1, 2], [3, 2]][rank]  # rows to each rank, and from each
    total = lambda v: sum(v)  # noqa: E731
    cases = {
        "all_reduce": (lambda x, q: OPS.all_reduce(x, name, "sum", q), lambda v: [total(v)] * n),
        "avg": (lambda x, q: OPS.all_reduce(x, name, "avg", q), lambda v: [total(v) / n] * n),
        "premul": (lambda x, q: OPS.all_reduce(x, name, "premul(0.5)", q), lambda v: [total(v) * 0.5] * n),
        "scatter": (lambda x, q: OPS.reduce_scatter_tensor(x, name, n, "sum", q), lambda v: list(total(v).chunk(n))),
        "scatter avg": (lambda x, q: OPS.reduce_scatter_tensor(x, name, n, "avg", q), lambda v: list((total(v) / n).chunk(n))),
        "gather": (lambda x, q: OPS.all_gather_into_tensor(x, name, n, q), lambda v: [torch.cat(v)] * n),
        "even": (lambda x, q: OPS.all_to_all_single(x, name, compressor=q), lambda v: [torch.cat([x.chunk(n)[r] for x in v]) for r in range(n)]),
        "uneven": (lambda x, q: OPS.all_to_all_single(x, name, columns, splits, compressor=q), lambda v: [torch.cat([v[0][:1], v[1][:2]]), torch.cat([v[0][1:], v[1][2:]])]),
        "broadcast": (lambda x, q: OPS.broadcast(x, name, 1, q), lambda v: [v[1]] * n),
        "reduce": (lambda x, q: OPS.reduce(x, name, 1, "avg", q), lambda v: [torch.zeros_like(v[0]), total(v) / n]),
        "functions": (lambda x, q: coccl_dsl.all_gather(coccl_dsl.reduce_scatter(x, compressor=q), compressor=q), lambda v: [total(v)] * n),
        "uneven function": (
            lambda x, q: coccl_dsl.all_to_all(x, q, input_splits=[25 * c for c in splits], output_splits=[25 * c for c in columns], capacity=75),
            lambda v: [torch.cat([v[0][:1], v[1][:2]]).reshape(-1), torch.cat([v[0][1:], v[1][2:]]).reshape(-1)],
        ),
    }  # fmt: skip
    for label, (call, exact) in cases.items():
        outputs = exact(xs)
        weights = [normal(*y.shape, seed=r) for r, y in enumerate(outputs)]
        grads = whole_gradient(exact, xs, weights)
        for compressor, tolerance in (("raw", 1e-6), ("int8", 0.05)):
            x = xs[rank].clone().requires_grad_()
            y = call(x, compressor)
            assert y.requires_grad and y.shape == outputs[rank].shape, label
            assert (y - outputs[rank]).abs().max() < tolerance * 4, label
            (weights[rank] * y).sum().backward()
            error = (x.grad - grads[rank]).abs().max()
            assert error < tolerance * 4, (label, compressor, error)
            same_bits = torch.equal(x.grad, grads[rank])
            assert same_bits or compressor != "raw" or error < 1e-6

    # Tensor parallelism: a column-parallel and a row-parallel product; all ranks compute the same loss.
    full = [normal(6, 8, seed=i) for i in range(2)]
    w1, w2 = full[0].T.contiguous(), full[1]  # 8 -> 6 -> 8
    x = normal(5, 8, seed=7)
    exact = [t.clone().requires_grad_() for t in (x, w1, w2)]
    (torch.tanh(exact[0] @ exact[1]) @ exact[2]).square().sum().backward()
    mine = x.clone().requires_grad_(), w1[:, 3 * rank : 3 * rank + 3].clone().requires_grad_(), w2[3 * rank : 3 * rank + 3].clone().requires_grad_()  # fmt: skip
    for t in mine:
        t.grad = None
    inner = torch.tanh(coccl_dsl.torch.copy_to_group(mine[0], compressor="raw") @ mine[1]) @ mine[2]
    OPS.all_reduce(inner, name, compressor="raw", backward="identity").square().sum().backward()
    assert torch.allclose(mine[0].grad, exact[0].grad, atol=1e-4)
    assert torch.allclose(mine[1].grad, exact[1].grad[:, 3 * rank : 3 * rank + 3], atol=1e-4)
    assert torch.allclose(mine[2].grad, exact[2].grad[3 * rank : 3 * rank + 3], atol=1e-4)

    # A pipeline of two stages: the gradient comes back with a compressor of its own.
    w = torch.full((25,), 3.0, requires_grad=True)
    if rank == 0:
        OPS.send(xs[0] * w, name, 1, "raw", 0, "int8").backward()
        sent = coccl_dsl.simulate(coccl_dsl.compile("send_recv", q="int8"), [2 * 3.0 * xs[0]] * 2)[1]
        assert same(w.grad, (sent * xs[0]).sum(0))
    else:
        arrived = OPS.recv(torch.empty(4, 25, requires_grad=True), name, 0, "raw", 0, "int8")
        assert torch.equal(arrived.detach(), xs[0] * 3.0)
        arrived.square().sum().backward()


def operators_are_well_formed(everything: bool) -> None:
    rank, n, name = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name

    def x(grad: bool = True, rows: int = 4) -> torch.Tensor:
        return torch.randn(rows, 6, requires_grad=grad)

    whole = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    for op, arguments in (
        (OPS.all_reduce, (x(), name)),
        (OPS.all_reduce_, (x(False), name)),
        (OPS.reduce_scatter_tensor, (x(), name, n)),
        (OPS.reduce_scatter_tensor_out, (x(False), x(False, 2), name)),
        (OPS.all_gather_into_tensor, (x(), name, n)),
        (OPS.all_gather_into_tensor_out, (x(False), x(False, 8), name)),
        (OPS.all_to_all_single, (x(), name)),
        (OPS.all_to_all_single, (x(), name, [2, 2], [2, 2])),
        (OPS.all_to_all_single_out, (x(False), x(False), name)),
        (OPS.broadcast, (x(), name, 1)),
        (OPS.broadcast_, (x(False), name, 1)),
        (OPS.reduce, (x(), name, 1)),
        (OPS.reduce_, (x(False), name, 1)),
        (OPS.send if rank else OPS.recv, (x(), name, 1 - rank)),
    ):
        # With test_autograd_registration come calls whose number differs between sender and receiver.
        tests = whole if "send" not in str(op) and "recv" not in str(op) else ("test_schema", "test_faketensor")
        if not everything and op not in (OPS.all_reduce, OPS.all_reduce_, OPS.all_to_all_single):
            tests = tests[:-1]  # of which tracing takes most of the time
        done = torch.library.opcheck(op.default, arguments, test_utils=tests)
        assert set(done.values()) == {"SUCCESS"}, (op, done)


def compiled_graphs(backends: list[str]) -> None:
    rank, n, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    xs = [x.reshape(4, 25) for x in inputs(n, 100, torch.float32, 1)]

    def step(x, w):
        y = coccl_dsl.all_reduce(x * w, "avg", "int4", "two_shot")
        z = coccl_dsl.all_gather(coccl_dsl.reduce_scatter(y, group=group), group=group)
        return (z * coccl_dsl.all_to_all(y)).sum()

    def in_place(x):
        y = x + 1
        coccl_dsl.torch.all_reduce(y, compressor="int4")
        shard = y.new_empty(2, 25)
        coccl_dsl.torch.reduce_scatter_tensor(shard, y, "avg")
        coccl_dsl.torch.broadcast(shard, 0)
        return shard * 2

    for backend in backends:
        torch._dynamo.reset()
        results = []
        for f in (step, torch.compile(step, backend=backend, fullgraph=True)):
            w = torch.full((25,), 2.0, requires_grad=True)
            loss = f(xs[rank], w)
            loss.backward()
            results.append((loss.detach(), w.grad))
        # Fused sums may round otherwise; the collectives get and give the same.
        assert torch.allclose(results[0][0], results[1][0], rtol=1e-5), backend
        assert torch.allclose(results[0][1], results[1][1], rtol=1e-4, atol=1e-4), backend
        assert same(in_place(xs[rank]), torch.compile(in_place, backend=backend, fullgraph=True)(xs[rank]))

        # Rank 0 does not use what it gets: its graph keeps the call, or rank 1 would wait for ever.
        def careless(x):
            y = OPS.all_reduce(x, group.group_name)
            return y if rank else x + 1

        got = torch.compile(careless, backend=backend, fullgraph=True)(xs[rank])
        assert (got - sum(xs)).abs().max() < 0.2 if rank else torch.equal(got, xs[0] + 1)
        sizes = torch.compile(lambda x: coccl_dsl.all_reduce(x, compressor="raw") + 1, backend=backend, fullgraph=True, dynamic=True)  # fmt: skip
        for count in (10, 17, 33):
            assert torch.equal(sizes(torch.ones(count)), torch.full((count,), 3.0))


TEXT = """use "int8.comp"
collective mine : {kind} {{
  ranks r of n
  {body}
}}
"""
SCATTER = """in x[n]   out y
  compressor q = int8(group=128)
  y = x[r]
  for p in range(1, n) {
    send compress(q, x[(r + p) mod n]) to (r + p) mod n as w
    y += decompress(w)
  }"""


def a_users_text() -> None:
    rank, n, name = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    xs = [x.reshape(4, 64) for x in inputs(n, 256, torch.float32, 1)]
    mine = coccl_dsl.compile_text(TEXT.format(kind="reduce_scatter", body=SCATTER))
    register(mine)
    x = xs[rank].clone().requires_grad_()
    y = OPS.mine(x, name, "avg")
    assert same(y.detach(), coccl_dsl.simulate(mine, xs, op="avg")[rank]) and y.shape == (2, 64)
    (y * (rank + 1)).sum().backward()
    wanted = torch.cat([torch.full((2, 64), (r + 1) / n) for r in range(n)])
    assert (x.grad - wanted).abs().max() < 0.01
    out = torch.empty(2, 64)
    OPS.mine_out(xs[rank], out, name, "avg")
    assert same(out, y.detach())
    for algorithm in (
        "two_shot",
        "all_gather_direct",
        "all_to_all_direct",
        "tree_broadcast",
        "tree_reduce",
        "send_recv",
    ):
        c = coccl_dsl.compile(algorithm)
        register(c)
        plain, written = (
            getattr(OPS, algorithm),
            f"{algorithm}_out" if c.kind in ("all_gather", "all_to_all", "send_recv") else f"{algorithm}_",
        )
        x = xs[rank].clone().requires_grad_(algorithm != "send_recv")
        y = plain(x, name)
        (y * y).sum().backward() if y.requires_grad else None
        assert (x.grad is not None) == (algorithm != "send_recv")
        if written.endswith("_out"):
            out = torch.empty_like(y)
            getattr(OPS, written)(xs[rank], out, name)
        else:
            out = xs[rank].clone()
            getattr(OPS, written)(out, name)
        if algorithm not in ("tree_reduce", "send_recv") or rank == (0 if algorithm == "tree_reduce" else 1):
            assert same(out, y.detach()), algorithm
        torch.library.opcheck(plain.default, (xs[rank].clone().requires_grad_(algorithm != "send_recv"), name))
    gather = coccl_dsl.compile("all_gather_ring", q="raw")
    register(gather, adjoint=coccl_dsl.compile("reduce_scatter_ring", q="raw"))
    x = xs[rank].clone().requires_grad_()
    OPS.all_gather_ring(x, name).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, n))
    raises(ValueError, "give yours another name", lambda: register(coccl_dsl.compile_text(TEXT.replace("mine", "all_reduce_").format(kind="reduce_scatter", body=SCATTER))))  # fmt: skip
    raises(ValueError, "not `two_shot` : all_reduce", lambda: register(gather, adjoint=coccl_dsl.compile("two_shot")))
    raises(ValueError, "takes none", lambda: register(coccl_dsl.compile("two_shot"), adjoint=gather))
    register(coccl_dsl.compile("ring", q="error_feedback(int4)"))
    raises(BindError, "keeps a state", lambda: OPS.ring(xs[rank], name))


def wrong_use() -> None:
    name, n, x = dist.group.WORLD.group_name, dist.get_world_size(), torch.ones(4, 4)
    raises(ValueError, "no process group named 'nowhere'", lambda: OPS.all_reduce(x, "nowhere"))
    raises(ValueError, "group_size=7", lambda: OPS.all_gather_into_tensor(x, name, 7))
    raises(ValueError, "backward='sum'", lambda: OPS.all_reduce(x, name, backward="sum"))
    raises(BindError, "keeps a state", lambda: OPS.all_reduce(x, name, compressor="error_feedback(int8)"))
    raises(BindError, "keeps a state", lambda: OPS.reduce_scatter_tensor(x, name, n, compressor="weight_delta8"))
    raises(TypeError, "int64", lambda: OPS.all_reduce(x.long(), name))
    raises(ValueError, "out is not contiguous", lambda: OPS.all_reduce_(torch.ones(4, 6).t(), name))
    leaf = torch.ones(4, requires_grad=True)
    raises(ValueError, "not available where x needs a gradient", lambda: coccl_dsl.all_reduce(leaf, out=leaf))
    raises(ValueError, "not available where x needs a gradient", lambda: coccl_dsl.all_reduce(leaf, async_op=True))
    with torch.no_grad():
        coccl_dsl.all_reduce(leaf, out=leaf, async_op=True).wait()
    assert (leaf - 2).abs().max() < 0.1


def captured_graphs() -> None:
    """A replay gives what an eager call gives, for other numbers at the same place."""
    rank, n, name = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    xs = inputs(n, 1 << 16, torch.float32, 1)
    x, out = xs[rank].clone(), torch.empty(1 << 15)

    def step() -> tuple[torch.Tensor, ...]:
        y = OPS.all_reduce(x, name, "avg", "int4")
        z = coccl_dsl.all_gather(coccl_dsl.reduce_scatter(y))
        coccl_dsl.torch.reduce_scatter_tensor(out, x)
        work = coccl_dsl.torch.all_reduce(z, async_op=True)
        work.wait()
        return y, z, out

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    for seed in (2, 3):
        x.copy_(inputs(n, 1 << 16, torch.float32, seed)[rank])
        want = [t.clone() for t in step()]
        for t in kept:
            t.zero_()
        graph.replay()
        assert all(same(a, b) for a, b in zip(kept, want, strict=True))
    raises(CollectiveError, "before the capture", lambda: captured_first(name))


def captured_first(name: str) -> None:
    x = torch.ones(3 << 18)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        OPS.all_reduce(x, name, "premul(0.125)")


def main() -> None:
    start()
    if sys.argv[1:]:
        compiled_graphs(sys.argv[1:])
        operators_are_well_formed(True)
    else:
        for case in (
            gradients,
            lambda: operators_are_well_formed(False),
            lambda: compiled_graphs(["aot_eager"]),
            a_users_text,
            wrong_use,
            *([captured_graphs] if CUDA else []),
        ):
            case()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    fork_world(2, main)
