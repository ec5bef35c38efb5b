"""docs/errors.md is what its script makes."""

from __future__ import annotations

from coccl_dsl.diagnostics import CATALOGUE
from docs.make_errors import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python docs/make_errors.py`"


def test_every_code_is_explained():
    text = page()
    for code, (title, _) in CATALOGUE.items():
        assert f"### {code}: {title}\n" in text
