"""Why an app's process ended: what the system records of it, and its log; all pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from etdeploy.devices.shell import sections, signal_name_for

_LINE = re.compile(
    # Some versions print a user or a number of one before the process.
    r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d)\.\d+ +(?:\S+ +)?(?P<pid>\d+) +\d+ (?P<level>[VDIWEFA]) "
    r"(?P<tag>[^:]*?) *: ?(?P<text>.*)"
)
_SERIOUS = "WEFA"
_MOST_LINES = 60
_FATAL = re.compile(r"Fatal signal (\d+) \((SIG\w+)\)(?:.*\bpid (\d+))?")
# Of a dump of a crash: what happened, the message of an abort, and where.
_OF_DUMP = re.compile(r"\s*(signal \d+|Abort message:|Cause:|backtrace:|#\d\d pc )")


@dataclass(frozen=True)
class LogLine:
    """One line."""

    time: str
    pid: int
    level: str
    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.level} {self.tag}: {self.text}"


@dataclass(frozen=True)
class JavaCrash:
    """An exception that nobody caught."""

    exception: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class NativeCrash:
    """A signal that ended the app."""

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


def app_warnings(lines: Iterable[LogLine], pid: int | None) -> list[str]:
    """What the app's process warned of, as text: the last lines."""
    return [str(line) for line in lines if line.pid == pid and line.level in _SERIOUS][
        -_MOST_LINES:
    ]


def java_crash(lines: Sequence[LogLine], app_id: str, pid: int | None) -> JavaCrash | None:
    """The last exception of an app's process that nobody caught; of any of its, without a pid."""
    own = [x for x in lines if x.tag == "AndroidRuntime" and (pid is None or x.pid == pid)]
    starts = [i for i, line in enumerate(own) if line.text.startswith("FATAL EXCEPTION")]
    for start in reversed(starts):
        texts = [line.text for line in own[start:] if line.pid == own[start].pid]
        if len(texts) > 2 and re.match(rf"Process: {re.escape(app_id)}\b(?![.:])", texts[1]):
            return JavaCrash(texts[2].strip(), tuple(text.rstrip() for text in texts[:_MOST_LINES]))
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
    return kept[:_MOST_LINES]


def was_short_of_memory(lines: Iterable[LogLine], app_id: str, pid: int | None) -> str | None:
    """What the low memory killer said when it killed the app; None if it did not."""
    for line in lines:
        found = re.match(r"Kill(?:ing)? '([^']+)' \((\d+)\)", line.text)
        if found and found[1] == app_id and pid in (None, int(found[2])):
            return line.text
    return None


# REASON_* of ApplicationExitInfo; the names that are printed differ among versions.
(_EXIT_SELF, _SIGNALED, _LOW_MEMORY, _CRASH, _CRASH_NATIVE, _ANR) = range(1, 7)
_EXCESSIVE = 9
_CLOSED = {10: "closed", 11: "closed: its user was stopped", 15: "changed", 16: "installed again"}
_KILLED = 9
_OF_SHELL = 128
# A part of the log that holds a run's last seconds on a phone that writes much.
_LOGCAT_LINES = 4000


@dataclass(frozen=True)
class ExitInfo:
    """What the system kept of the end of a process."""

    time: str
    pid: int
    reason: int
    status: int
    description: str


@dataclass(frozen=True)
class AppExit:
    """How it ended, as a run tells it.

    Attributes:
        cause: In a sentence without its end: "an exception ended the app: ...".
        lines: Of the log.
        exit_code: As a shell has it.
        out_of_memory: Whether the system killed it for want of memory; None where unknown.
        outside: What somebody did to it on the device; None if nobody did anything.
    """

    cause: str
    lines: tuple[str, ...] = ()
    exit_code: int = 1
    out_of_memory: bool | None = None
    outside: str | None = None

    @property
    def signal_name(self) -> str | None:
        return signal_name_for(self.exit_code)


def ending_command(app_id: str) -> str:
    """Prints what the system kept, and the log."""
    options = f"-v threadtime -t {_LOGCAT_LINES}"
    return "\n".join(
        (
            f"echo '#exit'; dumpsys activity exit-info {app_id} 2>/dev/null",
            f"echo '#crash'; logcat -b crash {options} 2>/dev/null",
            f"echo '#log'; logcat -b main -b system {options} 2>/dev/null",
            "true",
        )
    )


def parse_ending(output: str, app_id: str, pid: int | None, since: str | None) -> AppExit | None:
    """Why the app's process is gone; None where the device has not said it, or not yet."""
    parts = sections(output)
    crash = parse_log(parts.get("crash", ""), since)
    log = parse_log(parts.get("log", ""), since)
    info = exit_info(parse_exits(parts.get("exit", "")), pid, since)
    lines = tuple(app_warnings(log, pid))
    return _memory_exit(log, info, app_id, pid, lines) or (
        _crash_exit(crash, app_id, pid, lines) or (_recorded_exit(info, lines) if info else None)
    )


