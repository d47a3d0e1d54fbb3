"""Why an app's process is gone; all pure.

Android 11 and newer keep it (`dumpsys activity exit-info`, android.app.ApplicationExitInfo); what
happened in the app itself is in the log's buffer of crashes on every version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.devices.android.apps import logs
from etdeploy.devices.android.apps.logs import LogLine
from etdeploy.devices.shell import sections
from etdeploy.devices.signals import signal_of

# REASON_* of ApplicationExitInfo; the names that are printed differ among versions.
(_EXIT_SELF, _SIGNALED, _LOW_MEMORY, _CRASH, _CRASH_NATIVE, _ANR) = range(1, 7)
_EXCESSIVE = 9
_CLOSED = {10: "closed", 11: "closed: its user was stopped", 15: "changed", 16: "installed again"}
_KILLED = 9
_OF_SHELL = 128
# A part of the log that holds a run's last seconds on a phone that writes much.
_LINES = 4000


@dataclass(frozen=True)
class ExitInfo:
    """What the system kept of the end of a process.

    Attributes:
        time: YYYY-MM-DD HH:MM:SS of the device.
        pid: Of the process.
        reason: The number.
        status: An exit code, or the number of a signal.
        description: In the system's words.
    """

    time: str
    pid: int
    reason: int
    status: int
    description: str


@dataclass(frozen=True)
class Ending:
    """How it ended, as a run tells it.

    Attributes:
        cause: In a sentence without its end: "the app was ended by an exception: ...".
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
        return signal_of(self.exit_code)


def ending_command(app_id: str) -> str:
    """Prints what the system kept, and the log."""
    options = f"-v threadtime -t {_LINES}"
    return "\n".join(
        (
            f"echo '#exit'; dumpsys activity exit-info {app_id} 2>/dev/null",
            f"echo '#crash'; logcat -b crash {options} 2>/dev/null",
            f"echo '#log'; logcat -b main -b system {options} 2>/dev/null",
            "true",
        )
    )


def parse_ending(output: str, app_id: str, pid: int | None, since: str | None) -> Ending | None:
    """Why the app's process is gone; None where the device has not said it, or not yet.

    Args:
        output: Of `ending_command`.
        app_id: The app's.
        pid: Of its process; None when it was gone before it could be seen.
        since: When it was started, by the device's clock.
    """
    parts = sections(output)
    crash = logs.parse_log(parts.get("crash", ""), since)
    log = logs.parse_log(parts.get("log", ""), since)
    info = exit_info(parse_exits(parts.get("exit", "")), pid, since)
    lines = tuple(logs.of_app(log, pid))
    return _of_memory(log, info, app_id, pid, lines) or (
        _of_crash(crash, app_id, pid, lines) or (_of_info(info, lines) if info else None)
    )


def unknown(output: str, pid: int | None, since: str | None) -> Ending:
    """The ending of an app that no source says anything about."""
    log = logs.parse_log(sections(output).get("log", ""), since)
    cause = "the app's process is gone, and the device does not say why"
    return Ending(cause, tuple(logs.of_app(log, pid)), _OF_SHELL + _KILLED)


def _of_memory(
    log: Sequence[LogLine],
    info: ExitInfo | None,
    app_id: str,
    pid: int | None,
    lines: tuple[str, ...],
) -> Ending | None:
    said = logs.was_short_of_memory(log, app_id, pid)
    if not said and not (info and info.reason == _LOW_MEMORY):
        return None
    cause = "the system killed the app, since memory ran out"
    return Ending(cause + (f": {said}" if said else ""), lines, _OF_SHELL + _KILLED, True)


def _of_crash(
    crash: Sequence[LogLine], app_id: str, pid: int | None, lines: tuple[str, ...]
) -> Ending | None:
    if java := logs.java_crash(crash, app_id, pid):
        memory = "out of memory, " if "OutOfMemoryError" in java.exception else ""
        cause = f"the app was ended by an exception: {memory}{java.exception}"
        return Ending(cause, lines + java.lines)
    if native := logs.native_crash(crash, app_id, pid):
        code = _OF_SHELL + native.number
        cause = f"the app was ended by {signal_of(code) or f'signal {native.number}'}"
        cause += f": {native.reason}" if native.reason else ""
        return Ending(cause, lines + native.lines, code, False)
    return None


def _of_info(info: ExitInfo, lines: tuple[str, ...]) -> Ending:
    told = f" ({info.description})" if info.description else ""
    if info.reason in _CLOSED:
        what = f"{_CLOSED[info.reason]}{told}"
        return Ending(f"the app was {what}", lines, _OF_SHELL + _KILLED, False, outside=what)
    if info.reason == _ANR:
        return Ending(
            f"the system ended the app, since it did not answer for seconds{told}", lines,
            out_of_memory=False,
        )  # fmt: skip
    if info.reason == _EXIT_SELF:
        return Ending(
            f"the app ended itself with exit code {info.status}{told}", lines, info.status or 1
        )
    if info.reason in (_SIGNALED, _CRASH_NATIVE) and 0 < info.status < 65:
        code = _OF_SHELL + info.status
        # Where the system does not tell of its killing for memory, it has this reason.
        memory = None if info.status == _KILLED else False
        name = signal_of(code) or f"signal {info.status}"
        return Ending(f"the app was ended by {name}{told}", lines, code, memory)
    if info.reason == _CRASH:
        return Ending(f"the app was ended by an exception{told}", lines)
    reason = "it used too much of the device" if info.reason == _EXCESSIVE else "for its own reason"
    return Ending(f"the system ended the app, {reason}{told}", lines, _OF_SHELL + _KILLED, False)


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
