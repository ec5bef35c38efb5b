"""`auto` by a table that was measured on this machine, over real gloo processes."""

from __future__ import annotations

import json

import pytest
from worlds import spawn

from coccl_dsl.cli import bench
from coccl_dsl.cli.bench import main, parse, sizes
from coccl_dsl.plan.calibration import NATIVE, Curve, Place, Table, Way, merged, read_table


@pytest.mark.parametrize("case", ["choosing", "differing"])
def test_what_was_measured_decides(case, tmp_path):
    spawn("../torch/auto_worker.py", 1, str(tmp_path), case)


def test_calibrate_writes_a_table_of_this_machine(tmp_path, capfd):
    path = tmp_path / "table.json"
    code = main(
        ["--calibrate", "all_gather", "--device", "cpu", "--set", "int8", "-b", "4K", "-e", "16K", "--json", str(path)]
    )
    assert code == 0 and "2 ranks on 1 host, cpu, gloo: 5 curves" in capfd.readouterr().out
    table = read_table(path)
    assert table is not None and json.loads(path.read_text())["about"]["command"].startswith("coccl-bench --calibrate")
    (curves,) = table.curves.values()
    assert {c.way.name for c in curves} == {NATIVE, "all_gather_direct", "all_gather_doubling"}
    assert all(len(c.points) == 2 for c in curves)


@pytest.mark.parametrize("arguments", [[], ["all_reduce", "--device", "cpu"]])
def test_what_is_missing_is_said(arguments, capsys):
    with pytest.raises(SystemExit) as e:
        main(arguments)
    assert e.value.code == 2 and "--calibrate" in capsys.readouterr().err


def test_a_calibration_keeps_the_kinds_that_it_does_not_measure():
    here, other = Place("a device", "a link", 2, 1), Place("a device", "a link", 4, 1)

    def curve(kind: str, us: float) -> Curve:
        return Curve(kind, "eager", Way(NATIVE), ((4096, us),))

    old = Table({here: (curve("all_reduce", 1), curve("all_gather", 1)), other: (curve("all_gather", 1),)})
    new = merged(old, Table({here: (curve("all_gather", 2),)}))
    assert new.curves[here] == (curve("all_reduce", 1), curve("all_gather", 2))
    assert new.curves[other] == old.curves[other]
    assert merged(new, Table({here: ()})).curves == new.curves and merged(None, old).curves == old.curves


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("all_reduce -f 1", "above 1"),
        ("all_reduce -f -2", "above 1"),
        ("all_reduce -b inf", "is no size"),
        ("all_reduce -b 64K -e 4K", "-b 65536 is above -e 4096"),
        ("--calibrate foo", "--calibrate foo"),
        ("--calibrate shards.coll", "--calibrate shards.coll"),
        ("--calibrate --set int9", "--set int9: unknown"),
        ("all_reduce --set int9", "--set int9: unknown"),
        ("nope", "collective nope"),
        ("tree_broadcast", "is a broadcast"),
        ("all_reduce --json /proc/none/a.json", "--json /proc/none/a.json: cannot be written"),
        ("all_reduce --json .", "--json .: cannot be written"),
        ("all_reduce --ranks -1", "--ranks: '-1'"),
        ("all_reduce --ranks 1", "2 or more"),
        ("all_reduce -n 0", "-n/--iterations: '0'"),
        ("all_reduce --repeats 0", "--repeats: '0'"),
        ("--calibrate --dtype f32 -n 3 --no-f32", "--dtype, -n/--iterations, --no-f32: not with --calibrate"),
        ("--calibrate --device cpu --tier shm", "--tier: not with --device cpu"),
    ],
)
def test_a_mistake_is_one_line_before_any_process(arguments, told, capsys, monkeypatch):
    monkeypatch.setattr(bench, "start_processes", lambda *_, **__: pytest.fail("started"))
    try:
        code = main(arguments.split())
    except SystemExit as e:
        code = e.code
    err = capsys.readouterr().err
    assert code == 2 and told in err and err.count("\n") == 1


def test_sizes_of_a_calibration_differ_in_elements():
    assert sizes(parse("--calibrate -b 1 -e 5 -f 1.2".split())) == [2, 4]
