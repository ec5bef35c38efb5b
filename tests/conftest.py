"""Shared by all tests: golden files, and how many examples hypothesis tries."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Many small tensors: torch's threads only wait for each other, the more so where tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

GOLDEN = Path(__file__).parent / "golden"

# Timing on a shared two-core machine says nothing about the code, so neither deadlines nor slow generation fail a test.
_SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", max_examples=50, **_SLOW)
settings.register_profile("ci", max_examples=50, derandomize=True, **_SLOW)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden/*.txt with what the code prints now"
    )


class Golden:
    """Compares text with tests/golden/NAME.txt, or rewrites the file under --update-golden."""

    def __init__(self, update: bool):
        self.update = update

    def check(self, name: str, text: str) -> None:
        """Fail with a diff unless `text` is the file's. NAME may hold folders: `plan/ring_q4`."""
        path = GOLDEN / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.is_file():
            pytest.fail(f"{path} is missing: run `pytest --update-golden` and read what it wrote", pytrace=False)
        kept = path.read_text(encoding="utf-8")
        if kept != text:
            lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), str(path), "now", lineterm="")
            pytest.fail("\n".join([*lines, "", "meant? run `pytest --update-golden`"]), pytrace=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(bool(request.config.getoption("--update-golden")))
