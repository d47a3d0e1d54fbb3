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
    found = sections(FarmFile)
    assert {
        "Group",
        "Matrix",
        "WindowTimes",
        "HostsSection",
        "Certificates",
    } <= found.keys()
    for section in found.values():
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


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("{recipes: [a, {recipe: b}], devices: {p: {cpu_count: 8, os: '>=14'}}}", True),
        (
            "{recipes: [a], devices: {p: {kind: host}}, window: {from: '22:00', until: '6:00'}}",
            True,
        ),
        ("{recipes: [a], devices: {p: {knid: host}}}", False),
        ("{recipes: [a], devices: {p: {kind: host}}, repeats: 0}", False),
        ("{devices: {p: {kind: host}}}", False),
    ],
)
def test_the_schema_tells_right_from_wrong(text: str, good: bool) -> None:
    assert Draft202012Validator(schema()).is_valid(yaml.safe_load(text)) is good


def test_the_page_is_generated_from_the_models() -> None:
    assert (ROOT / "docs" / "farm-yaml.md").read_text() == reference()
