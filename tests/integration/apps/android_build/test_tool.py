"""What is told of a tool that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.commands import run_tool
from etdeploy.core.errors import BuildError

pytestmark = pytest.mark.integration


def test_a_tool_that_fails_has_its_words_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = ("/bin/sh", "-c", "echo 'error: no room' >&2; exit 3")
    with pytest.raises(BuildError, match=r"packing.*sh, exit code 3.*\nerror: no") as e:
        run_tool("packing", argv, log)
    assert e.value.log == log
    assert "error: no room" in log.read_text()


def test_a_tool_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"packing.*/nowhere/aapt2"):
        run_tool("packing", ("/nowhere/aapt2",), None)
