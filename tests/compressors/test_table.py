"""docs/compressors.md says what the compressors do, and `--emit wire` shows each."""

from __future__ import annotations

import pytest

from coccl_dsl.cli.compile import main
from tests.compressors import table
from tests.compressors.library import SHIPPED


def test_the_page_is_up_to_date() -> None:
    """Everything but the throughput, which is a machine's; errors to 2 %, because numpy may draw others."""
    text = table.PAGE.read_text(encoding="utf-8").split(table.BEGIN)[1].split(table.END)[0]
    shown = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.strip().splitlines()[2:]]
    wanted = [list(r) for r in table.rows()]
    assert [r[0] for r in shown] == [r[0] for r in wanted], "run tests/compressors/table.py --write"
    for got, want in zip(shown, wanted, strict=True):
        assert (got[1], got[2], got[-1]) == (want[1], want[2], want[-1]), (
            f"{got[0]}: run tests/compressors/table.py --write"
        )
        for a, b in zip(got[3:5], want[3:5], strict=True):
            assert a == b or float(a) == pytest.approx(float(b), rel=0.02), (
                f"{got[0]}: run tests/compressors/table.py --write"
            )


@pytest.mark.parametrize("q", SHIPPED, ids=[q.text for q in SHIPPED])
def test_the_bytes_of_each_are_shown(q, capsys: pytest.CaptureFixture[str]) -> None:
    wrapped = ["--set", "c=int4"] if q.name == "error_feedback" else []
    assert main([q.name, *wrapped, "--emit", "wire"]) == 0
    shown = capsys.readouterr().out
    assert "bits a value" in shown and "example" in shown and "decompressed" in shown


def test_headers_say_the_bits() -> None:
    for q in SHIPPED:
        header = (table.ROOT / "compressors" / f"{q.name}.comp").read_text(encoding="utf-8").split("compressor ")[0]
        if q.name not in ("raw", "error_feedback"):
            rounded = {f"{q.bits:.{n}f}".rstrip("0").rstrip(".") for n in range(2, 5)}
            assert any(f"{r} bits" in header for r in rounded), f"{q.name}: {rounded}"