def unknown_exit(output: str, pid: int | None, since: str | None) -> AppExit:
    """The ending of an app that no source says anything about."""
    log = parse_log(sections(output).get("log", ""), since)
    cause = "the app's process is gone, and the device does not say why"
    return AppExit(cause, tuple(app_warnings(log, pid)), _OF_SHELL + _KILLED)


def _memory_exit(
    log: Sequence[LogLine],
    info: ExitInfo | None,
    app_id: str,
    pid: int | None,
    lines: tuple[str, ...],
) -> AppExit | None:
    said = was_short_of_memory(log, app_id, pid)
    if not said and not (info and info.reason == _LOW_MEMORY):
        return None
    cause = "the system killed the app, since memory ran out"
    return AppExit(cause + (f": {said}" if said else ""), lines, _OF_SHELL + _KILLED, True)


def _crash_exit(
    crash: Sequence[LogLine], app_id: str, pid: int | None, lines: tuple[str, ...]
) -> AppExit | None:
    if java := java_crash(crash, app_id, pid):
        memory = "out of memory, " if "OutOfMemoryError" in java.exception else ""
        cause = f"an exception ended the app: {memory}{java.exception}"
        return AppExit(cause, lines + java.lines)
    if native := native_crash(crash, app_id, pid):
        reason = f": {native.reason}" if native.reason else ""
        return _signal_exit(native.number, reason, lines + native.lines, False)
    return None


def _signal_exit(
    number: int, detail: str, lines: tuple[str, ...], out_of_memory: bool | None
) -> AppExit:
    code = _OF_SHELL + number
    name = signal_name_for(code) or f"signal {number}"
    return AppExit(f"{name} ended the app{detail}", lines, code, out_of_memory)


def _recorded_exit(info: ExitInfo, lines: tuple[str, ...]) -> AppExit:
    detail = f" ({info.description})" if info.description else ""
    if info.reason in _CLOSED:
        outside = f"{_CLOSED[info.reason]}{detail}"
        return AppExit(f"the app was {outside}", lines, _OF_SHELL + _KILLED, False, outside)
    if info.reason in (_SIGNALED, _CRASH_NATIVE) and 0 < info.status < 65:
        # A system that does not report that it kills for memory gives this reason.
        return _signal_exit(info.status, detail, lines, None if info.status == _KILLED else False)
    cause, exit_code, memory = {
        _ANR: ("the system ended the app, since it did not answer for seconds", 1, False),
        _EXIT_SELF: (f"the app exited with exit code {info.status}", info.status or 1, None),
        _CRASH: ("an exception ended the app", 1, None),
        _EXCESSIVE: (
            "the system ended the app, which used too much of the device",
            _OF_SHELL + _KILLED,
            False,
        ),
    }.get(
        info.reason,
        ("the system ended the app, for its own reason", _OF_SHELL + _KILLED, False),
    )
    return AppExit(f"{cause}{detail}", lines, exit_code, memory)


def parse_exits(text: str) -> tuple[ExitInfo, ...]:
    """The endings in `dumpsys activity exit-info`, newest first."""
    parts = re.split(r"ApplicationExitInfo #\d+:", text)[1:]
    found = (_exit(part) for part in parts)
    return tuple(each for each in found if each)


def _exit(text: str) -> ExitInfo | None:
    time = re.search(r"timestamp=(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", text)
    pid = re.search(r"\bpid=(\d+)", text)
    reason = re.search(r"\breason=(\d+)", text)
    status = re.search(r"\bstatus=(-?\d+)", text)
    # Before the state on Android 11, on a line of its own later.
    described = re.search(r"\bdescription=(.*?)(?= state=| trace=|$)", text, re.MULTILINE)
    if not (time and pid and reason):
        return None
    words = described[1].strip() if described else ""
    return ExitInfo(
        time[1], int(pid[1]), int(reason[1]), int(status[1]) if status else 0,
        "" if words == "null" else words[:200],
    )  # fmt: skip


def exit_info(exits: Sequence[ExitInfo], pid: int | None, since: str | None) -> ExitInfo | None:
    """The ending of a process since a time.

    The number of a process is used again after a while. Without it, the newest counts that was not
    made by ending the app that ran before.
    """
    recent = [x for x in exits if since is None or x.time >= since]
    if pid is not None:
        return next((x for x in recent if x.pid == pid), None)
    return next((x for x in recent if x.reason not in _CLOSED), None)
