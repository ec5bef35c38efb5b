"""Progress is for a person at a terminal."""

from __future__ import annotations

import pytest

from coccl_dsl.cli.progress import track


@pytest.mark.parametrize("items", [[1, 2, 3], iter([1, 2, 3])], ids=["sized", "unsized"])
def test_all_items_come_and_nothing_is_printed_when_piped(items, capfd: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    assert list(track(items, "checking")) == [1, 2, 3]
    assert capfd.readouterr() == ("", "")
