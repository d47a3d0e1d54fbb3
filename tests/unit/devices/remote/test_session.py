"""The shell of a push: what is begun in turn is answered in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.remote import shell as session_module
from etdeploy.devices.remote.shell import Advice, RemoteShell, Session
from etdeploy.devices.shell import ShellResult


@dataclass
class FakeHeld:
    """A shell that answers as it was told to."""

    results: list[ShellResult] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def say(self, lines: str, activity: str) -> None:  # noqa: ARG002
        self.said.append(lines)

    def hear(self, activity: str, idle_s: float | None = None) -> str:  # noqa: ARG002
        return self.lines.pop(0)

    def line(self, activity: str, idle_s: float) -> str | None:  # noqa: ARG002
        return self.lines.pop(0) if self.lines else None

    def result(self, marker: str, activity: str, idle_s: float | None = None) -> ShellResult:  # noqa: ARG002
        return self.results.pop(0)


@dataclass
class FakeShell:
    """A connection of which only the commands that run apart are used."""

    name: str = "ssh:board"
    advice: Advice = field(default_factory=lambda: Advice("board", "ssh", "reboot", "Look"))
    scripts: list[str] = field(default_factory=list)

    def shell(self, script: str, *_: Any) -> ShellResult:
        self.scripts.append(script)
        return ShellResult(0, "apart")


def session(held: FakeHeld, shell: FakeShell | None = None) -> Session:
    return Session(cast(RemoteShell, shell or FakeShell()), held, "/f", "m")


def test_scripts_are_said_with_their_lines_and_answered_in_turn() -> None:
    held = FakeHeld([ShellResult(0, "1"), ShellResult(3, "2")])
    opened, found = session(held), list[ShellResult]()
    opened.begin("a\nb", "x", found.append)
    opened.begin("c", "x", found.append, after_success=True)
    assert held.said == ["run 2\na\nb", "run 2\n[ $code = 0 ] || exit $code\nc"]
    assert not found
    opened.settle()
    assert found == [ShellResult(0, "1"), ShellResult(3, "2")]


def test_lines_are_heard_after_the_answers_to_what_was_begun_before() -> None:
    held = FakeHeld([ShellResult(0, "1"), ShellResult(0, "2")], ["begun"])
    opened, found = session(held), list[ShellResult]()
    opened.begin("a", "x", found.append)
    talk = opened.begin("b", "x", found.append)
    assert opened.hear(talk) == "begun"
    assert found == [ShellResult(0, "1")]
    opened.settle()
    assert len(found) == 2


def test_only_what_was_begun_before_is_waited_for() -> None:
    held = FakeHeld([ShellResult(0, "1"), ShellResult(0, "2")])
    opened, found = session(held), list[ShellResult]()
    opened.begin("a", "x", found.append)
    before = opened.last
    opened.begin("b", "x", found.append)
    opened.settle(before)
    opened.settle(before)
    assert found == [ShellResult(0, "1")]


def test_a_failure_is_told_in_the_words_of_the_kind_of_device() -> None:
    opened = session(FakeHeld([ShellResult(1, "mv: no room\n")]))
    opened.demand("a", "keeping it")
    with pytest.raises(DeviceError, match=r"board .* keeping it: mv: no room$"):
        opened.settle()


def test_a_long_script_runs_apart_and_still_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_LONGEST", 5)
    shell, held, found = FakeShell(), FakeHeld([ShellResult(0, "1")]), list[ShellResult]()
    opened = session(held, shell)
    opened.begin("a", "x", found.append)
    opened.begin("longer", "x", found.append)
    assert [result.output for result in found] == ["1", "apart"]
    assert (held.said, shell.scripts) == (["run 1\na"], ["longer"])
