"""examples/train_3d.py on gloo processes: every policy, on one world of 4 ranks, and in the long form on one of 2 x 2 x 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import train_3d  # noqa: E402
from three_d.models import Stage, config_of, materialize  # noqa: E402
from three_d.text import Text  # noqa: E402

TINY = ("gpt-tiny", "qwen2.5-tiny")
CPU = torch.device("cpu")
SHORT = {"gpt-tiny": "2x1x2", "qwen2.5-tiny": "2x2x1"}
LONG = {model: "2x2x2" for model in TINY}
SENT = {
    "off": {"fsdp", "tp", "pp"},
    "dp": {"fsdp"},
    "tp": {"tp"},
    "pp": {"pp"},
    "3d": {"fsdp", "tp", "pp"},
}


def world(folder: Path, steps: int, meshes: dict[str, str], seconds: float) -> dict[str, dict[str, dict]]:
    paths = [
        str(ROOT),
        str(ROOT / "tests" / "torch"),
        str(ROOT / "tests" / "runtime"),
        os.environ.get("PYTHONPATH", ""),
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    given = [str(folder), str(steps), *(f"{model}:{mesh}" for model, mesh in meshes.items())]
    done = subprocess.run(
        [sys.executable, str(HERE / "train_3d_worker.py"), *given],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return json.loads((folder / "found.json").read_text())


def look(found: dict[str, dict[str, dict]], meshes: dict[str, str], apart: float) -> None:
    """apart: how far the losses of `3d` may be from those of no compression."""
    for model, runs in found.items():
        dp, tp, pp = train_3d._mesh(meshes[model])
        there = {name for name, size in (("fsdp", dp), ("tp", tp), ("pp", pp)) if size > 1}
        assert runs["off"]["losses"] == runs["native"]["losses"] and runs["off"]["weights"] == runs["native"]["weights"]
        for policy, dimensions in SENT.items():
            if not dimensions & there:
                continue
            run = runs[policy]
            assert {row["dimension"] for row in run["bytes"]} == dimensions & there, (model, policy)
            saves = [row["raw_bytes"] > 3 * row["sent_bytes"] for row in run["bytes"]]
            assert all(saves) if policy != "off" else not any(saves), (model, policy)
            if policy != "off":
                assert run["weights"] != runs["native"]["weights"], (model, policy)
        for name, run in runs.items():
            assert run["replicas_differ"] == [], (model, name)
        near = runs["3d"]["validation_loss"] / runs["native"]["validation_loss"]
        assert abs(near - 1) < apart, (model, near)
        assert runs["native"]["losses"][-1] < runs["native"]["losses"][0] - 0.3
        for whole in ("3d", "ddp") if tp == 1 else ("3d",):
            resumed = runs["resumed" if whole == "3d" else "ddp resumed"]
            assert resumed["losses"] == runs[whole]["losses"][-len(resumed["losses"]) :], (model, whole)
            assert resumed["weights"] == runs[whole]["weights"], (model, whole)
        if tp == 1:
            assert runs["ddp off"]["weights"] == runs["ddp native"]["weights"]
            assert {row["compressor"] for row in runs["ddp"]["bytes"]} >= {"int8(round=stochastic)"}


def alone(folder: Path, model: str) -> list[float]:
    """Losses of the native run's options on one rank."""
    log = folder / "alone.jsonl"
    first = json.loads((folder / f"{model} native.jsonl").read_text().splitlines()[0])
    given = {f.name: first[f.name] for f in fields(train_3d.Options)}
    o = train_3d.Options(**given | {"mesh": (1, 1, 1), "json": log})
    dist.init_process_group("gloo", init_method=f"file://{folder}/{model} alone", rank=0, world_size=1)
    try:
        train_3d.Run(o, CPU, Text(1 << 21)).train()
    finally:
        dist.destroy_process_group()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.unlink()
    return [line["loss"] for line in lines if line["kind"] == "step"]


def test_policies_train_as_they_should_on_four_ranks(tmp_path: Path):
    found = world(tmp_path, 6, SHORT, 300)
    look(found, SHORT, 0.02)
    for model, runs in found.items():
        assert runs["native"]["losses"] == pytest.approx(alone(tmp_path, model), rel=1e-4), model


@pytest.mark.full
def test_policies_train_as_they_should_on_eight_ranks(tmp_path: Path):
    look(world(tmp_path, 30, LONG, 1500), LONG, 0.02)


def stage(name: str, of: range) -> Stage:
    config = config_of(name)
    made = Stage(config, of)
    for part, module in made.parts():
        materialize(module, part, config, 1, CPU, 0)
    return made


@pytest.mark.parametrize("name", TINY)
def test_stages_are_the_model_of_transformers(name: str):
    """Logits of its own forward, with our stage's weights in its own names, and of two stages in turn, bit for bit."""
    from transformers import AutoModelForCausalLM

    config = config_of(name)
    tokens = torch.randint(config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    whole = stage(name, range(2))
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    body = theirs.base_model
    names = {
        "blocks.": "h." if whole.gpt else "layers.",
        "embedding.": "wte." if whole.gpt else "embed_tokens.",
        "positions.": "wpe.",
        "norm.": "ln_f." if whole.gpt else "norm.",
    }
    given = {}
    for key, value in whole.state_dict().items():
        start = key.split(".")[0] + "."
        if start == "head.":
            theirs.lm_head.weight.data.copy_(value)
            continue
        key = names[start] + key.removeprefix(start)
        transposed = whole.gpt and value.ndim == 2 and start == "blocks."  # Conv1D
        given[key.replace("c_proj.0.", "c_proj.").replace("c_proj.1.", "c_proj.")] = value.T if transposed else value
    body.load_state_dict(given)
    with torch.no_grad():
        right = theirs(tokens).logits
        logits = whole(tokens)
        assert torch.equal(stage(name, range(1, 2))(stage(name, range(1))(tokens)), logits)
    torch.testing.assert_close(logits, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "published"), [("gpt-1.3b", 1.42e9), ("qwen2.5-0.5b", 0.63e9), ("qwen2.5-7b", 7.62e9)]
)
def test_models_have_their_published_sizes(name: str, published: float):
    """Of Qwen2.5 in its reports, of GPT-3 XL 1.3e9; where these tie the head, with a head of its own."""
    config = config_of(name)
    whole = Stage(config, range(config.num_hidden_layers))
    assert sum(p.numel() for p in whole.parameters()) == pytest.approx(published, rel=0.01)


