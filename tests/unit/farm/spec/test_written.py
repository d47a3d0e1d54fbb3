"""The texts of the keys of farm.yaml, its schema and its page."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from etdeploy.farm.spec.model import Farm
from etdeploy.farm.spec.written import FarmFile, reference, schema
from etdeploy.recipe.reference import key_texts, sections

ROOT = Path(__file__).resolve().parents[4]


def test_every_key_of_every_section_has_a_text() -> None:
    for section in sections(FarmFile).values():
        assert key_texts(section).keys() == section.model_fields.keys(), section.__name__


def test_defaults_are_those_of_the_farm() -> None:
    for name in ("repeats", "spread", "retries", "stop_after", "quarantine_after", "limit_s",
                 "max_slowdown_percent"):  # fmt: skip
        assert FarmFile.model_fields[name].default == Farm.model_fields[name].default, name
    assert FarmFile.model_fields["baseline"].default == Farm.model_fields["baseline"].default


def test_the_schema_knows_keys_as_they_are_written() -> None:
    content = schema()
    assert content["required"] == ["recipes", "devices"]
    assert set(content["$defs"]["WindowTimes"]["properties"]) == {"from", "until", "timezone"}
    assert content["$defs"]["Group"]["additionalProperties"] is False
    assert content["properties"]["recipes"]["items"]["anyOf"][0] == {"type": "string"}
    assert content["$defs"]["WindowTimes"]["properties"]["from"]["description"]


@pytest.mark.parametrize(("repeats", "good"), [(1, True), (0, False)])
def test_the_schema_tells_right_from_wrong(repeats: int, good: bool) -> None:
    text = "{recipes: [a, {recipe: b}], devices: {p: {cpu_count: 8, os: '>=14'}}}"
    content = yaml.safe_load(text) | {"repeats": repeats}
    assert Draft202012Validator(schema()).is_valid(content) is good


def test_the_page_is_generated_from_the_models() -> None:
    assert (ROOT / "docs" / "farm-yaml.md").read_text() == reference()
