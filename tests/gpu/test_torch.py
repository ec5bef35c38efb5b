"""The transparent path on GPUs: an unchanged training script under torchrun, and everything that users call, over NCCL, with streams, captures,
inductor and 200 steps of training. Ranks share a GPU where there are too few (tests/runtime/lone.py): about 4 ms a call then, as their processes take
turns.

Three worlds, side by side, as most of their time is compiling kernels on the host; each has its own processes and its own limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from lone import environment
from worlds import POLICY, free_ports, torchrun

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, this machine has none")
WORKERS = Path(__file__).parents[1] / "torch"
SECONDS = 240
# In the order in which they run: what is after one that fails is not reached.
OF_GPUS = (
    "CUDA-graph capture",
    "streams and freed tensors",
    "batches and single messages in both directions",
    "_coalescing_manager with a device",
    "each transport, in passes too",
    "replicas after many steps",
)
OF_ALL = (
    "all_reduce, sync and async",
    "all_reduce of integers, MAX, MIN, PRODUCT, float64",
    "what no rule can take",
    "all_gather_into_tensor, reduce_scatter_tensor, in place too",
    "list forms",
    "broadcast and reduce",
    "all_to_all_single, even and uneven, and all_to_all",
    "_coalescing_manager",
    "functional collectives",
    "send, recv, isend, irecv, batch_isend_irecv",
    "object collectives, gather, scatter, barrier",
    "DTensor",
    "steps before after_step, and their number saved",
    "stochastic rounding continues where it was saved",
    "debug: errors of every n-th call, calls that differ",
    "a log of the run, for coccl-policy explain",
    "profiles name role and plan",
    "DDP: static_graph, no_sync, gradient_as_bucket_view, find_unused_parameters",
    "DDP with buffers",
    "a compressor with a state, by name, in DDP and FSDP2",
    "FSDP1",
    "FSDP2: mixed precision, HSDP, force_sum, divide factors",
    "ZeRO-1",
    "pipelining: 1F1B and interleaved",
    "torch.distributed.checkpoint: save, load, async_save",
    "torch.compile(fullgraph=True)",
    "policies that differ, or that one rank cannot read",
)


class World:
    """A run of tests/torch/transparent_world.py, and what it has found. problem: why it did not end well."""

    def __init__(self, folder: Path, ranks: int, *parts: str, policy: str = "", env: dict[str, str] | None = None):
        self.folder, self.ranks, self.problem = folder, ranks, ""
        own = {"COCCL_TEST_DEVICE": "cuda", "TORCHINDUCTOR_COMPILE_THREADS": "1", **environment(ranks), **(env or {})}
        if policy:
            (folder / "policy.toml").write_text(policy)
            own["COCCL_POLICY"] = str(folder / "policy.toml")
        script = WORKERS / "transparent_world.py"
        ports = free_ports(3)
        try:
            torchrun(folder, script, str(folder), ports, ";".join(parts), world=ranks, timeout=SECONDS, **own)
        except AssertionError as e:
            self.problem = str(e)
        if (times := folder / "times.0.json").exists():  # pytest -s shows it
            print(f"seconds of {ranks} ranks: {json.loads(times.read_text())}", flush=True)

    def wrong(self, case: str) -> str:
        """What is wrong with a case, or ""."""
        for rank in range(self.ranks):
            told = self.told(rank)
            if case not in told:
                first = next((f"{name}: {why}" for name, why in told.items() if why), "")
                return f"rank {rank} has not reached it. {first or self.problem}"
            if told[case]:
                return f"rank {rank}: {told[case]}"
        return ""

    def told(self, rank: int) -> dict[str, str]:
        path = self.folder / f"cases.{rank}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def weights(self, name: str) -> list[dict[str, list[torch.Tensor]]]:
        assert not self.problem, self.problem
        return [torch.load(self.folder / f"{name}.{r}", map_location="cpu") for r in range(self.ranks)]


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future]]:
    """The worlds of the chosen tests, under way: `script`, `gpu` and `all`."""
    items = [i for i in request.session.items if isinstance(i, pytest.Function) and i.module is request.module]
    chosen = {i.callspec.params["name"] if hasattr(i, "callspec") else "script" for i in items}
    with ThreadPoolExecutor() as pool:

        def start(ranks: int, *parts: str, **options) -> Future:
            return pool.submit(World, tmp_path_factory.mktemp("world"), ranks, *parts, **options)

        made = {}
        if "script" in chosen:
            made["script"] = start(4, "script", policy=POLICY, env={"DEVICE": "cuda"})
        for group, names in {"gpu": OF_GPUS, "all": OF_ALL}.items():
            if some := [name for name in names if name in chosen]:
                made[group] = start(2, *some, env={"COCCL_TEST_FULL": "1"})
        yield made


@pytest.fixture
def script(started: dict[str, Future]) -> World:
    return started["script"].result()


def test_an_unchanged_script_trains_compressed(script: World):
    compressed, native = script.weights("compressed"), script.weights("native")
    for rank in range(4):
        for part, tensors in native[rank].items():
            near = [float((a - b).norm() / b.norm()) for a, b in zip(compressed[rank][part], tensors, strict=True)]
            assert 0 < max(near) < 0.01, (rank, part, near)
    replicas = {"ddp": [range(4)], "fsdp_tp": [range(4)], "pipeline": [(0, 1), (2, 3)]}
    for part, groups in replicas.items():
        for first, *others in groups:
            for rank in others:
                for a, b in zip(compressed[rank][part], compressed[first][part], strict=True):
                    assert torch.equal(a, b), (part, rank)


def test_its_report_names_every_dimension(script: World):
    assert not script.problem, script.problem
    report = json.loads((script.folder / "report.json").read_text())
    rows = {(r["role"], r["op"]): r for r in report["compressed"]}
    assert rows.keys() == {
        ("dp", "all_reduce"),
        ("fsdp", "all_gather"),
        ("fsdp", "reduce_scatter"),
        ("tp", "all_reduce"),
        ("pp", "send"),
        ("pp", "recv"),
    }
    for key in rows.keys() - {("pp", "recv")}:
        assert rows[key]["raw_bytes"] > 3 * rows[key]["wire_bytes"] > 0, key


def test_a_rule_that_matches_nothing_changes_no_bit(script: World):
    for a, b in zip(script.weights("matches_nothing"), script.weights("native"), strict=True):
        for part, tensors in b.items():
            for x, y in zip(a[part], tensors, strict=True):
                assert torch.equal(x, y), part


@pytest.mark.parametrize("name", OF_ALL)
def test_what_users_call(name: str, started: dict[str, Future]):
    wrong = started["all"].result().wrong(name)
    assert not wrong, wrong


@pytest.mark.parametrize("name", OF_GPUS)
def test_what_only_gpus_have(name: str, started: dict[str, Future]):
    wrong = started["gpu"].result().wrong(name)
    assert not wrong, wrong
