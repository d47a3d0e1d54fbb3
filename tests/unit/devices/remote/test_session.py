"""The shell of a push: what is begun in turn is answered in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.remote import shell as session_module
from etdeploy.devices.remote.shell import Advice, RemoteShell, ShellSession
from etdeploy.devices.shell import ShellResult


@dataclass
class FakeScripts:
    """A shell that answers as it was told to."""

    results: list[ShellResult] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def write_lines(self, lines: str, activity: str) -> None:  # noqa: ARG002
        self.said.append(lines)

    def read_reply(self, activity: str, idle_s: float | None = None) -> str:  # noqa: ARG002
        return self.lines.pop(0)

    def read_line(self, activity: str, idle_s: float) -> str | None:  # noqa: ARG002
        return self.lines.pop(0) if self.lines else None

    def read_result(self, marker: str, activity: str, idle_s: float | None = None) -> ShellResult:  # noqa: ARG002
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


def session(held: FakeScripts, shell: FakeShell | None = None) -> ShellSession:
    return ShellSession(cast(RemoteShell, shell or FakeShell()), held, "/f", "m")


def test_scripts_are_said_with_their_lines_and_answered_in_turn() -> None:
    held = FakeScripts([ShellResult(0, "1"), ShellResult(3, "2")])
    opened, found = session(held), list[ShellResult]()
    opened.begin("a\nb", "x", found.append)
    opened.begin("c", "x", found.append, after_success=True)
    assert held.said == ["run 2\na\nb", "run 2\n[ $code = 0 ] || exit $code\nc"]
    assert not found
    opened.wait()
    assert found == [ShellResult(0, "1"), ShellResult(3, "2")]


def test_lines_are_heard_after_the_answers_to_what_was_begun_before() -> None:
    held = FakeScripts([ShellResult(0, "1"), ShellResult(0, "2")], ["begun"])
    opened, found = session(held), list[ShellResult]()
    opened.begin("a", "x", found.append)
    talk = opened.begin("b", "x", found.append)
    assert opened.read_line(talk) == "begun"
    assert found == [ShellResult(0, "1")]
    opened.wait()
    assert len(found) == 2


def test_a_failure_is_told_in_the_words_of_the_kind_of_device() -> None:
    opened = session(FakeScripts([ShellResult(1, "mv: no room\n")]))
    opened.begin_checked("a", "keeping it")
    with pytest.raises(DeviceError, match="mv: no room"):
        opened.wait()


def test_a_long_script_runs_apart_and_still_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_LONGEST", 5)
    shell, held, found = (
        FakeShell(),
        FakeScripts([ShellResult(0, "1")]),
        list[ShellResult](),
    )
    opened = session(held, shell)
    opened.begin("a", "x", found.append)
    opened.begin("longer", "x", found.append)
    assert [result.output for result in found] == ["1", "apart"]
    assert (held.said, shell.scripts) == (["run 1\na"], ["longer"])
