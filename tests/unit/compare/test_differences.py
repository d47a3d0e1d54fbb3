"""In what two runs differ, as a person reads it."""

from __future__ import annotations

from typing import Any

from etdeploy.bench.records.record import RunRecord
from etdeploy.compare.runs import differences, measured_differently
from tests.support.bench_values import make_program, make_record


def _record(content: dict[str, Any], threads: int = 2, **changes: Any) -> RunRecord:
    record = make_record(**changes)
    return record.model_copy(
        update={
            "recipe": record.recipe.model_copy(update={"content": content}),
            "runner": record.runner.model_copy(update={"threads": threads}),
        }
    )


def test_settings_are_told_by_their_keys() -> None:
    a = {"export": {"quantization": "none", "options": {}}, "model": {"arguments": {"width": 8}}}
    b = {"export": {"quantization": "int8", "options": {"x": True}}, "model": {"arguments": {}}}
    assert [text.split(" ", 1) for text in differences(_record(a), _record(b))] == [
        ["export.quantization", "none -> int8"],
        ["model.arguments.width", "8 -> none"],
        ["export.options.x", "none -> true"],
    ]


def test_names_and_the_measurement_are_not_under_test() -> None:
    a = _record({"name": "a", "description": "x", "benchmark": {"memory": True, "warmup": 5}})
    b = _record({"name": "b", "extends": "a", "benchmark": {"memory": False, "warmup": "auto"}})
    assert differences(a, b) == ()
    [changed] = measured_differently(a, b)
    assert changed.split() == ["benchmark.warmup", "5", "->", "auto"]


def test_parts_that_changed_without_a_setting_are_told() -> None:
    b = _record({}, threads=4, program=make_program(sha256="12" * 32))
    assert [text.split()[0] for text in differences(_record({}), b)] == ["threads", "program"]
