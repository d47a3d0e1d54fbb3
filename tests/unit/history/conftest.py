"""Histories of a test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.history import record_sink
from etdeploy.history.location import HistoryLocation, require_location


@pytest.fixture
def place(data_folder: Path) -> HistoryLocation:
    """The user's own history, a SQLite file that is made when something is kept."""
    return require_location(None)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not kept anything."""
    monkeypatch.setattr(record_sink, "_warned", set())
    monkeypatch.setattr(record_sink, "_failed", set())
