"""A program whose output is read as it comes, on any device."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from etdeploy.devices.base import Bundle, Device, RunOutcome, StreamingRun


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
