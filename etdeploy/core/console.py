"""The only module that prints.

stdout carries results only; progress and messages go to stderr. On a terminal, running tasks are
shown live (rich); elsewhere each event is one plain line.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import category, normalize

from etdeploy.core import cancel
from etdeploy.core.errors import OutputError, UsageError
from etdeploy.core.layout import cut
from etdeploy.core.layout import table as table

if TYPE_CHECKING:
    from rich.live import Live

    from etdeploy.core.values import Progress

# Without a progress bar: how often a long task reports its progress, in seconds.
_EVERY_S = 15.0
# How often a wait looks whether the run was asked to stop.
_POLL_S = 0.1
# Narrower than this, nothing is readable.
_NARROWEST = 20
_NAME, _BAR, _TIME = 10, 24, 7
_LONGEST_NAME = 40
# The name of the handler for characters that an encoding lacks, and what replaces them where
# Unicode itself has nothing simpler. The bars of a sparkline have eight heights.
_SIMPLER = "etdeploy.simpler"
_SIMPLE = dict(zip("▁▂▃▄▅▆▇█", "_.,-~+*#", strict=True)) | {
    "µ": "u", "μ": "u", "°": "", "²": "^2", "√": "sqrt", "×": "x", "±": "+-", "→": "->",
    "−": "-", "–": "-", "—": "-", "─": "-", "━": "-", "│": "|", "╰": "+", "╯": "+", "•": "*",
    "‘": "'", "’": "'", "“": '"', "”": '"', "\N{REPLACEMENT CHARACTER}": "?",
}  # fmt: skip
# Stands for a control character.
_CONTROL = "\N{REPLACEMENT CHARACTER}"


class _Output(io.TextIOWrapper):
    """Standard output that says why a write failed, whoever wrote."""

    def write(self, text: str) -> int:
        with _lost_output():
            return super().write(text)

    def flush(self) -> None:
        with _lost_output():
            super().flush()


def open_streams() -> None:
    """Turns failed writes to stdout into an OutputError, and opens closed streams.

    Characters that a stream's encoding lacks are written in simpler ones. The caller must have
    opened file descriptors 1 and 2.
    """
    codecs.register_error(_SIMPLER, _simpler)
    if sys.stdout is None:
        sys.stdout = _Output(os.fdopen(1, "wb"), errors=_SIMPLER)
    elif isinstance(own := sys.stdout, io.TextIOWrapper):
        errors = _SIMPLER if own.errors in ("strict", "surrogateescape") else own.errors
        sys.stdout = _Output(own.buffer, own.encoding, errors, line_buffering=own.line_buffering)
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=_SIMPLER)


def _simpler(error: UnicodeError) -> tuple[str | bytes, int]:
    """Handles what an encoding lacks; bytes of a file's name that are not text stay as they are."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    char = error.object[error.start]
    if "\udc80" <= char <= "\udcff":
        return bytes([ord(char) - 0xDC00]), error.start + 1
    plain = normalize("NFKD", char).encode("ascii", "ignore").decode()
    return _SIMPLE.get(char, plain or "?"), error.start + 1


def result(text: str) -> None:
    """Writes a result to stdout; JSON in its own escapes where the encoding lacks a character."""
    if text.startswith(("{", "[")):
        text = _escaped(text, sys.stdout.encoding or "utf-8")
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def _escaped(json_text: str, encoding: str) -> str:
    try:
        json_text.encode(encoding)
    except UnicodeEncodeError:
        return re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], json_text)
    return json_text


def write_chunk(text: str) -> None:
    """Writes a part of a result to stdout at once.

    A terminal gets no control characters of it, since it is not from here: they could change what
    the terminal shows or does.
    """
    if is_terminal():
        text = "".join(c if c in "\n\t" or category(c) != "Cc" else _CONTROL for c in text)
    sys.stdout.write(text)
    sys.stdout.flush()


