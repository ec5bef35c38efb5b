"""%%coll, %%comp and %coll_bench in a shell of this process."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import coccl_dsl
from coccl_dsl import load_ipython_extension
from coccl_dsl.codegen.codec_api import BoundCodec
from coccl_dsl.diagnostics import CompileError
from coccl_dsl.notebook.comparison import Comparison
from coccl_dsl.pipeline import Collective
from coccl_dsl.wire.codec import Codec

COMP = """%%comp
compressor onebit(group: int = 128) {
  wire {
    sign : u1[group]
    size : bf16
  }
  nonfinite size
  compress(x) {
    size = sqrt(mean(x * x))
    sign = x >= 0
  }
  decompress {
    yield select(sign == 1, size, -size)
  }
}
"""
COLL = """%%coll --draw 3
use "onebit.comp"
collective star : all_reduce {
  ranks r of n
  inout buf
  compressor q = onebit
  for p in range(1, n) {
    when r == p { send compress(q, buf) to 0 as w }
    when r == 0 { buf += decompress(w) }
  }
  let v = compress(q, buf)
  when r == 0 { buf = decompress(v) }
  for p in range(1, n) {
    when r == 0 { send v to p as w }
    when r == p { buf = decompress(w) }
  }
}
"""


class Ran:
    """A cell that was run: its result, what raised, what was shown, what was printed."""

    def __init__(self, shell: InteractiveShell, cell: str):
        with capture_output() as out:
            done = shell.run_cell(cell)
        self.value, self.error = done.result, done.error_in_exec
        self.shown: list[dict[str, str]] = [o.data for o in out.outputs]
        self.printed = re.sub(r"\x1b\[[0-9;]*m", "", out.stdout)
        self.coloured = out.stdout


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("COCCL_PATH", "")
    made = InteractiveShell.instance()  # display looks for the one
    made.run_line_magic("load_ext", "coccl_dsl")
    yield made
    made.history_manager.end_session()
    InteractiveShell.clear_instance()


def test_definitions_are_checked_shown_and_kept_under_their_names(shell: InteractiveShell):
    comp = Ran(shell, COMP)
    assert comp.error is None and isinstance(shell.user_ns["onebit"], BoundCodec)
    assert [set(s) for s in comp.shown] == [{"image/svg+xml", "text/plain"}]
    coll = Ran(shell, COLL)
    star = shell.user_ns["star"]
    assert coll.error is None and isinstance(star, Collective) and star.report.worlds
    assert [set(s) for s in coll.shown] == [{"text/html", "text/plain"}, {"image/svg+xml", "text/plain"}]
    assert "inout buf" in coll.shown[0]["text/html"] and coll.shown[1]["image/svg+xml"].count("cc-arrow") >= 4
    again = Ran(shell, "import coccl_dsl; coccl_dsl.compile('star', q='onebit(group=64)')")
    assert again.error is None and again.value.program().codecs["q"].group == 64


def test_a_fault_is_shown_with_its_caret_in_colour_and_nothing_is_kept(shell: InteractiveShell):
    Ran(shell, COMP)
    done = Ran(shell, COLL.replace("buf = decompress(v) }", "buf = buf }", 1))
    assert isinstance(done.error, CompileError) and done.error.codes == ("E307",)
    lines = done.printed.splitlines()
    assert re.match(r"cell \d+:12:17: error\[E307\]", lines[0]), (
        "lines are those of the editor, the magic's line the first"
    )
    assert lines[1].startswith("   12 |") and "^^^" in lines[2]
    assert "\x1b[1;31m" in done.coloured and "Traceback" not in done.printed
    assert "star" not in shell.user_ns and not done.shown
    with pytest.raises(CompileError):
        coccl_dsl.compile("star")


def test_a_faulty_compressor_leaves_the_one_before_it_in_place(shell: InteractiveShell):
    Ran(shell, COMP)
    kept = shell.user_ns["onebit"]
    done = Ran(shell, COMP.replace("  nonfinite size\n", ""))
    assert isinstance(done.error, CompileError) and done.error.codes == ("E404",) and "^" in done.printed
    assert shell.user_ns["onebit"] is kept and Ran(shell, COLL).error is None


def test_several_definitions_in_a_cell_are_all_kept(shell: InteractiveShell):
    one = COLL.partition("\n")[2].replace("onebit", "int8")
    two = one.replace("star", "moon").partition("\n")[2]
    assert Ran(shell, "%%coll --quiet\n" + one + two).error is None
    for name in ("star", "moon"):
        assert shell.user_ns[name].name == name == coccl_dsl.compile(name).name


def test_a_compressor_with_state_or_open_parameters_is_kept_too(shell: InteractiveShell):
    text = (coccl_dsl.lang.files.shipped("compressors") / "error_feedback.comp").read_text()
    done = Ran(shell, "%%comp\n" + text.replace("compressor error_feedback", "compressor mine"))
    assert done.error is None and isinstance(shell.user_ns["mine"], Codec)


def test_a_new_text_under_an_old_name_is_the_one_that_counts(shell: InteractiveShell):
    Ran(shell, COMP)
    Ran(shell, COMP.replace("group: int = 128", "group: int = 64"))
    assert Ran(shell, COLL).error is None
    assert shell.user_ns["star"].program().codecs["q"].group == 64


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("%%coll --drow 4\nx", "unrecognized arguments: --drow"),
        ("%%coll --draw node\nx", "written as node=2,local=4"),
        ('%coll_bench "ring', "No closing quotation"),
        ("%coll_bench", "say what to measure"),
        ("%coll_bench ring --mode fast", "invalid choice"),
    ],
)
def test_a_line_that_cannot_be_read_is_told_without_a_traceback(shell: InteractiveShell, line: str, told: str):
    done = Ran(shell, line)
    assert done.error is not None and told in done.printed
    assert "Traceback" not in done.printed and 'File "' not in done.printed


def test_a_world_that_does_not_fit_is_refused_before_anything_is_kept(shell: InteractiveShell):
    Ran(shell, COMP)
    done = Ran(shell, COLL.replace("--draw 3", "--draw node=2,local=2"))
    assert "runs on a number of ranks" in str(done.error) and "Traceback" not in done.printed
    assert "star" not in shell.user_ns


def test_a_name_that_a_file_of_the_folder_has_is_refused(shell: InteractiveShell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, cell in (("onebit.comp", COMP), ("star.coll", COLL)):
        (tmp_path / name).write_text("")
        done = Ran(shell, cell)
        assert f"{name} is a file of this folder" in done.printed and name.split(".")[0] not in shell.user_ns
        (tmp_path / name).unlink()
        assert Ran(shell, cell).error is None


def test_bench_without_gpus_compares_and_says_that_nothing_is_timed(shell: InteractiveShell, monkeypatch):
    import torch

    from coccl_dsl.notebook import comparison

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(comparison, "real_gradients", lambda n: [torch.randn(3000) for _ in range(n)])
    Ran(shell, COMP)
    Ran(shell, COLL)
    done = Ran(shell, "%coll_bench star two_shot --set int8 onebit --ranks 3")
    assert done.error is None and isinstance(done.value, Comparison)
    assert "nothing is timed" in done.printed
    assert [(r.collective, r.compressor) for r in done.value.rows] == [
        (c, q) for c in ("star", "two_shot") for q in ("int8", "onebit")
    ]


def test_bench_help_is_no_error(shell: InteractiveShell):
    done = Ran(shell, "%coll_bench --help")
    assert done.error is None and "example: coccl-bench" in done.printed


def test_bench_with_gpus_runs_coccl_bench_and_shows_its_rows(shell: InteractiveShell, monkeypatch):
    import shutil
    from pathlib import Path

    import torch

    from coccl_dsl.notebook import benchmark
    from coccl_dsl.notebook.measured import Results

    recorded = Path(__file__).parents[2] / "benchmarks" / "results" / "nvlink.json"
    started: list[Any] = []

    def start(command: list[str], count: int) -> int:
        started.append((command, count))
        shutil.copy(recorded, command[-1])
        return 0

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(benchmark, "start_processes", start)
    done = Ran(shell, "%coll_bench all_reduce --set int4 -b 1M")
    assert isinstance(done.value, Results) and len(done.value.rows) == 32
    command, count = started[0]
    assert command[1:4] == ["-m", "coccl_dsl.cli.bench", "all_reduce"] and "--json" in command and count == 2
    monkeypatch.setattr(benchmark, "start_processes", lambda command, count: 1)
    assert "coccl-bench ended with 1" in str(Ran(shell, "%coll_bench all_reduce").error)


def test_the_session_folder_stands_before_what_was_in_coccl_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COCCL_PATH", "/somewhere")
    shell = InteractiveShell()
    load_ipython_extension(shell)
    first, second = os.environ["COCCL_PATH"].split(os.pathsep)
    assert os.path.isdir(first) and second == "/somewhere"
    shell.history_manager.end_session()


def test_ipythons_prompt_colours_the_cells():
    from IPython.terminal.ptutils import IPythonPTLexer
    from prompt_toolkit.document import Document

    from coccl_dsl.notebook.magics import colour_prompt

    colour_prompt()
    colour_prompt()
    lines = IPythonPTLexer().lex_document(Document("%%coll --draw 4\ncollective ring : all_reduce {"))
    styles = {text: style for style, text, *_ in lines(1)}
    assert "keyword" in styles["collective"] and "name.class" in styles["ring"]
