"""Every example of README and docs is run, in order, in an empty folder: texts are proven, Python runs, commands end well.

A fenced block says what it is: `coll` and `comp` are written to NAME.coll and NAME.comp and compiled (`coll E307` must fail so), `python` blocks of a page share
their names, of `sh` the lines that start with coccl-compile or coccl-policy are run. `toml` blocks are policies, written to the file that their first line
names, and checked. Other fences are shown only.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from coccl_dsl import pipeline
from coccl_dsl.cli.compile import main
from coccl_dsl.cli.policy import main as policy_main
from coccl_dsl.diagnostics import CompileError, Source
from coccl_dsl.lang.formatter import format_text
from coccl_dsl.lang.integers import WRITTEN
from coccl_dsl.lang.program import KINDS
from coccl_dsl.wire.builtins import FUNCTIONS
from coccl_dsl.wire.codec import TYPES
from coccl_dsl.wire.scope import PARAM_KINDS, ROUNDINGS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").glob("*.md") if p.name != "errors.md")]

# Where an example joins a process group, it is alone in it.
GROUP_OF_ONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@dataclass(frozen=True)
class Block:
    line: int
    kind: str
    fails: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = []
    text = page.read_text(encoding="utf-8")
    for m in re.finditer(r"^```(\w*) ?(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        found.append(Block(text[: m.start()].count("\n") + 1, m[1], m[2], m[3]))
    return found


def name_of(text: str, what: str) -> str:
    found = re.search(rf"^{what} (\w+)", text, re.MULTILINE)
    assert found is not None
    return found[1]


def run_coll(block: Block) -> None:
    path = Path(name_of(block.text, "collective") + ".coll")
    path.write_text(block.text, encoding="utf-8")
    assert format_text(Source(path.name, format_text(Source(path.name, block.text)))) == format_text(
        Source(path.name, block.text)
    )
    if block.fails:
        with pytest.raises(CompileError) as caught:
            pipeline.compile(path)
        assert block.fails in caught.value.codes
    else:
        pipeline.compile(path)


def run_comp(block: Block) -> None:
    path = Path(name_of(block.text, "compressor") + ".comp")
    path.write_text(block.text, encoding="utf-8")
    assert format_text(Source(path.name, block.text)) == block.text
    assert main([str(path), "--check"]) == 0


COMMANDS = {"coccl-compile": main, "coccl-policy": policy_main}


def commands(block: Block) -> list[list[str]]:
    lines = [shlex.split(part) for line in block.text.splitlines() for part in line.split("&&")]
    return [words for words in lines if words and words[0] in COMMANDS]


def run_toml(block: Block) -> None:
    path = Path(block.text.split("\n")[0].removeprefix("# "))
    path.write_text(block.text, encoding="utf-8")
    assert policy_main(["check", str(path)]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, value in GROUP_OF_ONE.items():
        monkeypatch.setenv(name, value)
    names: dict[str, object] = {}
    ran = 0
    for block in blocks(page):
        ran += 1
        if block.kind == "coll":
            run_coll(block)
        elif block.kind == "comp":
            run_comp(block)
        elif block.kind == "python":
            exec(compile(block.text, f"{page.name}:{block.line}", "exec"), names)  # noqa: S102
        elif block.kind == "toml":
            run_toml(block)
        elif block.kind == "sh":
            for command in commands(block):
                assert COMMANDS[command[0]](command[1:]) == 0, (
                    f"{page.name}:{block.line}: {command}: {capsys.readouterr().err}"
                )
        else:
            ran -= 1
    assert ran


def test_readme_shows_what_the_run_prints():
    """The table of README is that of its command, less times."""
    shown = [b.text for b in blocks(ROOT / "README.md") if b.kind == "text"]
    assert len(shown) == 1 and re.search(
        r"total +3,311,872 +\d\.\d\de-\d\d +2,561,632 +19,871,744  7.76x less  yes", shown[0]
    )


def test_how_it_works_shows_the_plan_that_is_printed(capsys):
    shown = next(b.text for b in blocks(ROOT / "docs" / "how_it_works.md") if b.kind == "text")
    assert main(["two_shot", "--emit", "plan"]) == 0
    assert shown in capsys.readouterr().out


def test_how_it_works_shows_the_picture_that_is_drawn(tmp_path: Path):
    assert main(["two_shot", "--draw", str(tmp_path / "two_shot.svg")]) == 0
    assert (ROOT / "docs/pictures/two_shot.svg").read_bytes() == (tmp_path / "two_shot.svg").read_bytes()


def test_write_an_algorithm_shows_the_error_that_is_raised(tmp_path: Path):
    page = blocks(ROOT / "docs" / "write_an_algorithm.md")
    at = next(i for i, b in enumerate(page) if b.fails)
    path = tmp_path / "star.coll"
    path.write_text(page[at].text)
    with pytest.raises(CompileError) as caught:
        pipeline.compile(path)
    assert str(caught.value) == page[at + 1].text.rstrip("\n")


def test_the_reference_names_everything_that_the_languages_have():
    text = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    algorithms, compressors = text.split("\n# Compressors\n")
    for name in (*WRITTEN, *KINDS):
        assert re.search(rf"`{name}\b", algorithms), name
    for name in (*FUNCTIONS, "up"):
        assert re.search(rf"`{name}\(", compressors), name
    for name in (*TYPES, *PARAM_KINDS, *ROUNDINGS):
        assert re.search(rf"\b{name}\b", compressors), name


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
