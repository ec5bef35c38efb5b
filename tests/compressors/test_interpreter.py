"""Every compressor's generated kernels under Triton's interpreter, bit for bit against the reference; the long form has every dtype and form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compressors import triton_all


def run(folder: Path, *words: str) -> dict[str, str]:
    """case -> problem, empty where there is none."""
    root = Path(__file__).parents[2]
    env = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "COCCL_CACHE": str(folder),
    }
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("triton_all.py")), "cpu"]
    started = [
        subprocess.Popen(
            [*program, str(i), "2", *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    found: dict[str, str] = {}
    for process in started:
        out, err = process.communicate(timeout=1800)
        assert process.returncode == 0, err
        found |= {a["case"]: a["problem"] for a in map(json.loads, out.splitlines())}
    return found


def test_the_defaults_agree_with_the_reference(tmp_path: Path) -> None:
    problems = run(tmp_path, "--some")
    assert set(problems) == {case.name for case in triton_all.some()}
    assert not {k: v for k, v in problems.items() if v}


@pytest.mark.full
def test_every_form_and_dtype_agrees_with_the_reference(tmp_path: Path) -> None:
    problems = run(tmp_path)
    assert len(problems) >= len({case.name for case in triton_all.cases()})
    assert not {k: v for k, v in problems.items() if v}