def ask(prompt: str) -> str | None:
    """The next line of standard input, without its end; None at the end of the input.

    A terminal shows the prompt, and lets the line be edited.
    """
    if sys.stdin is None:
        return None
    with _text_only():
        if stdin_isatty() and is_terminal():
            return _edited(prompt)
        if stdin_isatty():
            _to_stderr(prompt)
        line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None


def read() -> str:
    """All of standard input."""
    with _text_only():
        return sys.stdin.read() if sys.stdin else ""


def _edited(prompt: str) -> str | None:
    with contextlib.suppress(ImportError):
        # Python's input() has keys for editing and for earlier lines once this is imported.
        import readline  # noqa: F401
    try:
        return input(prompt)
    except EOFError:
        return None


@contextlib.contextmanager
def _text_only() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not valid text: {error}") from error


@contextlib.contextmanager
def _lost_output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _drain(sys.stdout)
        reason = "it is closed" if error.errno == errno.EBADF else error.strerror
        raise OutputError(
            f"the result cannot be written to standard output: {reason}",
            remedy="The work is done and kept: the same command shows the result again.",
        ) from error


def _drain(stream: TextIO) -> None:
    """Discards a broken stream's buffer; at exit Python would try to write it and fail."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def result_json(value: Any) -> None:
    """Writes a JSON result to stdout."""
    result(json.dumps(value, indent=2, ensure_ascii=False))


def watch(text: Callable[[], str], every_s: float) -> None:
    """Shows a text that changes, until the run is asked to stop: that is its usual end.

    On a terminal it stands in one place; elsewhere each new text follows the one before.
    """
    if is_terminal():
        _watch_live(text, every_s)
        return
    before = None
    stopped = False
    while not stopped:
        now = text()
        if now != before:
            result(now if before is None else f"\n{now}")
        before = now
        stopped = wait_or_cancelled(every_s)


def _watch_live(text: Callable[[], str], every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(Text(text()), console=Console(), auto_refresh=False) as live:
        while not wait_or_cancelled(every_s):
            live.update(Text(text()), refresh=True)


def wait_or_cancelled(at_most_s: float | None = None) -> bool:
    """Waits so many seconds, or for ever; returns at once, and True, if asked to stop."""
    until = None if at_most_s is None else time.monotonic() + at_most_s
    while until is None or time.monotonic() < until:
        if cancel.requested():
            return True
        time.sleep(_POLL_S)
    return cancel.requested()


def message(text: str) -> None:
    """Writes a message to stderr; if stderr is closed or full, work continues."""
    _to_stderr(text + "\n")


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _drain(sys.stderr)


def warn(text: str) -> None:
    """Writes a warning to stderr."""
    message(f"warning: {text}")


def is_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def stdin_isatty() -> bool:
    """Whether a person writes standard input."""
    return sys.stdin is not None and sys.stdin.isatty()


def width() -> int | None:
    """The width of the terminal that shows results; None if lines may have any length.

    COLUMNS overrides the terminal's own width.
    """
    if not is_terminal() and not os.environ.get("COLUMNS"):
        return None
    return max(_NARROWEST, shutil.get_terminal_size().columns)


def height() -> int | None:
    """The lines of the terminal that shows results; None where there may be any number.

    LINES overrides the terminal's own height.
    """
    return max(1, shutil.get_terminal_size().lines) if is_terminal() else None


class TaskDisplay:
    """Shows tasks as they start, advance and end; safe to call from several threads.

    Args:
        live: Whether running tasks are redrawn in place; by default on a terminal.
        quiet: Whether nothing is shown.
        steps: Whether what a task does is a line, too, where nothing is redrawn.
    """

    def __init__(
        self, live: bool | None = None, quiet: bool = False, *, steps: bool = True
    ) -> None:
        self._live_wanted = (sys.stderr.isatty() if live is None else live) and not quiet
        self._quiet, self._steps = quiet, steps
        self._lock = threading.Lock()
        # Rich draws while it opens and prints, and drawing takes `_lock`: do not hold that then.
        self._opening = threading.Lock()
        self._running: dict[str, tuple[float, str, float | None]] = {}
        self._spoken: dict[str, float] = {}
        self._live: Live | None = None
        self._name_width = _NAME

    def make_room(self, names: Iterable[str]) -> None:
        """Makes the column of the names wide enough for tasks that will come."""
        longest = max(map(len, names), default=_NAME)
        self._name_width = max(_NAME, min(longest, _LONGEST_NAME))

    def __enter__(self) -> TaskDisplay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def start(self, name: str) -> None:
        """A task begins."""
        with self._lock:
            self._running[name] = (time.monotonic(), "", None)
        if self._live_wanted:
            self._open_live()
        else:
            self._line(f"{name:<{self._name_width}} ...")

    def advance(self, name: str, text: str, fraction: float | None = None) -> None:
        """A task reports its progress."""
        now = time.monotonic()
        with self._lock:
            started, before, _ = self._running.get(name, (now, "", None))
            self._running[name] = (started, text, fraction)
            # Without a bar, long tasks report their progress now and then.
            due = fraction is None or now - self._spoken.get(name, started) >= _EVERY_S
            if due:
                self._spoken[name] = now
        if self._steps and not self._live_wanted and due and text != before:
            self._line(f"{name:<{self._name_width}} {text}")

    def end(self, name: str, text: str, seconds: float | None = None) -> None:
        """A task has ended; `text` says how."""
        with self._lock:
            self._running.pop(name, None)
        took = "" if seconds is None else f"  ({seconds:.1f} s)"
        self._line(f"{name:<{self._name_width}} {text}{took}")

    def _line(self, text: str) -> None:
        if self._quiet:
            return
        if self._live:
            with contextlib.suppress(OSError):  # the terminal is gone
                self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            message(text)

    def _open_live(self) -> None:
        from rich.console import Console
        from rich.live import Live

        with self._opening:
            if self._live is not None:
                return
            terminal = Console(stderr=True)
            live = Live(
                console=terminal,
                get_renderable=lambda: self._render(terminal.width),
                refresh_per_second=8,
                transient=True,
            )
            live.start()
            self._live = live

    def _render(self, columns: int) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            running = dict(self._running)
        # A narrow terminal shows the progress as a number.
        bar = _BAR if columns >= 80 else 5
        name_width = max(_NAME, min(self._name_width, columns // 3))
        text_width = max(1, columns - name_width - bar - _TIME - 3)
        grid = Table.grid(padding=(0, 1))
        for fixed in (name_width, bar, text_width, _TIME):
            grid.add_column(width=fixed, no_wrap=True)
        for name, (started, text, fraction) in running.items():
            done: Any = Spinner("dots")
            if fraction is not None:
                whole = bar == _BAR
                done = ProgressBar(1.0, fraction, width=bar) if whole else f"{fraction:4.0%}"
            took = f"{time.monotonic() - started:.0f} s"
            grid.add_row(Text(cut(name, name_width)), done, Text(cut(text, text_width)), took)
        return grid


@contextlib.contextmanager
def lazy_task(display: TaskDisplay, name: str, done: str) -> Iterator[Progress]:
    """Gives the progress of work that may have nothing to do."""
    started = False

    def tell(text: str, fraction: float | None = None) -> None:
        nonlocal started
        if not started:
            display.start(name)
        started = True
        display.advance(name, text, fraction)

    yield tell
    if started:
        display.end(name, done)


def size(size_bytes: int) -> str:
    """A readable size in decimal units: `12.3 MB`."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def count(number: int, noun: str) -> str:
    """A number with its noun: `1 file`, `2 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 3, *, counts: bool = False) -> str:
    """The first names: `a, b, c and more`, or with `counts` `a, b, c and 2 more`."""
    left = len(names) - most
    more = f" and {f'{left} ' if counts else ''}more" if left > 0 else ""
    return ", ".join(names[:most]) + more
