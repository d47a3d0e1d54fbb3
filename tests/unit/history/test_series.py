"""Which records can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from etdeploy.bench.records.record import RunRecord
from etdeploy.history import series
from etdeploy.history.series import distinct_labels, explain_differences, series_from
from etdeploy.recipe.sections.app import App
from etdeploy.recipe.sections.benchmark import Benchmark
from etdeploy.recipe.sections.export import Export, ExportGeneration
from etdeploy.recipe.sections.model import Model
from etdeploy.recipe.sections.runtime import Runtime
from tests.support.bench_values import make_device, make_program, make_record

CONTENT: dict[str, Any] = {
    "model": {"example": "mlp", "weights": "old.pt", "arguments": {"width": 64}},
    "export": {"backend": "xnnpack", "quantization": "none", "strict": False},
    "runtime": {"threads": 0, "provider": "auto"},
    "benchmark": {"iterations": 50, "sizes": {"short": {"x": 1}, "long": {"x": 9}}},
}


def record(section: str = "model", changes: dict[str, Any] | None = None, **more: Any) -> RunRecord:
    content = {**CONTENT, section: {**CONTENT[section], **(changes or {})}}
    plain = make_record()
    return make_record(recipe=plain.recipe.model_copy(update={"content": content}), **more)


@pytest.mark.parametrize(
    "other",
    [
        record("model", {"weights": "new.pt"}),
        record("model", {"python": None}),
        record("export", {"strict": False, "options": {}, "generation": None}),
        record("runtime", {"provider": "auto", "source": "executorch"}),
        record("benchmark", {"iterations": 50, "runs": 9, "profile": False}),
        record(program=make_program(sha256="99" * 32, size_bytes=1)),
        record(versions={"torch": "9"}),
        record(device=make_device(os="Test Linux 2", fingerprint="new", connection="USB")),
    ],
    ids=["weights", "empty", "unsaid", "checkout", "protocol", "program", "versions", "system"],
)
def test_how_it_is_made_may_change_within_a_series(other: RunRecord) -> None:
    assert series_from(other).key == series_from(record()).key
    assert explain_differences(series_from(other), series_from(record())) == []


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (record("model", {"arguments": {"width": 65}}), "another model"),
        (record("export", {"overrides": {"head": "int8_static"}}), "another quantization of parts"),
        (record("runtime", {"threads": 4}), "another threads: 4 and 0"),
        (record("benchmark", {"sizes": {"short": {"x": 2}, "long": {"x": 9}}}), "other sizes"),
        (record("benchmark", {"sizes": {"long": {"x": 9}, "short": {"x": 1}}}), "other sizes"),
        (record("benchmark", {"inputs": "make.py:make"}), "other sizes or inputs"),
        (record("export", {"rewrites": "none"}), "another export.rewrites: none and auto"),
        (record("export", {"strict": True}), "another export.strict: True and False"),
        (
            record("export", {"generation": {"context": 512, "path": "auto"}}),
            "another export.generation.context: 512 and 2048",
        ),
        (record("runtime", {"cmake": {"A": 1}}), "another runtime.cmake: {'A': 1} and none"),
        (record("runtime", {"provider": "source"}), "another runtime.provider: source and auto"),
        (record("benchmark", {"iterations": 300}), "another benchmark.iterations: 300 and 50"),
        (record("benchmark", {"cooldown": {"max_celsius": 37.0}}), "another benchmark.cooldown"),
        (record(program=make_program(method="decode")), "another method: decode and forward"),
        (record(program=make_program(quantization="8da4w")), "another quantization: 8da4w"),
        (record(device=make_device(model="Other CPU")), "another device: host (Other CPU)"),
        (record(device=make_device(cpu_count=4)), "another device"),
    ],
)  # fmt: skip
def test_what_is_measured_and_where_makes_the_series(other: RunRecord, why: str) -> None:
    assert series_from(other).key != series_from(record()).key
    [reason] = explain_differences(series_from(other), series_from(record()))
    assert reason.startswith(why)


def phone(name: str, **facts: Any) -> RunRecord:
    return record(device=make_device("android", name=name, target="android-arm64", **facts))


def test_a_phone_is_the_same_over_usb_and_any_address() -> None:
    usb = phone("android:A1", serial="A1", model="P", connection="USB")
    wireless = phone("android:10.0.0.7:41234", serial="A1", model="P", connection="TCP")
    assert series_from(usb).key == series_from(wireless).key
    assert series_from(usb).device.label == "android:A1 (P)"


def test_two_devices_with_one_serial_number_are_two() -> None:
    one = phone("android:0123456789ABCDEF", serial="0123456789ABCDEF", model="Tab 7")
    two = phone("android:0123456789ABCDEF", serial="0123456789ABCDEF", model="Tab 8")
    assert series_from(one).key != series_from(two).key


def test_the_key_is_the_same_on_every_machine() -> None:
    assert series_from(make_record()).key == "c4f99eab5b8272b8"


def _keys(section: type[BaseModel], before: str) -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        if name == "generation" and section is Export:
            yield from _keys(ExportGeneration, f"{before}{name}.")
        else:
            default = field.get_default(call_default_factory=True)
            yield f"{before}{name}", default


def test_every_key_of_a_recipe_is_in_a_series_or_changes_no_number() -> None:
    own = {f"model.{name}" for name in series._MODEL}
    own |= {f"export.{name}" for name in (*series._PRECISION, "backend", "quantization")}
    own |= {f"benchmark.{name}" for name in ("method", "sizes", "inputs", "input", "generation")}
    own |= {"runtime.threads"}
    sections: tuple[tuple[str, type[BaseModel]], ...] = (
        ("model", Model), ("export", Export), ("runtime", Runtime), ("benchmark", Benchmark),
        ("app", App),
    )  # fmt: skip
    keys = dict(pair for name, section in sections for pair in _keys(section, f"{name}."))
    assert sorted([*series.SETTINGS, *series.NOT_MEASURED, *own]) == sorted(keys)
    assert {key: keys[key] for key in series.SETTINGS} == series.SETTINGS


def test_how_an_app_is_made_is_no_setting_of_a_runner() -> None:
    content = {"app": {"runtime": "source"}}
    assert series.settings_from(content) == {}
    assert series.settings_from(content, app=True) == {"app.runtime": "source"}


def test_series_of_one_label_are_distinguished_by_what_differs() -> None:
    one, other = (series_from(record("model", {"arguments": {"width": w}})) for w in (64, 96))
    assert distinct_labels([one]) == ["xnnpack"]
    assert distinct_labels([one, other, series_from(record(program=make_program(method="b")))]) == [
        "xnnpack, model.arguments.width=64",
        "xnnpack, model.arguments.width=96",
        "xnnpack b",
    ]
    # A recipe on another device needs no more than its device.
    phone = record(device=make_device("android", name="android:R5", serial="R5"))
    assert distinct_labels([one, series_from(phone)]) == ["xnnpack", "xnnpack"]


def test_what_distinguishes_a_series_is_named_as_in_the_recipe_and_short() -> None:
    long = "a" * 60
    plain, text, sizes = (
        series_from(each)
        for each in (
            record(),
            record("export", {"overrides": {"head": long}}),
            record("benchmark", {"sizes": {"long": {"x": 9}, "short": {"x": 1}}}),
        )
    )
    unchanged = series_from(record("export", {"rewrites": "none"}))
    assert distinct_labels([plain, unchanged]) == [
        "xnnpack, export.rewrites not set",
        "xnnpack, export.rewrites=none",
    ]
    assert distinct_labels([plain, text]) == [
        "xnnpack, export.overrides.head not set",
        f"xnnpack, export.overrides.head={'a' * 37}...",
    ]
    assert distinct_labels([plain, sizes]) == [
        "xnnpack, benchmark.order=short:long",
        "xnnpack, benchmark.order=long:short",
    ]
