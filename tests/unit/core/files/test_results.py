"""Results replace an earlier result and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.core.files.delivery import ResultFile, begins_with, contains

_FILE = ResultFile("list", "a list of mine", begins_with("mine:", "ours:"), "list.txt")


@pytest.mark.parametrize("content", ["x", "mine", "not mine: 1"])
def test_anything_else_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "list"
    path.write_text(content)
    with pytest.raises(UsageError, match="not a list of mine"):
        _FILE.write("mine: 1", path)
    assert path.read_text() == content


def test_a_device_stays_one() -> None:
    with pytest.raises(UsageError, match="a device") as caught:
        _FILE.require_free(Path(os.devnull))
    assert str(caught.value.remedy).endswith(": --output -")


def test_the_remedy_is_that_of_the_verb(tmp_path: Path) -> None:
    file = ResultFile("list", "a list", contains("x"), "a.txt", "tool export", "tool export -")
    with pytest.raises(UsageError) as caught:
        file.require_free(tmp_path)
    assert caught.value.remedy == f"Name a file in it: tool export {tmp_path}/a.txt"
    (tmp_path / "other").write_text("y")
    with pytest.raises(UsageError) as caught:
        file.require_free(tmp_path / "other")
    assert caught.value.remedy == "Name another file: tool export FILE"
