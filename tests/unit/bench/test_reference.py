"""docs/records.md has every key, explained, and is the one that the models give."""

from __future__ import annotations

import re
from pathlib import Path

from etdeploy.bench.reference import reference

_PAGE = Path(__file__).parents[3] / "docs" / "records.md"


def test_the_page_is_that_of_the_models() -> None:
    assert _PAGE.read_text() == reference(), "docs/records.md is old: doit run reference"


def test_every_key_is_explained() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (.*) \| (.*) \|$", reference(), re.MULTILINE)
    assert len(rows) > 80
    assert [key for key, kind, text in rows if not kind or kind == "value" or not text] == []
