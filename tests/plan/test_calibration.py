"""The calibration table: reading, interpolation, and what it decides."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coccl_dsl.plan.calibration import NATIVE, Curve, Place, Table, Way, merged, parse, read_table

HERE = Place("a device", "a link", 2, 1)
TWO_SHOT = Way("two_shot", "nccl", 1, 8.125)


def table(*curves: Curve) -> Table:
    return Table({HERE: curves}, {"date": "today"})


def simple(native=((1000, 10.0), (1_000_000, 1000.0)), ours=((500, 20.0), (500_000, 500.0)), mode="eager"):
    return Curve("all_reduce", mode, Way(NATIVE), native), Curve("all_reduce", mode, TWO_SHOT, ours)


def test_text_gives_the_table_again():
    made = table(*simple())
    again = parse(made.text())
    assert again == made and again.digest == made.digest
    assert table(*simple(native=((1000, 11.0),))).digest != made.digest


@pytest.mark.parametrize(
    "text,words",
    [
        ("", "not a calibration table"),
        ("[]", "not a calibration table"),
        ("{}", "not a calibration table"),
        (json.dumps({"schema": 99, "places": []}), "schema 99"),
        (json.dumps({"schema": 1, "places": [{"device": "d"}]}), "not a calibration table: KeyError"),
    ],
)
def test_what_is_no_table_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        parse(text)


@pytest.mark.parametrize("points", [[], [[2, 1.0], [1, 1.0]], [[1, 0.0]], [[0, 1.0]]])
def test_points_that_cannot_be_are_refused(points):
    found = json.loads(table(*simple()).text())
    found["places"][0]["curves"][0]["points"] = points
    with pytest.raises(ValueError, match="points that cannot be"):
        parse(json.dumps(found))


def test_a_file_that_is_named_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("COCCL_TABLE", str(tmp_path / "none.json"))
    with pytest.raises(ValueError, match=r"none\.json: there is no such file"):
        read_table()
    monkeypatch.delenv("COCCL_TABLE")
    monkeypatch.setenv("COCCL_CACHE", str(tmp_path))
    assert read_table() is None
    (tmp_path / "calibration.json").write_text("{")
    with pytest.raises(ValueError, match=r"calibration\.json: not a calibration table"):
        read_table()


@given(st.floats(1, 1e10))
def test_times_between_points_lie_between_their_times(size):
    curve = simple(native=((1000, 10.0), (10_000, 40.0), (1_000_000, 1000.0)))[0]
    us = curve.us(size)
    for (s0, t0), (s1, t1) in zip(curve.points, curve.points[1:], strict=False):
        if s0 <= size <= s1:
            assert t0 * (1 - 1e-9) <= us <= t1 * (1 + 1e-9)
    if size < 1000:
        assert us == 10
    if size > 1_000_000:
        assert us == pytest.approx(size / 1000)


def test_torchs_own_wins_where_it_is_quicker_and_the_compressed_call_elsewhere():
    made = table(*simple())
    small, large = made.decide(HERE, "all_reduce", 500, 2, 8.125), made.decide(HERE, "all_reduce", 500_000, 2, 8.125)
    assert small is not None and small.best.name == NATIVE
    assert large is not None and large.best == TWO_SHOT and large.ways[0][2] == pytest.approx(0.5)
    assert "two_shot over nccl, 1 slice" in large.text()
    forced = made.decide(HERE, "all_reduce", 500, 2, 8.125, native=False)
    assert forced is not None and forced.best == TWO_SHOT


def test_float32_moves_twice_the_bytes_natively_and_the_same_wire():
    made = table(*simple())
    half, full = (made.decide(HERE, "all_reduce", 10_000, item, 8.125) for item in (2, 4))
    assert half is not None and full is not None
    (a, b) = ({way: ratio for way, _, ratio in v.ways}[TWO_SHOT] for v in (half, full))
    assert b < a


def test_a_way_that_is_slower_in_one_mode_is_not_taken_for_the_other():
    eager, graph = simple(), simple(ours=((500, 2.0), (500_000, 50.0)), mode="graph")
    verdict = table(*eager, *graph).decide(HERE, "all_reduce", 500, 2, 8.125)
    assert verdict is not None and verdict.best.name == NATIVE


@pytest.mark.parametrize(
    "change",
    [
        {"place": Place("a device", "a link", 4, 1)},
        {"kind": "all_gather"},
        {"bits": 16.0},
        {"names": ["ring"], "native": False},
        {"transports": ["symm"], "native": False},
    ],
)
def test_what_was_not_measured_is_not_decided(change):
    asked = {"place": HERE, "kind": "all_reduce", "elements": 500, "itemsize": 2, "bits": 8.125} | change
    assert table(*simple()).decide(**asked) is None


def test_a_compressor_that_was_not_measured_counts_as_the_next_wider_one():
    narrow = Curve("all_reduce", "eager", Way("two_shot", "nccl", 1, 4.125), ((500, 1.0), (500_000, 250.0)))
    made = table(*simple(), narrow)
    for bits, taken in ((2.0, 4.125), (4.125, 4.125), (4.5, 8.125)):
        verdict = made.decide(HERE, "all_reduce", 500_000, 2, bits)
        assert verdict is not None and verdict.best.bits == taken


def test_a_new_measurement_keeps_other_places():
    other = Place("a device", "a link", 8, 2)
    old = Table({HERE: simple(), other: simple()})
    new = merged(old, Table({HERE: simple(native=((1, 1.0),))}, {"date": "now"}))
    assert (
        new.curves[other] == old.curves[other] and new.curves[HERE] != old.curves[HERE] and new.about["date"] == "now"
    )
