"""README's figures come from the results, and from nowhere else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_readme_table_is_made_from_the_results():
    spec = importlib.util.spec_from_file_location("readme_table", ROOT / "benchmarks" / "readme_table.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    document = json.loads((ROOT / "benchmarks" / "results" / "nvlink.json").read_text())
    assert made.table(document) in (ROOT / "README.md").read_text()
    assert all(document[key] for key in ("command", "commit", "machine", "versions"))
