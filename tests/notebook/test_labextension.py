"""JupyterLab's editor colours the words that the Pygments lexer knows, and the wheel installs it where JupyterLab looks."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from coccl_dsl import __version__
from coccl_dsl.lang.lexer import KEYWORDS, OPERATORS, TYPES
from coccl_dsl.lang.program import KINDS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "labextension"


def words(kind: str) -> set[str]:
    """The words of one kind in the script."""
    text = (FOLDER / "static" / "remoteEntry.js").read_text()
    found = re.search(rf'\b{kind}:\s*((?:"[^"]*"\s*\+?\s*)+),', text)
    assert found is not None
    return set(" ".join(re.findall(r'"([^"]*)"', found[1])).split())


def test_the_words_are_those_of_the_lexer():
    assert words("keyword") == {*KEYWORDS, "range", "wire"}
    assert words("operator") == set(OPERATORS)
    assert words("type") == set(TYPES)
    assert words("kind") == {*KINDS, "divergent"}


def test_the_package_is_what_jupyterlab_loads():
    package = json.loads((FOLDER / "package.json").read_text())
    build = package["jupyterlab"]["_build"]
    assert (FOLDER / build["load"]).is_file() and package["version"] == __version__
    assert f'_JUPYTERLAB["{package["name"]}"]' in (FOLDER / build["load"]).read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    assert shared == {"labextension": f"share/jupyter/labextensions/{package['name']}"}
