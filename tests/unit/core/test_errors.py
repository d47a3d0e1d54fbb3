"""Errors: their text and their exit codes, which scripts build on."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core import errors
from etdeploy.core.errors import DeviceError, EtdeployError


def test_place_remedy_and_log_each_have_their_line() -> None:
    error = DeviceError(
        "the disk is full",
        place="android:1234",
        remedy="etdeploy clean --device android:1234\nor delete something",
        log=Path("/cache/logs/push.log"),
    )
    assert str(error) == (
        "android:1234: the disk is full\n"
        "  what to do: etdeploy clean --device android:1234\n"
        "              or delete something\n"
        "  log: /cache/logs/push.log"
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("UsageError", 2), ("RecipeError", 2), ("ExportError", 3), ("BuildError", 4),
        ("CheckError", 5), ("DeviceError", 6), ("RunError", 7), ("MismatchError", 8),
        ("EtdeployError", 9), ("Interrupted", 130),
    ],
)  # fmt: skip
def test_exit_codes_stay(name: str, code: int) -> None:
    kind: type[EtdeployError] = getattr(errors, name)
    assert kind.exit_code == code
    assert issubclass(kind, EtdeployError)
