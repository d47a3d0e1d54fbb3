"""A small language model and a program of one method, and a cache with what is built for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.export import export_workspace
from tests.support.runtime_runs import programs, text_programs

__all__ = ["export_workspace", "programs", "text_programs"]


@pytest.fixture
def model(
    text_programs: Path,
    export_workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The language model of session_export; runners are built once for all tests."""
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(export_workspace.root))
    return str(text_programs / "session" / "program.pte")
