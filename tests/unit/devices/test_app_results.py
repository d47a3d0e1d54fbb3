"""What an app left, checked before it is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.app_results import parse_results


def text(**changes: Any) -> str:
    whole: dict[str, Any] = {
        "schema_version": 1,
        "run_id": "ab",
        "status": "done",
        "error": None,
        "app": {"id": "org.example.a"},
        "thermal": None,
        "results": {"threads": 4, "outputs": [{"path": "output-0.bin"}, {"kind": "Int"}]},
        "added_later": 3,
    }
    return json.dumps(whole | changes)


def test_results_are_read() -> None:
    found = parse_results(text(), "ab", "android:A1")
    assert json.loads(found.results_text)["threads"] == 4
    assert found.outputs() == ("output-0.bin",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "Invalid JSON"),
        ("[]", "cannot be used"),
        (text(schema_version=2), "schema_version: Input should be 1"),
        (text(status="busy"), "status: Input should be 'done' or 'failed'"),
        (text(run_id="cd"), "another start, cd"),
        (text(results=None), "there are none"),
        (text(error="x"), "error: "),
    ],
)
def test_what_is_none_is_told_with_a_remedy(content: str, problem: str) -> None:
    with pytest.raises(DeviceError) as caught:
        parse_results(content, "ab", "android:A1")
    assert problem in caught.value.message
    assert caught.value.place == "android:A1"
    assert caught.value.remedy


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a/b", "", ".x", "-x", "a b", "a\n", "x" * 200, 3, []]
)
def test_an_output_is_a_plain_name(path: object) -> None:
    found = parse_results(text(results={"outputs": [{"path": path}]}), "ab", "android:A1")
    with pytest.raises(ValueError, match="plain file name"):
        found.outputs()


@pytest.mark.parametrize("outputs", [None, 3, {"path": "x"}, ["x"]])
def test_outputs_that_are_no_list_are_none(outputs: object) -> None:
    assert parse_results(text(results={"outputs": outputs}), "ab", "d").outputs() == ()
