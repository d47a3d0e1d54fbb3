"""Lines of `logcat -v threadtime`, and what a crash leaves among them; all pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_LINE = re.compile(
    # Some versions print a user or a number of one before the process.
    r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)\.\d+ +(?:\S+ +)?(?P<pid>\d+) +\d+ (?P<level>[VDIWEFA]) "
    r"(?P<tag>[^:]*?) *: ?(?P<text>.*)"
)
_SERIOUS = "WEFA"
_MOST = 60
_FATAL = re.compile(r"Fatal signal (\d+) \((SIG\w+)\)(?:.*\bpid (\d+))?")
# Of a dump of a crash: what happened, the message of an abort, and where.
_OF_DUMP = re.compile(r"\s*(signal \d+|Abort message:|Cause:|backtrace:|#\d\d pc )")


@dataclass(frozen=True)
class LogLine:
    """One line.

    Attributes:
        time: MM-DD HH:MM:SS.
        pid: The process that wrote it.
        level: V, D, I, W, E, F or A.
    """

    time: str
    pid: int
    level: str
    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.level} {self.tag}: {self.text}"


@dataclass(frozen=True)
class JavaCrash:
    """An exception that nobody caught.

    Attributes:
        exception: With its message: `java.lang.IllegalStateException: no model`.
        lines: Of the log, from the first to the last.
    """

    exception: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class NativeCrash:
    """A signal that ended the app.

    Attributes:
        number: Of the signal.
        reason: Why it aborted itself, if it said so.
        lines: Of the log.
    """

    number: int
    reason: str | None
    lines: tuple[str, ...]


def parse_log(text: str, since: str | None) -> tuple[LogLine, ...]:
    """The lines since a time."""
    after = since[5:] if since else ""
    matches = (_LINE.match(line) for line in text.splitlines())
    return tuple(
        LogLine(m["time"], int(m["pid"]), m["level"], m["tag"], m["text"])
        for m in matches
        if m and m["time"] >= after
    )


def of_app(lines: Iterable[LogLine], pid: int | None) -> list[str]:
    """What the app's process warned of, as text: the last lines."""
    return [str(line) for line in lines if line.pid == pid and line.level in _SERIOUS][-_MOST:]


def java_crash(lines: Sequence[LogLine], app_id: str, pid: int | None) -> JavaCrash | None:
    """The last exception of an app's process that nobody caught; of any of its, without a pid."""
    own = [x for x in lines if x.tag == "AndroidRuntime" and (pid is None or x.pid == pid)]
    starts = [i for i, line in enumerate(own) if line.text.startswith("FATAL EXCEPTION")]
    for start in reversed(starts):
        texts = [line.text for line in own[start:] if line.pid == own[start].pid]
        if len(texts) > 2 and re.match(rf"Process: {re.escape(app_id)}\b(?![.:])", texts[1]):
            return JavaCrash(texts[2].strip(), tuple(text.rstrip() for text in texts[:_MOST]))
    return None


def native_crash(lines: Sequence[LogLine], app_id: str, pid: int | None) -> NativeCrash | None:
    """The last signal that ended the app's process."""
    number, fatal = None, []
    for line in lines:
        found = _FATAL.search(line.text)
        if found and pid is not None and pid in (line.pid, int(found[3] or 0)):
            number, fatal = int(found[1]), [line.text]
    dump = _dump(lines, app_id, pid)
    if number is None:
        signals = (re.match(r"\s*signal (\d+) ", text) for text in dump)
        number = next((int(found[1]) for found in signals if found), None)
    if number is None:
        return None
    aborts = (re.match(r"\s*Abort message: '(.*?)'?$", text) for text in dump)
    reason = next((found[1] for found in aborts if found), None)
    return NativeCrash(number, reason, tuple(fatal + dump))


def _dump(lines: Sequence[LogLine], app_id: str, pid: int | None) -> list[str]:
    """What the system's crash_dump wrote of the app, without registers and memory."""
    kept: list[str] = []
    is_own = False
    for line in lines:
        if line.tag != "DEBUG":
            continue
        if found := re.match(r"pid: (\d+), .*>>> (\S+) <<<", line.text):
            is_own = int(found[1]) == pid if pid is not None else found[2] == app_id
            kept = [] if is_own else kept
        elif is_own and _OF_DUMP.match(line.text):
            kept.append(line.text.rstrip())
    return kept[:_MOST]


def was_short_of_memory(lines: Iterable[LogLine], app_id: str, pid: int | None) -> str | None:
    """What the low memory killer said when it killed the app; None if it did not."""
    for line in lines:
        found = re.match(r"Kill(?:ing)? '([^']+)' \((\d+)\)", line.text)
        if found and found[1] == app_id and pid in (None, int(found[2])):
            return line.text
    return None


_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+")


def check_app_id(app_id: str) -> str:
    """`app_id` itself when it is an application id, which needs no quotes in a shell."""
    if not _ID.fullmatch(app_id) or len(app_id) > 200:
        raise ValueError(f"{app_id!r} is no application id")
    return app_id


def activity(app_id: str) -> str:
    """What `am start -n` starts."""
    return f"{app_id}/.MainActivity"


def external_files(app_id: str) -> str:
    """The folder of getExternalFilesDir(), which adb's user may read."""
    return f"/sdcard/Android/data/{app_id}/files"


def stop_command(app_id: str) -> str:
    """Ends the app; its data stay."""
    return f"am force-stop {app_id}"
