"""Locks between processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.files.locks import exclusive


def test_a_wait_names_the_command_that_holds_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "device.lock"
    told: list[str] = []
    with exclusive(lock, "device A"):
        lock.with_suffix(".pid").write_text("1 etdeploy chat\n")
        with (
            pytest.raises(TimeoutError, match=r"process 1, etdeploy chat"),
            exclusive(lock, "device A", lambda text, _=None: told.append(text), timeout_s=0.0),
        ):
            raise AssertionError
        with (
            pytest.raises(TimeoutError),
            exclusive(lock, "device A", lambda text, _=None: told.append(text), timeout_s=0.3),
        ):
            raise AssertionError
    [text] = told
    assert "`etdeploy chat`" in text
    assert "(process 1, for 0 s)" in text
