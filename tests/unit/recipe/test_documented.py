"""The texts of recipe keys, which stand in the source of the models."""

from __future__ import annotations

import inspect

from etdeploy.recipe.model import Model, Recipe, Section
from etdeploy.recipe.reference import key_texts, schema, sections


def test_every_key_of_every_section_has_a_text() -> None:
    found = sections(Recipe)
    assert {"Recipe", "Model", "Export", "Runtime", "Benchmark", "Tolerance"} <= found.keys()
    for section in found.values():
        assert key_texts(section).keys() == section.model_fields.keys(), section.__name__


def test_texts_are_what_the_source_says() -> None:
    text = key_texts(Model)["python"]
    assert text.startswith("A factory, as `package.module:factory`")
    assert "\n\nIt returns " in text
    assert "    " not in text
    assert text.split("\n")[0] in inspect.getsource(Model)


def test_the_schema_has_them_and_a_start_does_not_read_them() -> None:
    content = schema()
    assert content["$defs"]["Model"]["properties"]["python"]["description"]
    assert content["properties"]["export"]["description"]
    assert Section.model_config.get("use_attribute_docstrings") is None
