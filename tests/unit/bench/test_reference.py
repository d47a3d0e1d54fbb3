"""docs/records.md has every key, explained, and is the one that the models give."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from etdeploy.bench.reference import reference
from tests.support.bench_values import make_record

_PAGE = Path(__file__).parents[3] / "docs" / "records.md"


def test_the_page_is_that_of_the_models() -> None:
    assert _PAGE.read_text() == reference(), "docs/records.md is old: doit run reference"


def test_every_key_is_explained() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (.*) \| (.*) \|$", reference(), re.MULTILINE)
    assert len(rows) > 80
    assert [key for key, kind, text in rows if not kind or kind == "value" or not text] == []


def test_every_key_of_a_record_is_on_the_page() -> None:
    page = reference()
    told = set(re.findall(r"^\| `(\S+)` \|", page, re.MULTILINE))
    assert _keys(json.loads(make_record().model_dump_json())) <= told


def _keys(value: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for key, item in value.items():
        path = prefix + key
        found.add(path)
        if path in ("recipe.content", "files", "versions", "recipe.files", "runner.options"):
            continue
        if path == "passes":
            found |= {f"passes.*.{k}" for k in item["timing"]}
        elif isinstance(item, dict) and not path.endswith("temperatures_celsius"):
            found |= _keys(item, f"{path}.")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            found |= _keys(item[0], f"{path}[].")
    return found
