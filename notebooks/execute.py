"""Run the notebooks of this folder and keep their outputs: `python notebooks/execute.py [NAME ...]`. Fails where a cell raises."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
# What differs from run to run and tells a reader nothing.
NOISE = ("execution", "widgets")


def execute(path: Path, timeout: float = 120) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh kernel, started in its folder. Raises nbclient's CellExecutionError, unless the cell is tagged
    `raises-exception`."""
    notebook = nbformat.read(path, as_version=4)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, kernel_name="python3", timeout=timeout, resources=where, store_widget_state=False)
    client.execute()
    for part in (notebook, *notebook.cells):
        for name in NOISE:
            part.metadata.pop(name, None)
    return notebook


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="such as 01_first_collective; all unless given")
    names = parser.parse_args(argv).names
    for path in sorted(HERE.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        start = time.perf_counter()
        nbformat.write(execute(path), path)
        print(f"{path.name}: {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
