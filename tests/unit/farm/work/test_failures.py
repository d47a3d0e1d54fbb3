"""Errors as values."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from etdeploy.core.errors import Interrupted, RunError
from etdeploy.farm.work.artifact import BUG, DISK_FULL, failure_of, host_failure, time_limit_failure
from tests.support.plugins import raised_by_plugin


def test_an_error_keeps_what_it_says(tmp_path: Path) -> None:
    error = RunError("it failed", place="here", remedy="do that", log=tmp_path / "log")
    failure = failure_of(error, tmp_path)
    assert (failure.kind, failure.exit_code) == ("run", 7)
    assert failure.message == f"it failed\nlog: {tmp_path / 'log'}"
    assert (failure.place, failure.remedy) == ("here", "do that")


def test_a_full_disk_is_nobodys_mistake(tmp_path: Path) -> None:
    place = str(tmp_path / "file")
    failure = failure_of(OSError(errno.EDQUOT, "Disk quota exceeded", place), tmp_path)
    assert (failure.kind, failure.place) == (DISK_FULL, place)
    assert "Make room" in str(failure.remedy)


def test_anything_else_is_a_bug(tmp_path: Path) -> None:
    failure = failure_of(ZeroDivisionError("oops"), tmp_path)
    assert (failure.kind, failure.exit_code, failure.message) == (
        BUG, 9, "ZeroDivisionError: oops",
    )  # fmt: skip
    assert failure_of(KeyboardInterrupt(), tmp_path).kind == Interrupted.kind


def test_the_mistake_of_a_plugin_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = failure_of(raised_by_plugin(tmp_path, monkeypatch), tmp_path)
    assert (failure.kind, failure.exit_code) == ("plug-in", 9)
    assert failure.place == f"{tmp_path / 'lab_zero.py'}:2"
    assert "etdeploy-lab 1.2" in str(failure.remedy)


def test_what_the_host_does() -> None:
    assert host_failure("gone", "box").place == "box"
    told = time_limit_failure(60.0, "android:A1", "timing pass")
    assert "60 s: timing pass" in told.message
    assert "limit_s" in str(told.remedy)
