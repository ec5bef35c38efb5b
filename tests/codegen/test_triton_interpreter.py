"""The generated kernels under Triton's interpreter, bit for bit against the reference (triton_cases.py has the cases).

The interpreter has to be chosen before Triton is imported, so the cases run in processes of their own; once, for all tests of this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen import triton_cases

CASES = [case.name for case in triton_cases.cases()]
PROCESSES = 2


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = Path(__file__).parents[2]
    env = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "COCCL_CACHE": str(tmp_path_factory.mktemp("kernels")),
    }
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("triton_cases.py")), "cpu"]
    started = [
        subprocess.Popen(
            [*program, str(i), str(PROCESSES)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for i in range(PROCESSES)
    ]
    found: dict[str, str] = {}
    for process in started:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        for line in out.splitlines():
            answer = json.loads(line)
            found[answer["case"]] = answer["problem"]
    return found


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(name: str, problems: dict[str, str]) -> None:
    assert problems[name] == "", problems[name]


def test_kernels_are_made_once(problems: dict[str, str]) -> None:
    assert problems[triton_cases.MADE_ONCE] == "", problems[triton_cases.MADE_ONCE]


def test_case_names_are_unique() -> None:
    assert len(set(CASES)) == len(CASES)
