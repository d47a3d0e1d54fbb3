"""A program whose output is read as it comes, on any device."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from etdeploy.devices.base import Bundle, ConversingRun, Device, RunOutcome, StreamingRun

_LONG = "x" * 200_000


def awaited(device: Device, bundle: Bundle, folder: Path) -> tuple[list[str], RunOutcome]:
    """The lines and the outcome of a program that goes on only after its first line was heard.

    It waits for a file, which is sent when that line comes, and prints it.
    """
    assert device.capabilities.streams
    answer, lines = folder / "answer.txt", list[str]()
    answer.write_text("exit code 3\n\nworld\n")
    device.push(bundle)
    with device.open_run(bundle, "r1") as opened:
        run = cast(StreamingRun, opened)

        def heard(line: str) -> None:
            lines.append(line)
            if line == "out await":
                run.put(answer, "it's/answer.txt")

        outcome = run.stream(["await", "it's/answer.txt"], 20, heard)
    return lines, outcome


def is_whole(lines: list[str], outcome: RunOutcome) -> bool:
    """Whether all lines came, the last one without an end too, and stderr stayed apart."""
    expected = ["out await", "exit code 3", "", "world"]
    return (
        lines[:4] == expected
        and (outcome.exit_code, outcome.timed_out) == (0, False)
        and outcome.stdout.splitlines() == [*expected, "no end of line"]
        and outcome.stderr.startswith("err ")
    )


def talked(device: Device, bundle: Bundle) -> tuple[list[str | None], list[RunOutcome]]:
    """What a program answers line by line, and how it ends: by itself, by a signal, and by us."""
    assert device.capabilities.converses
    device.push(bundle)
    lines: list[str | None] = []
    outcomes: list[RunOutcome] = []
    with device.open_run(bundle, "r1") as opened:
        run = cast(ConversingRun, opened)
        for last in ("exit 5", "crash", "hang"):
            with run.converse(["talk", "it's"]) as talk:
                for line in ("it's one", "", _LONG):
                    talk.write_line(line)
                lines += [talk.read_line(20) for _ in range(4)]
                talk.write_line(last)
                if last == "hang":
                    with pytest.raises(TimeoutError):
                        talk.read_line(0.5)
                else:
                    lines.append(talk.read_line(20))
                outcomes.append(talk.end())
    return lines, outcomes


def was_talk(lines: list[str | None], outcomes: list[RunOutcome]) -> bool:
    """Whether all lines and ends came."""
    said = ["out talk", "9 it's one", "1 ", f"{len(_LONG) + 1} {'x' * 20}"]
    crashed, hung = outcomes[1:]
    return (
        lines == [*said, None, *said, None, *said]
        and [outcome.exit_code for outcome in outcomes] == [5, 139, None]
        and (crashed.signal_name, hung.timed_out) == ("SIGSEGV", True)
        and all(outcome.stderr.startswith("err ") for outcome in outcomes)
    )
