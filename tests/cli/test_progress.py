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


def test_a_notebook_gets_a_bar_only_where_it_takes_long_and_it_is_gone_in_the_end(monkeypatch):
    from IPython.utils.capture import capture_output

    from coccl_dsl.cli import progress

    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    shown: list[str] = []

    class Handle:
        def update(self, page) -> None:
            shown.append(page.data)

    def display(page, display_id):
        shown.append(page.data)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    with capture_output():
        assert list(track([1, 2], "quick")) == [1, 2] and not shown
        monkeypatch.setattr(progress, "PATIENCE", -1.0)
        assert list(track([1, 2, 3], "slow <one>")) == [1, 2, 3]
    assert [page.count("<progress") for page in shown] == [1, 1, 1, 0] and shown[-1] == ""
    assert 'value="2" max="3"' in shown[2] and "slow &lt;one&gt;: 2 of 3" in shown[2]
