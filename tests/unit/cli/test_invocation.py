"""What every verb that walks the line does around it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cli.invocation import after_others
from etdeploy.core import console
from etdeploy.core.files.locks import exclusive
from etdeploy.core.values import Progress


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

    def __init__(self, live: bool, other_ends: threading.Event) -> None:
        super().__init__(live=live)
        self.other_ends = other_ends
        self.shown_live: list[str] = []

    def advance(self, name: str, text: str, fraction: float | None = None) -> None:
        super().advance(name, text, fraction)
        if self._live:
            self.shown_live = [text for _, text, _ in self._running.values()]
        self.other_ends.set()


@pytest.fixture
def job(tmp_path: Path) -> Any:
    return FakeJob(tmp_path / "state.lock")


def wait_for_another(job: Any, live: bool) -> SeenDisplay:
    held, ends = threading.Event(), threading.Event()

    def other() -> None:
        with exclusive(job.lock, "recipe mlp on host"):
            held.set()
            ends.wait()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    display = SeenDisplay(live, ends)
    with display, after_others([job], display):
        assert not display._running, "it waits no longer"
    thread.join()
    return display


def test_a_wait_for_another_run_is_shown(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wait_for_another(job, live=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "wait       ..."
    assert "recipe mlp" in lines[1]
    assert lines[2].startswith("wait ")


def test_a_wait_is_shown_on_a_terminal_while_it_lasts(
    job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    [text] = wait_for_another(job, live=True).shown_live
    assert text.startswith("waiting ")
    assert capsys.readouterr().err.count("\n") == 1


def test_without_another_run_nothing_is_shown(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with console.TaskDisplay(live=False) as display, after_others([job], display):
        pass
    assert capsys.readouterr() == ("", "")
