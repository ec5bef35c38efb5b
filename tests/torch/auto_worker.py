"""One rank of the tests of `auto` by a calibration table. Arguments: folder, case."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from forks import fork_world, inputs, start
from worlds import same

import coccl_dsl
from coccl_dsl import BindError, simulate
from coccl_dsl.pipeline import load
from coccl_dsl.plan.calibration import NATIVE, Curve, Place, Table, Way
from coccl_dsl.policy import read_policy_text
from coccl_dsl.torch import transparent
from coccl_dsl.torch.native import KINDS, NativeOp

SMALL, LARGE = 1 << 10, 1 << 16
ALGORITHMS = {
    "all_reduce": ("halving_doubling", "two_shot"),
    "reduce_scatter": ("reduce_scatter_direct", "reduce_scatter_halving"),
    "all_gather": ("all_gather_direct", "all_gather_doubling"),
    "all_to_all": ("all_to_all_direct",),
}


def made_up(offset: float = 0.0) -> Table:
    """Torch's own is quicker below LARGE, and the first of ALGORITHMS from there on, which the model of links would not take."""
    curves = []
    for kind, names in ALGORITHMS.items():
        curves.append(Curve(kind, "eager", Way(NATIVE), ((2 * SMALL, 10.0 + offset), (2 * LARGE, 1000.0))))
        for i, name in enumerate(names):
            way = Way(name, "torch", 2, 8.125)
            curves.append(Curve(kind, "eager", way, ((1, 100.0 + i), (SMALL, 100.0 + i), (LARGE, 101.0 + i))))
    return Table({Place("cpu", "gloo", 2, 1): tuple(curves)})


def write(folder: Path, name: str, table: Table) -> None:
    path = folder / name
    if dist.get_rank() == 0:
        path.write_text(table.text())
    dist.barrier()
    os.environ["COCCL_TABLE"] = str(path)


def choosing(folder: Path) -> None:
    start()
    rank, n = dist.get_rank(), dist.get_world_size()
    write(folder, "table.json", made_up())
    functions = {kind: getattr(coccl_dsl, kind) for kind in KINDS}
    for count, native in ((SMALL, True), (LARGE, False)):
        xs = inputs(n, count, torch.bfloat16, 3)
        for kind, run in functions.items():
            x = xs[rank] if kind != "all_gather" else xs[rank][: count // n]
            got = run(x, compressor="int8")
            c = load(ALGORITHMS[kind][0])
            every = xs if kind != "all_gather" else [x[: count // n] for x in xs]
            want = simulate(c, every, **dict.fromkeys(c.program().codecs, "raw" if native else "int8"))[rank]
            if not native or kind in ("all_gather", "all_to_all"):
                assert same(got, want), (kind, count)
            told = str(coccl_dsl.explain(kind, x, compressor="int8"))
            assert ("torch's own, as measured" if native else f"{c.name} over torch, 2 slices, as measured") in told, (
                told
            )
            if native and kind == "all_reduce":
                y = xs[rank].clone()
                dist.all_reduce(y)
                assert same(got, y) and same(run(x, compressor="int8", async_op=True).wait(), y)
                assert same(run(x, op="avg", compressor="int8"), _average(xs[rank]))
                assert "torch's own all_reduce (sum)" in told
                assert isinstance(coccl_dsl.torch.calls.bound_op(kind, x, None, _asked(), None, True), NativeOp)
            if not native:
                assert "slices: 2" in told and "as measured" in told
        # A ddp hook asks for a compressed one, whatever is quicker.
        name, _, _ = coccl_dsl.torch.calls.pick("all_reduce", xs[rank], dist.group.WORLD, _asked())
        assert name == "halving_doubling"
    bound = load("two_shot").bind(like=torch.empty(LARGE, dtype=torch.bfloat16))
    assert bound.slices == 2 and "as measured" in bound.explain()
    torch.use_deterministic_algorithms(True)
    told = str(coccl_dsl.explain("all_reduce", torch.empty(SMALL, dtype=torch.bfloat16)))
    assert "measured on" not in told and "us expected" in told
    torch.use_deterministic_algorithms(False)
    _policy()
    dist.destroy_process_group()


def _asked():
    return coccl_dsl.torch.calls.Asked()


def _average(x: torch.Tensor) -> torch.Tensor:
    y = x * 0.5
    dist.all_reduce(y)
    return y


def _policy() -> None:
    """The transparent path lets small calls pass, and says why."""
    transparent.enable(read_policy_text('[[rule]]\non = "*"\ncompressor = "int8"\nmin_bytes = 1024\n'))
    for count in (SMALL, LARGE):
        dist.all_reduce(torch.ones(count, dtype=torch.bfloat16))
    told = str(coccl_dsl.torch.report())
    transparent.disable()
    assert "measured to be quicker" in told and "halving_doubling" in told, told


def differing(folder: Path) -> None:
    """A table that was altered on one rank; then one that cannot be read there; then one that only rank 0 has."""
    start()
    rank = dist.get_rank()
    x = torch.ones(SMALL, dtype=torch.bfloat16)
    write(folder, "a.json", made_up())
    if rank == 1:
        (folder / "b.json").write_text(made_up(1.0).text())
        (folder / "c.json").write_text("{")
    dist.barrier()
    for name, words in (("b.json", "`table` differs on ranks [1]"), ("c.json", "rank 1: ")):
        os.environ["COCCL_TABLE"] = str(folder / (name if rank == 1 else "a.json"))
        for call in (
            lambda: coccl_dsl.all_reduce(x),
            lambda: load("two_shot").bind(like=x),
            lambda: transparent.enable(read_policy_text('[[rule]]\non = "*"\ncompressor = "int8"\nmin_bytes = 1024\n')),
        ):
            try:
                call()
            except BindError as e:
                assert words in str(e) and "table" in str(e), e
            else:
                raise AssertionError(f"{name}: nothing was raised")
    if rank == 1:
        del os.environ["COCCL_TABLE"]
        os.environ["COCCL_CACHE"] = str(folder / "empty")
    else:
        os.environ["COCCL_TABLE"] = str(folder / "a.json")
    assert "torch's own, as measured" in coccl_dsl.explain("all_reduce", x)
    dist.destroy_process_group()


if __name__ == "__main__":
    case = {"choosing": choosing, "differing": differing}[sys.argv[2]]
    fork_world(2, lambda: case(Path(sys.argv[1])))
