"""The notebooks in a real JupyterLab, in a headless Chromium, without any network but the loopback."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"


@pytest.mark.full
@pytest.mark.skipif(
    shutil.which("chromium") is None or any(importlib.util.find_spec(m) is None for m in ("playwright", "jupyterlab")),
    reason="needs chromium, and the extra `browser`",
)
def test_notebooks_run_in_jupyterlab_and_answer_to_faults_and_sliders():
    """Screenshots are left in build/screenshots, to be looked at."""
    apart = ["unshare", "--map-root-user", "--net"]
    alone = subprocess.run([*apart, "true"], capture_output=True).returncode == 0
    command = [*(apart if alone else []), sys.executable, str(Path(__file__).with_name("browser.py")), str(SCREENSHOTS)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *(["--loopback"] if alone else [])], env=env, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    names = {p.stem for p in SCREENSHOTS.glob("*.png")}
    assert {"01_diagram", "01_faulty_cell", "01_slider_after", "03_slider_after", "03_picture_0"} <= names
