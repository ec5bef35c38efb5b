"""The record of a group's calls: in memory, in files that are up to date at any time, and what coccl-record makes of them."""

from __future__ import annotations

import logging

import pytest
import torch

from coccl_dsl.cli.record import main
from coccl_dsl.runtime.record import LENGTH, Record, read


def test_the_last_calls_stay(tmp_path):
    made = Record("mesh_dp.0", 3, 8, str(tmp_path))
    for i in range(2 * LENGTH + 7):
        made.add("all_reduce ring(int8) sum of bfloat16 over symm", 1000 + i)
    (path,) = tmp_path.iterdir()
    kept = read(path)  # with the file still open, as for a process that hangs
    assert path.name == "mesh_dp.0.rank3.txt" and (kept.group, kept.rank, kept.world) == ("mesh_dp.0", 3, 8)
    assert [c.number for c in kept.calls] == list(range(LENGTH + 7, 2 * LENGTH + 7))
    assert [(c.number, c.when, c.elements, c.what) for c in kept.calls] == [
        (n, pytest.approx(when, abs=1e-6), elements, what) for n, when, elements, what in made.calls
    ]
    assert all(c.elements == 1000 + c.number for c in kept.calls) and not kept.failure


def test_a_failure_is_told_once_and_kept(tmp_path, caplog):
    made = Record("default.1", 0, 2, str(tmp_path))
    made.add("all_reduce two_shot(int8) sum of float32 over nccl", 64)
    with caplog.at_level(logging.ERROR, "coccl_dsl"):
        made.failed(RuntimeError("step 1: rank 1 did not come\nwithin 3 s"))
        made.failed(RuntimeError("another"))
    assert (
        len(caplog.records) == 1 and "all_reduce two_shot(int8)" in caplog.text and "rank 1 did not come" in caplog.text
    )
    assert read(next(tmp_path.iterdir())).failure == "step 1: rank 1 did not come within 3 s"


def test_odd_names_and_long_texts_fit(tmp_path):
    made = Record("../../a b/ü", 0, 2, str(tmp_path))
    made.add("x" * 1000, 1)
    made.failed(RuntimeError("y" * 5000))
    (path,) = tmp_path.iterdir()
    kept = read(path)
    assert len(kept.calls) == 1 and kept.failure == "y" * 1021 and path.parent == tmp_path


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    made = Record("g", 0, 2, str(tmp_path / "file"))
    made.add("all_gather", 5)
    assert len(made.calls) == 1 and "not recorded in a file" in caplog.text


def records(folder, calls: dict[int, list[tuple[str, int]]], world: int) -> None:
    for rank, rows in calls.items():
        made = Record("g.0", rank, world, str(folder))
        for what, elements in rows:
            made.add(what, elements)


def test_equal_calls_are_right(tmp_path, capsys):
    records(tmp_path, {0: [("all_to_all direct(int8)", 8)], 1: [("all_to_all direct(int8)", 9)]}, 2)
    assert main([str(tmp_path)]) == 0
    assert "all ranks have made the same calls" in capsys.readouterr().out


def test_who_is_behind_and_what_differs_is_said(tmp_path, capsys):
    a, b = ("all_reduce ring(int8)", 8), ("all_gather direct(int8)", 8)
    records(tmp_path, {0: [a, a, b], 1: [a, a], 2: [a, ("all_reduce ring(int8)", 9), b]}, 4)
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "1 of 4 ranks have no record here" in said
    assert "rank 1 did not make call 2: all_gather direct(int8)" in said
    assert "call 1 is not the same one on all ranks: rank 0: all_reduce ring(int8), 8 elements; rank 1" in said


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), lambda p: (p.mkdir(), (p / "a.rank0.txt").write_text("junk"))])
def test_nothing_to_read_is_an_error(make, tmp_path, capsys):
    make(tmp_path / "calls")
    assert main([str(tmp_path / "calls")]) == 2
    assert "coccl-record: " in capsys.readouterr().err


def test_reading_records_does_not_need_torch():
    import subprocess
    import sys

    code = "import sys; import coccl_dsl.cli.record; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    assert torch  # this process has it
