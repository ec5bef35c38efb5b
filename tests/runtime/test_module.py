"""Generated modules: they need no other file, import without Triton, register an operator that binds at its first call and gives the same bits."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

import coccl_dsl
from coccl_dsl.codegen.module import embedded, kernels_of, module_source, plans_of
from coccl_dsl.codegen.triton_source import kernel_key
from coccl_dsl.lang.files import library, shipped
from coccl_dsl.pipeline import World, load
from coccl_dsl.plan.ops import Launch
from coccl_dsl.runtime import dispatch
from coccl_dsl.runtime.errors import CollectiveError

ROOT = Path(__file__).resolve().parents[2]


def imported(source: str, folder: Path, name: str) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sizes_of(name: str) -> tuple[int, ...]:
    axes = load(name).axes
    return (2,) * len(axes) if axes else ((2,) if name == "send_recv" else (4,))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dist.ProcessGroup]:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("name", library("algorithms"))
def test_every_shipped_algorithm_gives_a_module_that_means_the_same(tmp_path: Path, name: str):
    collective = coccl_dsl.compile(name)
    world = World(sizes_of(name))
    module = imported(module_source(collective, world), tmp_path, name)
    assert module.collective.source.text == collective.source.text
    assert str(module.collective.plan(world, 0)) == str(collective.plan(world, 0))
    assert getattr(torch.ops.coccl, name) is getattr(module, name)
    assert "rank 0 of" in (module.__doc__ or "")


@pytest.mark.parametrize("name", library("algorithms"))
def test_a_module_holds_the_kernel_of_every_launch(tmp_path: Path, name: str):
    pytest.importorskip("triton")
    collective, world = coccl_dsl.compile(name), World(sizes_of(name))
    module = imported(module_source(collective, world), tmp_path, f"kernels_{name}")
    launches = 0
    for dtype in ("f32", "bf16", "f16"):
        for plan in plans_of(collective, world, dtype):
            for step in plan.steps:
                if isinstance(step, Launch):
                    kernel = module.KERNELS[kernel_key(step.signature, dtype, plan.codecs, False)]
                    assert str(step.signature) in kernel.__doc__
                    launches += 1
    assert launches >= 6
    assert dispatch.kernels_of(module.collective) == module.KERNELS


def test_a_module_holds_the_kernels_of_bare_sends_for_every_dtype():
    text = (
        (shipped("algorithms") / "ring.coll")
        .read_text()
        .replace("compress(q, buf[c])", "buf[c]")
        .replace("+= decompress(w)", "+= w")
    )
    collective = coccl_dsl.compile_text(text.replace("ring", "bare_ring"))
    source = module_source(collective, World((3,)))
    for dtype in ("f32", "bf16", "f16"):
        for plan in plans_of(collective, World((3,)), dtype):
            for step in plan.steps:
                if isinstance(step, Launch):
                    assert repr(kernel_key(step.signature, dtype, plan.codecs, False)) in source


def test_the_op_decides_which_kernels_a_module_holds():
    collective = coccl_dsl.compile("ring")
    plain = kernels_of(plans_of(collective, World((2,)), "f32"))
    averaged = kernels_of(plans_of(collective, World((2,), op="avg"), "f32"))
    assert "total * factor" not in "".join(s.text for s in plain.sources.values())
    assert "total * factor" in "".join(s.text for s in averaged.sources.values())


def test_a_compressor_whose_first_call_differs_has_both_kernels():
    collective = coccl_dsl.compile("ring", q="weight_delta4")
    keys = kernels_of(plans_of(collective, World((2,)), "bf16")).keys
    assert any("|weight_delta4" in k for k in keys) and any("|first raw of weight_delta4" in k for k in keys)


COMP = """compressor halves(group: int = 8) {
  wire { value : bf16[group] }   # it's a 'quoted' \\ comment
  nonfinite pass
  compress(x) { value = x * 0.5 }
  decompress { yield value * 2 }
}
"""
COLL = """use "mine.comp"
collective own : all_gather {
  ranks r of n
  in x
  out y[n]
  compressor q = halves
  let v = compress(q, x)
  y[r] = decompress(v)
  for p in range(1, n) { send v to (r + p) mod n as w   y[(r - p) mod n] = decompress(w) }
}
"""


def test_a_module_needs_none_of_the_files_that_it_was_made_of(tmp_path: Path):
    (tmp_path / "mine.comp").write_text(COMP)
    (tmp_path / "own.coll").write_text(COLL)
    source = module_source(coccl_dsl.compile(tmp_path / "own.coll"), World((2,)))
    (tmp_path / "mine.comp").unlink()
    (tmp_path / "own.coll").unlink()
    module = imported(source, tmp_path, "own_module")
    x = [torch.randn(100) for _ in range(2)]
    got = coccl_dsl.simulate(module.collective, x)
    assert isinstance(got, list) and torch.equal(got[0], torch.cat(x).bfloat16().float())
    assert module.COMPRESSORS == {"mine.comp": COMP}


def test_rebound_compressors_are_in_the_module(tmp_path: Path):
    collective = coccl_dsl.compile("ring_q4", q="error_feedback(int8(group=64))")
    module = imported(module_source(collective, World((2,))), tmp_path, "rebound")
    assert list(module.COMPRESSORS)[-1] == "error_feedback.comp" or "int8.comp" in module.COMPRESSORS
    assert module.collective.program().codecs["q"].name == collective.program().codecs["q"].name


def test_a_compressor_may_use_another_file(tmp_path: Path):
    (tmp_path / "mine.comp").write_text(COMP)
    (tmp_path / "outer.comp").write_text((shipped("compressors") / "error_feedback.comp").read_text().replace(
        "c: compressor", "c: compressor = halves"
    ).replace("compressor error_feedback", 'use "mine.comp"\ncompressor outer', 1).replace("# Adds", "# adds"))  # fmt: skip
    (tmp_path / "own.coll").write_text(COLL.replace("mine.comp", "outer.comp").replace("= halves", "= outer"))
    module = imported(module_source(coccl_dsl.compile(tmp_path / "own.coll"), World((2,))), tmp_path, "outer_module")
    assert list(module.COMPRESSORS) == ["mine.comp", "outer.comp"]
    assert module.collective.program().codecs["q"].name == "outer(c=halves(group=8))"


def test_two_files_that_define_one_name_are_refused(tmp_path: Path):
    (tmp_path / "mine.comp").write_text(COMP)
    (tmp_path / "more.comp").write_text(COMP.replace("* 0.5", "* 0.25").replace("* 2", "* 4"))
    (tmp_path / "own.coll").write_text(COLL + COLL.replace("own", "other").replace('use "mine.comp"', ""))
    text = (tmp_path / "own.coll").read_text()
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "user.comp").write_text('use "more.comp"\n' + COMP.replace("halves", "quarter"))
    (tmp_path / "inner" / "more.comp").write_text(COMP)
    (tmp_path / "own.coll").write_text('use "inner/user.comp"\n' + text)
    collective = load(f"{tmp_path / 'own.coll'}:own")
    with pytest.raises(
        ValueError, match="`halves` is defined in .*more.comp and in .*mine.comp|mine.comp and in .*more.comp"
    ):
        module_source(collective, World((2,)))


def test_dtypes_that_a_compressor_does_not_take_are_left_out(tmp_path: Path):
    (tmp_path / "mine.comp").write_text(COMP.replace("nonfinite pass", "nonfinite pass\n  only bf16"))
    (tmp_path / "own.coll").write_text(COLL)
    collective = load(tmp_path / "own.coll")
    module = imported(module_source(collective, World((2,))), tmp_path, "only")
    assert "for bf16\n" in (module.__doc__ or "") and all("|bf16|" in k for k in module.KERNELS)
    with pytest.raises(coccl_dsl.CompileError, match="E501"):
        module_source(collective, World((2,)), dtypes=("f32",))


def test_a_module_imports_without_triton(tmp_path: Path):
    (tmp_path / "ring_q4.py").write_text(module_source(coccl_dsl.compile("ring_q4"), World((4,))))
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import ring_q4, torch\n"
        "assert ring_q4.KERNELS == {} and torch.ops.coccl.ring_q4\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env, cwd=tmp_path)


# ---------------------------------------------------------------- the operator


WORKER = """
import json, sys, torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
import two_shot, reduce_scatter_direct, all_gather_mesh
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
whole, pairs = dist.group.WORLD, [dist.new_group([0, 1]), dist.new_group([2, 3])]
name = whole.group_name
x = torch.randn(1000, generator=torch.Generator().manual_seed(rank))
out = {}
out["two_shot"] = torch.ops.coccl.two_shot(x, name)
out["avg"] = torch.ops.coccl.two_shot(x, name, "avg")
out["bf16"] = torch.ops.coccl.two_shot(x.bfloat16(), name).float()
out["pair"] = torch.ops.coccl.two_shot(x, pairs[rank // 2].group_name)
out["scatter"] = torch.ops.coccl.reduce_scatter_direct(x.reshape(100, 10), name)
out["mesh"] = torch.ops.coccl.all_gather_mesh(x, name)
again = torch.ops.coccl.two_shot(x[:600], name)          # 600 and 1000 are of one kind: up to 1024
from coccl_dsl.runtime import dispatch
bound = {len(kinds) for kinds in dispatch._entries["two_shot"].bound.values()}
shapes = {k: list(v.shape) for k, v in out.items()}
torch.save(out, f"{folder}/{rank}.pt")
print(json.dumps({"bound": sorted(bound), "shapes": shapes}))
dist.destroy_process_group()
dist.init_process_group("gloo", init_method=f"file://{folder}/again", rank=rank, world_size=4)
assert torch.equal(torch.ops.coccl.two_shot(x, dist.group.WORLD.group_name), out["two_shot"])
assert len(dispatch._entries["two_shot"].bound) == 1      # the destroyed groups are forgotten
dist.destroy_process_group()
"""


def test_the_operator_gives_simulates_bits_on_real_processes(tmp_path: Path):
    for name in ("two_shot", "reduce_scatter_direct", "all_gather_mesh"):
        source = module_source(coccl_dsl.compile(name), World(sizes_of(name)), dtypes=("f32",))
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "worker.py").write_text(WORKER)
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    line = [sys.executable, str(tmp_path / "worker.py")]
    ranks = [
        subprocess.Popen(
            [*line, str(r), str(tmp_path)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for r in range(4)
    ]
    told = [p.communicate(timeout=120) for p in ranks]
    assert all(p.returncode == 0 for p in ranks), "\n".join(err for _, err in told)
    first = json.loads(told[0][0].splitlines()[-1])
    assert first["bound"] == [1, 3]
    assert first["shapes"]["scatter"] == [25, 10] and first["shapes"]["mesh"] == [4000]
    x = [torch.randn(1000, generator=torch.Generator().manual_seed(r)) for r in range(4)]
    two_shot = coccl_dsl.compile("two_shot")
    want = {
        "two_shot": coccl_dsl.simulate(two_shot, x),
        "avg": coccl_dsl.simulate(two_shot, x, op="avg"),
        "bf16": [y.float() for y in coccl_dsl.simulate(two_shot, [v.bfloat16() for v in x])],
        "pair": [*coccl_dsl.simulate(two_shot, x[:2]), *coccl_dsl.simulate(two_shot, x[2:])],
        "scatter": [y.reshape(25, 10) for y in coccl_dsl.simulate(coccl_dsl.compile("reduce_scatter_direct"), x)],
        "mesh": coccl_dsl.simulate(coccl_dsl.compile("all_gather_mesh"), x, mesh={"node": 2, "local": 2}),
    }
    for rank in range(4):
        got = torch.load(tmp_path / f"{rank}.pt")
        for name, outputs in want.items():
            assert torch.equal(got[name], outputs[rank]), (name, rank)


def test_a_group_of_one_gets_a_tensor_of_its_own(alone: dist.ProcessGroup):
    dispatch.register(coccl_dsl.compile("ring"))
    x = torch.randn(10)
    y = torch.ops.coccl.ring(x, alone.group_name)
    assert torch.equal(x, y) and y.data_ptr() != x.data_ptr()


def test_the_operator_is_compiled_through(alone: dist.ProcessGroup):
    dispatch.register(coccl_dsl.compile("ring"))
    twice = torch.compile(
        lambda v: torch.ops.coccl.ring(v * 2, alone.group_name) + 1, backend="aot_eager", fullgraph=True
    )
    x = torch.randn(10)
    assert torch.equal(twice(x), x * 2 + 1)


def test_an_unknown_group_is_named():
    dispatch.register(coccl_dsl.compile("ring"))
    with pytest.raises(ValueError, match="no process group named 'nowhere'"):
        torch.ops.coccl.ring(torch.ones(3), "nowhere")


def test_an_unbound_call_under_capture_names_the_call_to_make_first(alone: dist.ProcessGroup, monkeypatch):
    dispatch.register(coccl_dsl.compile("one_shot"))
    x = torch.ones(10)
    monkeypatch.setattr(dispatch, "capturing", lambda x: True)
    with pytest.raises(
        CollectiveError, match=r"before the capture, call torch.ops.coccl.one_shot\(x, '\d+', 'avg'\) once"
    ):
        torch.ops.coccl.one_shot(x, alone.group_name, "avg")
    monkeypatch.undo()
    torch.ops.coccl.one_shot(x, alone.group_name, "avg")
    monkeypatch.setattr(dispatch, "capturing", lambda x: True)
    assert torch.equal(torch.ops.coccl.one_shot(x, alone.group_name, "avg"), x)


@pytest.mark.parametrize(
    ("name", "shape", "world", "want"),
    [
        ("ring", (6, 5), 4, (6, 5)),
        ("all_gather_direct", (6, 5), 4, (24, 5)),
        ("all_gather_direct", (), 4, (4,)),
        ("reduce_scatter_direct", (8, 5), 4, (2, 5)),
        ("reduce_scatter_direct", (2, 6), 4, (3,)),
        ("reduce_scatter_direct", (7,), 1, (7,)),
    ],
)
def test_shapes_are_known_without_a_call(monkeypatch, name, shape, world, want):
    class Group:
        def size(self) -> int:
            return world

    dispatch.register(coccl_dsl.compile(name))
    monkeypatch.setattr(dispatch, "resolve", lambda name: Group())
    with FakeTensorMode():
        assert getattr(torch.ops.coccl, name)(torch.empty(shape), "0").shape == want


def test_a_name_registered_again_keeps_its_operator_and_runs_the_newer_text(alone: dist.ProcessGroup, caplog):
    text = (shipped("algorithms") / "two_shot.coll").read_text()
    comps = {"int8.comp": (shipped("compressors") / "int8.comp").read_text()}
    first = dispatch.register(embedded(text.replace("two_shot", "again"), "a.coll", "again", comps))
    torch.ops.coccl.again(torch.ones(4), alone.group_name)
    same = dispatch.register(embedded(text.replace("two_shot", "again"), "a.coll", "again", comps))
    assert same is first and dispatch._entries["again"].bound and not caplog.records
    other = dispatch.register(
        embedded(text.replace("two_shot", "again"), "a.coll", "again", comps, {"q": "int8(group=64)"})
    )
    assert other is first and not dispatch._entries["again"].bound
    assert "another text" in caplog.text


@pytest.mark.parametrize(
    ("kind", "count", "world", "want"),
    [
        ("all_reduce", 1000, 3, 1024),
        ("all_reduce", 0, 3, 1),
        ("reduce_scatter", 1000, 3, 1026),
        ("all_to_all", 1024, 4, 1024),
    ],
)
def test_a_call_binds_for_all_counts_of_its_kind(kind, count, world, want):
    assert dispatch.capacity_for(kind, count, world) == want