def test_batches_do_not_depend_on_the_mesh():
    text = Text(1 << 20)
    tokens, targets = text.batch(3, 8, 16, (0, 1))
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    for parts in (2, 4):
        split = [text.batch(3, 8, 16, (i, parts))[0] for i in range(parts)]
        assert torch.equal(torch.cat(split), tokens)
    assert not torch.equal(text.batch(4, 8, 16, (0, 1))[0], tokens)
    assert not torch.equal(text.batch(3, 8, 16, (0, 1), validation=True)[0], tokens)


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch):
    for name, value in train_3d.ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


SMALL = "--batch 4 --length 16 --dtype f32 --log-every 1 --validation-batches 1".split()


def log_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_command_trains_and_goes_on(one_rank: None, tmp_path: Path):
    def run(name: str, *more: str) -> list[dict]:
        log = tmp_path / name
        assert train_3d.main([*SMALL, "--steps", "4", "--json", str(log), *more]) == 0
        return log_of(log)

    whole = run("whole", "--checkpoint", str(tmp_path), "--checkpoint-every", "2", "--validate-every", "2")
    assert [line["kind"] for line in whole] == "run step step validation step step end".split()
    assert whole[-1]["tokens_per_second"] > 0 and whole[-1]["bytes"] == []
    rest = run("rest", "--resume", str(tmp_path / "step_2"), "--check-replicas")
    assert [line["loss"] for line in rest[1:3]] == [line["loss"] for line in whole[4:6]]
    assert rest[-1]["weights"] == whole[-1]["weights"] and rest[-1]["replicas_differ"] == []


def test_without_communication_there_is_a_time_and_nothing_else(one_rank: None, tmp_path: Path, monkeypatch):
    """One rank of a mesh that is not there."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    more = ["--steps", "2", "--mesh", "2x2x2", "--batch", "16", "--no-communication", "--json", str(tmp_path / "log")]
    assert train_3d.main([*SMALL, *more]) == 0
    end = log_of(tmp_path / "log")[-1]
    assert end["step_seconds"] > 0 and end.keys().isdisjoint({"validation_loss", "weights", "bytes"})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--mesh", "2x2x2"], "is of 8 ranks, and there are 1"),
        (["--batch", "3", "--mesh", "1x1x1", "--length", "1000"], "gpt-tiny takes 256 tokens at most"),
        (["--steps", "0"], "--steps is at least 1"),
        (["--policy", "nowhere.toml"], "nowhere.toml"),
        (["--no-communication", "--checkpoint", "x"], "goes with neither --checkpoint"),
        (["--data", "ddp", "--weights", "bf16"], "--data ddp reduces in the weights' dtype"),
    ],
)
def test_what_does_not_fit_together_is_said(
    one_rank: None, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
):
    assert train_3d.main(arguments) == 2
    assert why in capsys.readouterr().err


def test_weights_and_optimizer_may_take_less_memory(one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = []

    class Seen(train_3d.Run):
        def train(self):
            made.append(self)
            return super().train()

    monkeypatch.setattr(train_3d, "Run", Seen)
    for weights, optimizer, states in (("bf16", "sgd", 0), ("bf16", "adamw", 2), ("f32", "adamw", 2)):
        log = tmp_path / f"{weights} {optimizer}"
        more = ["--weights", weights, "--optimizer", optimizer, "--lr", "0.1" if optimizer == "sgd" else "3e-3"]
        assert train_3d.main([*SMALL, "--steps", "8", "--warmup", "1", "--json", str(log), *more]) == 0
        losses = [line["loss"] for line in log_of(log) if line["kind"] == "step"]
        assert losses[-1] < losses[0], (weights, optimizer)
        (run,) = made
        assert {p.dtype for p in run.parameters} == {train_3d.DTYPES[weights]}
        for held in run.optimizer.state.values():
            tensors = [t for name, t in held.items() if name != "step" and t is not None]
            assert len(tensors) == states and {t.dtype for t in tensors} <= {train_3d.DTYPES[weights]}
        made.clear()


def test_ranks_of_one_machine_share_gpus_where_there_are_fewer(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    names = ("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE")

    def environment(**env: str) -> list[str | None]:
        with monkeypatch.context() as m:
            m.setattr(train_3d.os, "environ", {"RANK": "0", "WORLD_SIZE": "2", **env})
            train_3d.share_gpus()
            return [train_3d.os.environ.get(name) for name in names]

    assert environment(LOCAL_WORLD_SIZE="2") == ["rank0", "lo", "1"]
    assert "2 ranks share 1 GPU(s)" in capsys.readouterr().err
    assert environment(LOCAL_WORLD_SIZE="2", NCCL_SOCKET_IFNAME="eth0") == ["rank0", "eth0", "1"]
    assert environment(LOCAL_WORLD_SIZE="1") == [None] * 3, "two machines"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert environment(LOCAL_WORLD_SIZE="2") == [None] * 3
