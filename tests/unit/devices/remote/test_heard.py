"""What a program prints, apart from what the shell says after it."""

from __future__ import annotations

import pytest

from etdeploy.devices.remote.run import OutputReader
from etdeploy.devices.remote.shell import SilentError


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("1\n2\nend\nexit code 0\n", ["1", "2"]),
        ("1\nhalf a lineend\nexit code 0\n", ["1", "half a line"]),
        ("exit code 7\n\nend\nexit code 0\n", ["exit code 7", ""]),
        ("end\nexit code 0\n", []),
    ],
)
def test_what_the_shell_says_is_no_line_of_the_program(said: str, lines: list[str]) -> None:
    told: list[str] = []
    heard = OutputReader(told.append, "end", 10)
    for line in said.splitlines():
        heard.take(line)
    assert told == lines
    assert heard.text.splitlines() == lines
    assert heard.after(said) == "\nexit code 0\n"


def test_a_program_that_never_stops_printing_has_a_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("etdeploy.devices.remote.run.time.monotonic", lambda: now[0])
    heard = OutputReader(lambda _: None, "end", 5)
    heard.take("1")
    now[0] += 5.1
    with pytest.raises(SilentError):
        heard.take("2")
    assert heard.text == "1\n"
