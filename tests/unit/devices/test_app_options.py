"""The options that an app is started with."""

from __future__ import annotations

import pytest

from etdeploy.devices.app_results import parse_options


def test_each_option_has_its_kind() -> None:
    words = ["iterations=50", "warmup=-1", "threads=0", "size=a=b", "outputs=false", "program=/a b"]
    assert parse_options(words) == {
        "iterations": 50,
        "warmup": -1,
        "threads": 0,
        "size": "a=b",
        "outputs": False,
        "program": "/a b",
    }


@pytest.mark.parametrize(
    "word",
    ["iterations", "run_id=x", "speed=1", "iterations=1.5", "iterations=9999999999", "outputs=1",
     "size=a\nb", "size=a\0b", "=1"],
)  # fmt: skip
def test_anything_else_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"option|value"):
        parse_options([word])


def test_an_option_comes_once() -> None:
    with pytest.raises(ValueError, match="option of an app"):
        parse_options(["threads=1", "threads=2"])
