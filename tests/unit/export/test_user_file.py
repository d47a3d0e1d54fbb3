"""Mistakes in the user's file that are told without running it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.core.errors import ExportError
from etdeploy.export.needs import check_function
from etdeploy.export.spec import CodeReference
from tests.support.facts import lacks


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files below it are told by their short names."""
    monkeypatch.chdir(tmp_path)


def _check(tmp_path: Path, code: str | bytes, name: str = "make") -> ExportError | None:
    path = tmp_path / "model.py"
    path.write_bytes(code if isinstance(code, bytes) else code.encode())
    try:
        check_function(CodeReference(file=str(path), name=name), "model.python")
    except ExportError as error:
        return error
    return None


def test_a_syntax_error_is_told_at_its_line(tmp_path: Path) -> None:
    error = _check(tmp_path, "import torch\n\ndef make(:\n    pass\n")
    assert error is not None
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert not lacks(error, "model.py", f"Python {version}", "\n    def make(:")
    assert (error.place, error.exit_code) == ("model.py:3", 3)


@pytest.mark.parametrize(
    "code",
    [
        "def make(): ...",
        "async def make(): ...",
        "class make: ...",
        "make = lambda: None",
        "make: object = None",
        "from helpers import make",
        "from helpers import build as make",
        "import make.part",
        "try:\n    import a as make\nexcept ImportError:\n    pass",
        "if (make := 3):\n    pass",
        "def outer():\n    global make\n    make = 3\nouter()",
        "match print:\n    case make:\n        pass",
    ],
)
def test_a_name_that_the_file_binds_is_left_to_running_it(tmp_path: Path, code: str) -> None:
    assert _check(tmp_path, code) is None


@pytest.mark.parametrize(
    "code",
    [
        "from helpers import *",
        "globals()['ma' + 'ke'] = print",
        "import sys\nsetattr(sys.modules[__name__], 'ma' + 'ke', print)",
        "def __getattr__(name): return print",
        "exec('def ma' 'ke(): pass')",
    ],
)
def test_a_file_that_may_bind_any_name_is_left_to_running_it(tmp_path: Path, code: str) -> None:
    assert _check(tmp_path, code) is None


def test_warnings_of_the_users_file_are_not_told_twice(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    assert _check(tmp_path, "PATTERN = '\\d'\ndef make(): ...") is None
    assert not recwarn.list


def test_a_file_that_cannot_be_read_as_text_is_an_error_of_the_file(tmp_path: Path) -> None:
    assert isinstance(_check(tmp_path, b"NAME = '\xff'\ndef make(): ..."), ExportError)


def test_a_module_is_left_to_the_import() -> None:
    check_function(CodeReference(module="no.such.module", name="make"), "model.python")
