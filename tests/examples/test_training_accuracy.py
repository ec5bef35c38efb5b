"""benchmarks/training_accuracy.py: what it compares, what it keeps of an earlier call, and (full) the whole of it with a tiny model."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "training_accuracy.py"
spec = importlib.util.spec_from_file_location("training_accuracy", SCRIPT)
assert spec is not None and spec.loader is not None
accuracy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(accuracy)


def test_dp_is_to_be_near_off_and_the_bad_one_is_not():
    def met(off: float, dp: float, bad: float) -> dict[str, bool]:
        losses = {"off": off, "dp": dp, "bad": bad}
        found = accuracy.compared({name: {"repeats": [{"validation_loss": loss}]} for name, loss in losses.items()})
        return {name: row["met"] for name, row in found.items()}

    assert met(2.0, 2.009, 2.2) == {"dp": True, "bad": True}
    assert met(2.0, 1.991, 2.009) == {"dp": True, "bad": False}
    assert met(2.0, 2.011, float("nan")) == {"dp": False, "bad": True}
    assert met(2.0, float("nan"), 2.0) == {"dp": False, "bad": False}
    assert accuracy.compared({"dp": {"repeats": [{"validation_loss": 1.0}]}}) == {}


def test_runs_beside_each_other_are_merged_and_their_means_compared(tmp_path: Path, capsys, monkeypatch):
    for i, (name, loss) in enumerate([("off", 2.0), ("dp", 2.1), ("off", 2.2), ("dp", 2.1), ("bad", 9.0)]):
        made = {"validation_loss": loss, "losses": [3.0, loss], "sent_share": 0.5, "seconds": 1.0}
        settings = accuracy.LARGE | {"data": "ddp", "seed": 0, "mesh": "2x1x1"}
        document = {
            "settings": settings,
            "machine": {},
            "versions": {},
            "command": f"c{i}",
            "commit": "a",
            "date": f"d{i}",
        }
        (tmp_path / f"{i}.json").write_text(json.dumps(document | {"runs": {name: made}}))
    parts = [str(tmp_path / f"{i}.json") for i in range(5)]
    monkeypatch.setattr(sys, "argv", ["x", "--json", str(tmp_path / "all.json"), "--merge", *parts])
    assert accuracy.main() == 0
    found = json.loads((tmp_path / "all.json").read_text())
    assert found["compared"]["dp"]["of_off"] == pytest.approx(0) and found["compared"]["dp"]["met"]
    assert [r["date"] for r in found["runs"]["off"]["repeats"]] == ["d0", "d2"] and found["runs"]["off"]["losses"][
        -1
    ] == 2.2
    said = capsys.readouterr().out
    assert "2.0000 2.2000" in said and "bars missed: none" in said
    (tmp_path / "9.json").write_text(json.dumps(document | {"settings": {}, "runs": {}}))
    monkeypatch.setattr(sys, "argv", [*sys.argv, str(tmp_path / "9.json")])
    assert accuracy.main() == 2 and "9.json has other settings" in capsys.readouterr().err


def test_what_is_there_is_kept_if_its_settings_are_the_same(tmp_path: Path):
    path = tmp_path / "new" / "found.json"
    assert accuracy.read(path, {"steps": 3}) == {"settings": {"steps": 3}, "runs": {}}
    path.write_text(json.dumps({"settings": {"steps": 3}, "runs": {"off": {}}}))
    assert accuracy.read(path, {"steps": 3})["runs"] == {"off": {}}
    with pytest.raises(ValueError, match="was made with other steps: name another --json"):
        accuracy.read(path, {"steps": 4})


@pytest.mark.full
def test_a_run_that_fails_or_is_late_or_compresses_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accuracy, "BAD", '[[rule]]\non = "tp.all_reduce"\ncompressor = "int8"\n')
    few = accuracy.SMALL | {"data": "ddp", "mesh": "2x1x1", "steps": 2, "warmup": 1}
    with pytest.raises(RuntimeError, match="nothing was compressed"):
        accuracy.run("bad", few, tmp_path / "a.json", 100)
    with pytest.raises(RuntimeError, match=r"exit status 1\n(.|\n)*is not a multiple"):
        accuracy.run("off", accuracy.SMALL | {"data": "ddp", "mesh": "2x1x1", "batch": 3}, tmp_path / "a.json", 100)
    with pytest.raises(RuntimeError, match=r"not done after 1 s \(--seconds\)"):
        accuracy.run("off", accuracy.SMALL | {"data": "ddp", "mesh": "2x1x1"}, tmp_path / "a.json", 1)


@pytest.mark.full
def test_a_tiny_model(tmp_path: Path):
    path = tmp_path / "a.json"
    command = [sys.executable, str(SCRIPT), "--small", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert all(row["met"] for row in found["compared"].values()) and set(found["runs"]) == {"off", "dp", "bad"}
    exact = 30 / 100  # of the steps
    assert found["runs"]["dp"]["sent_share"] == pytest.approx(exact + (1 - exact) * 4.125 / 32, abs=0.01)
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert again.stdout.count("is there already") == 3
