"""The transparent path on four gloo processes under torchrun: one world for an unchanged training script and for everything else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from worlds import POLICY, free_ports, torchrun

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WORLD = 4


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transparent")
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    torchrun(folder, HERE / "transparent_world.py", str(folder), free_ports(3), world=WORLD, COCCL_POLICY=str(policy))
    return folder


def weights(folder: Path, name: str) -> list[dict[str, list[torch.Tensor]]]:
    return [torch.load(folder / f"{name}.{r}") for r in range(WORLD)]


def test_an_unchanged_script_trains_compressed(world: Path):
    compressed, native = weights(world, "compressed"), weights(world, "native")
    for rank in range(WORLD):
        for part, tensors in native[rank].items():
            near = [float((a - b).norm() / b.norm()) for a, b in zip(compressed[rank][part], tensors, strict=True)]
            assert 0 < max(near) < 0.01, (rank, part, near)
    for part, replicas in (
        ("ddp", range(WORLD)),
        ("fsdp_tp", range(WORLD)),
        ("pipeline", (0, 1)),
        ("pipeline", (2, 3)),
    ):
        for rank in replicas:
            for a, b in zip(compressed[rank][part], compressed[replicas[0]][part], strict=True):
                assert torch.equal(a, b), (part, rank)


def test_its_report_names_every_dimension(world: Path):
    report = json.loads((world / "report.json").read_text())
    rows = {(r["role"], r["op"]): r for r in report["compressed"]}
    expected = {
        ("dp", "all_reduce"),
        ("fsdp", "all_gather"),
        ("fsdp", "reduce_scatter"),
        ("tp", "all_reduce"),
        ("pp", "send"),
        ("pp", "recv"),
    }
    assert rows.keys() == expected
    for key in expected - {("pp", "recv")}:
        assert rows[key]["raw_bytes"] > 3 * rows[key]["wire_bytes"] > 0, key
    reasons = {(r["role"], r["op"], r["reason"]) for r in report["native"]}
    assert ("pp", "send", "int64") in reasons and ("tp", "all_gather", "DTensor.full_tensor") in reasons


def test_a_rule_that_matches_nothing_changes_no_bit(world: Path):
    for a, b in zip(weights(world, "matches_nothing"), weights(world, "native"), strict=True):
        for part, tensors in b.items():
            for x, y in zip(a[part], tensors, strict=True):
                assert torch.equal(x, y), part


def test_everything_that_users_call_is_right(world: Path):
    told = [json.loads((world / f"cases.{r}.json").read_text()) for r in range(WORLD)]
    wrong = [f"rank {r}: {name}: {why}" for r, cases in enumerate(told) for name, why in cases.items() if why]
    assert not wrong, "\n".join(wrong)


def test_the_documented_table_has_a_case_for_each_row(world: Path):
    text = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    table = text.split("<!-- what runs -->")[1].split("<!-- end -->")[0]
    rows = set(re.findall(r"^\| ([^|]+?) +\|", table, re.MULTILINE)) - {"What is called", "---"}
    cases = set(json.loads((world / "cases.0.json").read_text())) - {"Works left alive"}
    on_gpus = {"CUDA-graph capture"}
    assert rows - on_gpus == cases


@pytest.mark.full
@pytest.mark.parametrize("turn", range(10))
def test_300_steps_beside_threads_end_and_leave_nothing(tmp_path: Path, turn: int):
    name = "threads: DDP and a pipeline beside object collectives and async checkpoints"
    arguments = (str(tmp_path), free_ports(3), name)
    script = HERE / "transparent_world.py"
    torchrun(tmp_path, script, *arguments, timeout=400, world=WORLD, COCCL_TEST_STEPS="300")
    for rank in range(WORLD):
        assert not any(json.loads((tmp_path / f"cases.{rank}.json").read_text()).values())


@pytest.mark.full
def test_graphs_of_inductor(tmp_path: Path):
    arguments = (str(tmp_path), free_ports(3), "torch.compile(fullgraph=True)")
    script = HERE / "transparent_world.py"
    torchrun(tmp_path, script, *arguments, timeout=400, world=WORLD, COCCL_TEST_FULL="1")
    for rank in range(WORLD):
        assert not any(json.loads((tmp_path / f"cases.{rank}.json").read_text()).values())
