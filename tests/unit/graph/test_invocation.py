"""What every verb that walks the line does around it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core import console
from etdeploy.core.files.locks import exclusive
from etdeploy.core.values import Progress
from etdeploy.graph.invocation import after_others


class FakeJob:
    """A job whose state is locked by a file."""

    def __init__(self, lock: Path) -> None:
        self.lock = self.state = lock

    @contextmanager
    def state_lock(self, progress: Progress) -> Iterator[None]:
        with exclusive(self.lock, "recipe mlp on host", progress):
            yield


class SeenDisplay(console.TaskDisplay):
    """Lets the other run end when the wait is shown."""

    def __init__(self, other_ends: threading.Event) -> None:
        super().__init__(live=False)
        self.other_ends = other_ends

    def advance(self, name: str, text: str, fraction: float | None = None) -> None:
        super().advance(name, text, fraction)
        self.other_ends.set()


def test_a_wait_for_another_run_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job: Any = FakeJob(tmp_path / "state.lock")
    held, ends = threading.Event(), threading.Event()

    def other() -> None:
        with exclusive(job.lock, "recipe mlp on host"):
            held.set()
            ends.wait()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    with SeenDisplay(ends) as display, after_others([job], display):
        assert not display._running, "it waits no longer"
    thread.join()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "wait       ..."
    assert "recipe mlp" in lines[1]
    assert lines[2].startswith("wait ")
