"""What is printed, and where."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from etdeploy.core import console
from etdeploy.core.errors import UsageError


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (5e9, "5.0 GB"),
     (5e12, "5000.0 GB")],
)  # fmt: skip
def test_sizes(size_bytes: int, text: str) -> None:
    assert console.size(size_bytes) == text


@pytest.mark.parametrize("steps", [True, False])
def test_tasks_are_plain_lines_in_a_log(capsys: pytest.CaptureFixture[str], steps: bool) -> None:
    with console.TaskDisplay(live=False, steps=steps) as display:
        display.start("export")
        display.advance("export", "tracing")
        display.advance("export", "tracing")
        display.advance("export", "copying", 0.5)
        display.end("export", "made", 1.25)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "export     ...", *["export     tracing"] * steps, "export     made  (1.2 s)",
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [40, 100])
def test_running_tasks_take_one_line_each_in_a_terminal_of_any_width(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    now_s = 40.0
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now_s))
    with console.TaskDisplay(live=False) as display:
        display.start("export")
        display.advance("export", "compiling the runner, step 12 of 340 [bold]", 0.5)
        display.start("a-name-that-is-long")
        now_s += 3
        with (terminal := Console(width=columns)).capture() as shown:
            terminal.print(display._render(columns))
    lines = shown.get().splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("export ")
    assert ("50%" in lines[0]) == (columns == 40)
    assert ("step 12 of 340 [bold]" in lines[0]) == (columns == 100)
    assert all(line.rstrip().endswith(" 3 s") for line in lines)


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


def test_a_terminal_gets_no_control_characters_of_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console.write_chunk("a\x1b[31m")
    assert capsys.readouterr().out == "a\x1b[31m"
    monkeypatch.setattr(console, "is_terminal", lambda: True)
    console.write_chunk("a\x1b[31m\x9b\n\tb\u200d\u00a0\u4f60")
    assert capsys.readouterr().out == "a\ufffd[31m\ufffd\n\tb\u200d\u00a0\u4f60"


def test_lines_of_standard_input_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\r\n\nlast"))
    assert [console.ask("> ") for _ in range(4)] == ["one", "", "last", None]
    monkeypatch.setattr("sys.stdin", None)
    assert console.ask("> ") is None
    assert console.read() == ""


def test_input_that_is_no_text_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    with pytest.raises(UsageError, match="standard input"):
        console.read()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    with pytest.raises(UsageError, match="standard input"):
        console.ask("> ")
