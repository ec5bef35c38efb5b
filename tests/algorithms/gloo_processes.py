"""One process of test_processes: every shipped algorithm on real gradients, against torch's own collectives and against `simulate`.

Rank 0 prints a row a case. The expected bits are computed there once, and told to the others as digests.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from coccl_dsl import simulate
from coccl_dsl.check.report import world_report
from coccl_dsl.cli.gradients import gradients
from coccl_dsl.lang.files import library
from coccl_dsl.pipeline import World, load
from coccl_dsl.runtime.simulate import HALF_ULP, SMALLEST

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
MESHES = {4: [(2, 2)], 6: [(2, 3), (3, 2)], 8: [(2, 4), (4, 2)]}


def digest(t: torch.Tensor) -> str:
    return hashlib.sha256(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def sample(count: int, rank: int, world: int) -> torch.Tensor:
    """`count` values of this rank's gradients: a piece of every group of layers, so that scales differ."""
    groups = list(gradients(rank, world).values())
    part = -(-count // len(groups))
    pieces = [g[: min(part, g.numel())] for g in groups]
    short = count - sum(p.numel() for p in pieces)
    if short > 0:
        largest = max(groups, key=torch.Tensor.numel)
        pieces.append(largest[part : part + short])
    return torch.cat(pieces)[:count].clone()


def torch_result(kind: str, xs: list[torch.Tensor], rank: int, root: int) -> torch.Tensor:
    """What torch's own collective gives; gloo has no reduce_scatter, so its all_reduce is cut."""
    x, n = xs[rank].clone(), len(xs)
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        dist.all_reduce(x)
        return x.chunk(n)[rank] if kind == "reduce_scatter" else x
    if kind == "all_gather":
        y = torch.empty(n * x.numel(), dtype=x.dtype)
        dist.all_gather_into_tensor(y, x)
        return y
    if kind == "all_to_all":
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
        return y
    if kind == "broadcast":
        dist.broadcast(x, root)
        return x
    y = torch.empty_like(x)
    if rank == n - 1:
        dist.send(x, 0)
        return x
    if rank == 0:
        dist.recv(y, n - 1)
    return y


def exact_result(kind: str, xs: list[torch.Tensor], rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums in float64, and sums of magnitudes."""
    wide = torch.stack([x.double() for x in xs])
    total, size = wide.sum(0), wide.abs().sum(0)
    if kind == "reduce_scatter":
        return total.chunk(len(xs))[rank], size.chunk(len(xs))[rank]
    return total, size


def close_to_torch(c, dtype: str, lossy: int, got: torch.Tensor, own: torch.Tensor, xs, rank: int) -> bool:
    """Gather-like collectives: equal. Sums: within the order of float32 sums, and half a unit of the dtype a lossy step and at the end."""
    n = len(xs)
    if c.kind not in ("all_reduce", "reduce", "reduce_scatter"):
        return torch.equal(got, own)
    exact, size = exact_result(c.kind, xs, rank)
    basis = max(b.basis for b in c.program().buffers)
    if basis:  # roundings of rotated values spread over their block
        blocks = torch.nn.functional.pad(size, (0, -size.numel() % basis)).view(-1, basis)
        size = blocks.sum(1, keepdim=True).expand_as(blocks).reshape(-1)[: size.numel()]
    order = (n + 10 * bool(basis)) * 2.0**-23 * size
    if dtype == "f32":
        return bool(((got.double() - own.double()).abs() <= order).all()) and lossy == 0
    one = size * HALF_ULP[dtype] + SMALLEST[dtype]
    return bool(((got.double() - exact).abs() <= (lossy + 1) * one + order).all())


def main(names: list[str], compressors: list[str], dtypes: list[str], count: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = sample(count, rank, n)
    everyone = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(everyone, mine)
    cases = 0
    for name in names:
        c = load(name)
        for sizes in MESHES.get(n, []) if c.axes else [(n,)]:
            mesh = dict(zip(c.axes, sizes, strict=True)) if c.axes else None
            root = n - 1 if c.kind in ("broadcast", "reduce") else 0
            for dtype in dtypes:
                xs = [x.to(DTYPES[dtype]) for x in everyone]
                if c.kind in ("reduce_scatter", "all_to_all"):
                    xs = [x[: count // n * n] for x in xs]
                own = torch_result(c.kind, xs, rank, root)
                for compressor in compressors:
                    bound = dict.fromkeys(c.program().codecs, compressor)
                    got, ms = call(c, xs, rank, mesh, root, bound)
                    promised = got is not None and (c.kind != "reduce" or rank == root)
                    want = [""] * n
                    if rank == 0:
                        ends = [xs[n - 1], xs[n - 1]] if c.kind == "send_recv" else xs
                        found = simulate(c, ends, mesh=mesh, root=root, **bound)
                        want = [digest(t) for t in found] if c.kind != "send_recv" else [digest(found[1])] * n
                    dist.broadcast_object_list(want, src=0)
                    assert not promised or digest(got) == want[rank], (name, sizes, compressor, dtype, rank)
                    if compressor == "raw" and promised:
                        world = World((2,) if c.kind == "send_recv" else sizes, root)
                        lossy = world_report(c.trace(world, dtype=dtype, compressors=bound)).lossy
                        assert close_to_torch(c, dtype, lossy, got, own, xs, rank), (
                            name,
                            sizes,
                            dtype,
                            rank,
                        )
                    if rank == 0:
                        shape = "x".join(map(str, sizes))
                        print(
                            f"{name:<24} {shape:>4}  {dtype:<5} {compressor:<5} {xs[0].numel():>9,} elements {ms:9.1f} ms  same bits as simulate"
                        )
                    cases += 1
    dist.barrier()
    print(json.dumps({"rank": rank, "cases": cases, "world": n}))
    dist.destroy_process_group()


def call(c, xs, rank: int, mesh, root: int, bound) -> tuple[torch.Tensor | None, float]:
    """The result, None where this rank takes no part, and the milliseconds of a second call."""
    n, x = len(xs), xs[rank]
    if c.kind == "send_recv":
        if rank not in (0, n - 1):
            return None, 0.0
        op = c.bind(like=x, **({"source": n - 1} if rank == 0 else {"target": 0}), **bound)
        x = torch.zeros_like(x) if rank == 0 else x
    else:
        options = {"root": root} if c.kind in ("broadcast", "reduce") else {}
        op = c.bind(like=x, mesh=mesh, **options, **bound)
    first = op(x).clone()
    if c.kind == "send_recv" and rank:
        op(x)
        return None, 0.0
    start = time.perf_counter()
    again = op(x)
    ms = 1e3 * (time.perf_counter() - start)
    assert digest(first) == digest(again) or (c.kind == "reduce" and rank != root), c.name
    return again, ms


if __name__ == "__main__":
    wanted = sys.argv[1].split(",") if sys.argv[1] != "all" else library("algorithms")
    main(wanted, sys.argv[2].split(","), sys.argv[3].split(","), int(sys.argv[4]))
