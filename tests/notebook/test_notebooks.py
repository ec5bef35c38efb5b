"""Every notebook runs from top to bottom in a fresh kernel, and is committed with outputs that read well without one."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

_spec = importlib.util.spec_from_file_location("execute", ROOT / "notebooks" / "execute.py")
assert _spec is not None and _spec.loader is not None
execute = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(execute)


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What every cell prints or shows in a terminal."""
    found = []
    for cell in notebook.cells:
        for o in cell.get("outputs", ()):
            found.append(o.get("text") or o.get("data", {}).get("text/plain") or "\n".join(o.get("traceback", ())))
    return found


def test_there_are_six():
    assert [p.stem[:2] for p in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_and_its_faulty_cells_show_a_caret_and_no_traceback(path: Path):
    done = execute.execute(path)
    faulty = [c for c in done.cells if "raises-exception" in c.metadata.get("tags", ())]
    for cell in done.cells:
        errors = [o for o in cell.get("outputs", ()) if o.output_type == "error"]
        assert bool(errors) == (cell in faulty), cell.source
        for e in errors:
            told = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(e.traceback))
            assert e.ename == "CompileError" and re.search(r"error\[E\d+\]", told)
            assert "^" in told and "Traceback" not in told and "site-packages" not in told
    pictures = sum("image/svg+xml" in o.get("data", {}) for c in done.cells for o in c.get("outputs", ()))
    assert pictures >= (1 if path.stem.startswith("06") else 2)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_committed_with_its_outputs(path: Path):
    kept = nbformat.read(path, as_version=4)
    code = [c for c in kept.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1)), "run `python notebooks/execute.py`"
    assert all(c.outputs for c in code[1:])
    told = "\n".join(texts(kept))
    assert not re.search(r"\b0x[0-9a-f]{6}", told) and str(Path.home()) not in told and "/tmp/" not in told
    assert path.stat().st_size < 1_000_000
    for target in re.findall(r"\]\(([^)#:]+)\)", "\n".join(c.source for c in kept.cells if c.cell_type == "markdown")):
        assert (path.parent / target).exists(), target


def test_a_cell_that_raises_fails_the_run(tmp_path: Path):
    from nbclient.exceptions import CellExecutionError

    path = tmp_path / "broken.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), path)
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute.execute(path)
