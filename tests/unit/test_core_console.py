"""What is printed, and where."""

from __future__ import annotations

import json

import pytest

from etdeploy.core import console


def test_results_go_to_stdout_and_messages_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.result("a result")
    console.result_json({"name": "ü"})
    console.message("a message")
    console.warn("careful")
    out, err = capsys.readouterr()
    first, _, rest = out.partition("\n")
    assert first == "a result"
    assert json.loads(rest) == {"name": "ü"}
    assert err == "a message\nwarning: careful\n"


def test_a_table_is_aligned() -> None:
    text = console.table(("name", "ms"), [("a", 1.5), ("longer", None)], right=("ms",))
    assert text == "name     ms\n------  ---\na       1.5\nlonger    -"


def test_a_table_without_rows_has_its_head() -> None:
    assert console.table(("a", "bc"), []) == "a  bc\n-  --"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5e9, "5.0 GB"),
     (5e12, "5000.0 GB")],
)  # fmt: skip
def test_sizes(size_bytes: int, text: str) -> None:
    assert console.size(size_bytes) == text


def test_tasks_are_plain_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with console.TaskDisplay(live=False) as display:
        display.start("export")
        display.advance("export", "tracing")
        display.advance("export", "tracing")
        display.advance("export", "copying", 0.5)
        display.end("export", "made", 1.25)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "export     ...", "export     tracing", "export     made  (1.2 s)",
    ]  # fmt: skip


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with console.TaskDisplay(quiet=True) as display:
        display.start("export")
        display.advance("export", "tracing")
        display.end("export", "made")
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_finished_tasks_stay_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with console.TaskDisplay(live=True) as display:
        display.start("export")
        display.advance("export", "half", 0.5)
        display.start("[runner]")
        display.end("[runner]", "built [bold]")
        display.end("export", "made")
    out, err = capsys.readouterr()
    assert out == ""
    assert "[runner]   built [bold]" in err, "names are not taken for markup"
    assert "export     made" in err
