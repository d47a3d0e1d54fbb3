"""The shell script that starts an app on a device, and waits for its results; all pure.

It runs there, so that nothing travels while the app measures, and nearly all of it is built into
the shell. A second costs `sleep`, and `run-as grep` for an app that can be debugged.

    #since    the device's time before the start
    #start    what `am start` said
    #pid      of the app's process, if it was seen
    #front    of the last look: which activities were in front
    #ended    results, behind, gone or refused
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from etdeploy.devices.android import logs
from etdeploy.devices.android.logs import LogLine, activity, check_app_id, external_files
from etdeploy.devices.app_results import FILE, Option
from etdeploy.devices.shell import sections, signal_of

RESULTS = ".results"
"""In the run's folder: a copy of the app's results.json."""
WAY = ".way"
"""In the run's folder: `private` if the app's own folder can be read, else `external`."""
MARKER = ".app"
"""In the run's folder: id and process of the app that was started last."""
# The scores that Android gives a process: 0 in front, 100 visible, 200 perceptible. More is behind.
_BEHIND = 200
# Which activity is in front is a question to the system's services, so it is seldom asked.
_SELDOM = 10
# Of Android 6 and 7 the last; of 12 and newer, the second and third.
_IN_FRONT = r"^ *(mResumedActivity|topResumedActivity|ResumedActivity|mFocusedActivity)[:=]"
_LONGEST_LINES = 20


@dataclass(frozen=True)
class LaunchReport:
    """What the script said.

    Attributes:
        since: The device's time when it began, YYYY-MM-DD HH:MM:SS; None where it has no clock.
        said: By `am start`.
        pid: Of the app; None when it was gone before it could be seen.
        front: The app that was in front instead; None for none.
        ended: results, behind, gone or refused; None when the script did not come to an end.
    """

    since: str | None
    said: str
    pid: int | None
    front: str | None
    ended: str | None


def extras(run_id: str, options: Mapping[str, Option]) -> str:
    """The options as words of `am start`, quoted."""
    words = ["--es", "run_id", run_id]
    for name, value in options.items():
        if isinstance(value, bool):
            words += ["--ez", name, "true" if value else "false"]
        elif isinstance(value, int):
            words += ["--ei", name, str(value)]
        else:
            words += ["--es", name, value]
    return " ".join(map(quote, words))


def watch_script(app_id: str, run_id: str, options: Mapping[str, Option]) -> str:
    """Starts the app anew, and waits; its working folder is the run's."""
    check_app_id(app_id)
    external = f"{external_files(app_id)}/{FILE}"
    start = f"am start -W -S -n {activity(app_id)} {extras(run_id, options)}"
    return "\n".join(
        (
            f"rm -f {RESULTS}; pid=; echo {app_id} 0 >{MARKER}",
            f"if run-as {app_id} true >/dev/null 2>&1; then way=private; else way=external; fi",
            f"echo $way >{WAY}",
            "if [ $way = private ]; then",
            # One tool for both: whether it is there, and whether it is of this start.
            f"  there() {{ run-as {app_id} grep -qs {run_id} files/{FILE} 2>/dev/null; }}",
            f"  take() {{ run-as {app_id} cat files/{FILE} | cat >{RESULTS}; }}",
            "else",
            f"  there() {{ [ -e {external} ] && grep -qs {run_id} {external}; }}",
            f"  take() {{ cat {external} >{RESULTS}; }}",
            "fi",
            'ended() { echo "#ended"; echo $1; exit 0; }',
            'echo "#since"; date "+%Y-%m-%d %H:%M:%S"',
            f'echo "#start"; said=$({start} 2>&1); echo "$said"',
            # It exits with 0 on many versions, whatever happened.
            'case "$said" in *Error*|*Exception*|*"Permission Denial"*)',
            '  case "$said" in *"Status: ok"*) ;; *) ended refused;; esac;; esac',
            *_pid_lines(app_id),
            *_front_lines(app_id),
            "n=0; seen=; away=0; while :; do",
            "  if there; then take; ended results; fi",
            # After the look, so that what it wrote before it ended is found.
            '  [ -n "$gone" ] && ended gone',
            "  if ! lives 2>/dev/null; then gone=1; continue; fi",
            "  sleep 1; n=$((n + 1))",
            f"  if [ $score -gt {_BEHIND} ] || [ $away != 0 ] || [ $((n % {_SELDOM})) = 1 ]",
            "  then look; [ $away -lt 2 ] || { there && continue; ended behind; }; fi",
            "done",
        )
    )


def _pid_lines(app_id: str) -> tuple[str, ...]:
    """Looks for the app's process, as `find_command` does."""
    return (
        "gone=",
        f"pid=$({find_command(app_id)})",
        'pid=${pid%%[!0-9]*}; echo "#pid"; echo $pid',
        # One that has ended and was not buried has no words, and its number may be used again.
        'lives() { [ -n "$pid" ] && IFS= read -r -d "" name </proc/$pid/cmdline &&',
        f'  [ "$name" = {app_id} ] && read -r score </proc/$pid/oom_score_adj; }}',
        f'[ -z "$pid" ] || echo {app_id} $pid >{MARKER}',
    )


def find_command(app_id: str) -> str:
    """Prints the processes that are called as an app.

    Without pidof and tr, which older versions lack. The first word of the command line counts: an
    app's other processes are called `ID:NAME`.
    """
    return (
        'for f in /proc/[0-9]*/cmdline; do IFS= read -r -d "" name <$f'
        f' && [ "$name" = {app_id} ] && {{ f=${{f%/*}}; echo ${{f##*/}}; }}; done 2>/dev/null'
    )


def _front_lines(app_id: str) -> tuple[str, ...]:
    """`look` counts in `$away` how often in turn the app was not in front.

    Where nothing at all is in front, the screen is off, unless the device prints it in another way:
    then the app was never seen there.
    """
    return (
        "look() {",
        f"  front=$(dumpsys activity activities 2>/dev/null | grep -E '{_IN_FRONT}')",
        f'  case "$front" in *" {app_id}/"*) seen=1; away=0;;',
        '  *"ActivityRecord{"*) away=$((away + 1));;',
        '  *) [ -z "$seen" ] || away=$((away + 1));; esac',
        '  [ $away -lt 2 ] || { echo "#front"; echo "$front"; }',
        "}",
    )


def parse_report(output: str) -> LaunchReport:
    """Reads what the script printed."""
    parts = sections(output)
    since = re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", parts.get("since", ""))
    pid = parts.get("pid", "").strip()
    ended = parts.get("ended", "").split()
    return LaunchReport(
        since=since[0] if since else None,
        said="\n".join(parts.get("start", "").strip().splitlines()[:_LONGEST_LINES]),
        pid=int(pid) if pid.isdigit() else None,
        front=parse_front(parts.get("front", "")),
        ended=ended[0] if ended else None,
    )


def parse_front(text: str) -> str | None:
    """The app whose activity is in front, in lines of `dumpsys activity activities`."""
    found = re.search(r"ActivityRecord\{\S+ (?:u\d+ )?([\w.]+)/", text)
    return found[1] if found else None


def parse_marker(text: str) -> tuple[str, int] | None:
    """Id and process of an app that a run started; None where it is not known."""
    found = re.fullmatch(r"([\w.]+) (\d+)\s*", text)
    return (found[1], int(found[2])) if found and int(found[2]) else None


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
class AppExit:
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


def parse_ending(output: str, app_id: str, pid: int | None, since: str | None) -> AppExit | None:
    """Why the app's process is gone; None where the device has not said it, or not yet."""
    parts = sections(output)
    crash = logs.parse_log(parts.get("crash", ""), since)
    log = logs.parse_log(parts.get("log", ""), since)
    info = exit_info(parse_exits(parts.get("exit", "")), pid, since)
    lines = tuple(logs.of_app(log, pid))
    return _of_memory(log, info, app_id, pid, lines) or (
        _of_crash(crash, app_id, pid, lines) or (_of_info(info, lines) if info else None)
    )


def unknown_exit(output: str, pid: int | None, since: str | None) -> AppExit:
    """The ending of an app that no source says anything about."""
    log = logs.parse_log(sections(output).get("log", ""), since)
    cause = "the app's process is gone, and the device does not say why"
    return AppExit(cause, tuple(logs.of_app(log, pid)), _OF_SHELL + _KILLED)


def _of_memory(
    log: Sequence[LogLine],
    info: ExitInfo | None,
    app_id: str,
    pid: int | None,
    lines: tuple[str, ...],
) -> AppExit | None:
    said = logs.was_short_of_memory(log, app_id, pid)
    if not said and not (info and info.reason == _LOW_MEMORY):
        return None
    cause = "the system killed the app, since memory ran out"
    return AppExit(cause + (f": {said}" if said else ""), lines, _OF_SHELL + _KILLED, True)


def _of_crash(
    crash: Sequence[LogLine], app_id: str, pid: int | None, lines: tuple[str, ...]
) -> AppExit | None:
    if java := logs.java_crash(crash, app_id, pid):
        memory = "out of memory, " if "OutOfMemoryError" in java.exception else ""
        cause = f"the app was ended by an exception: {memory}{java.exception}"
        return AppExit(cause, lines + java.lines)
    if native := logs.native_crash(crash, app_id, pid):
        code = _OF_SHELL + native.number
        cause = f"the app was ended by {signal_of(code) or f'signal {native.number}'}"
        cause += f": {native.reason}" if native.reason else ""
        return AppExit(cause, lines + native.lines, code, False)
    return None


def _of_info(info: ExitInfo, lines: tuple[str, ...]) -> AppExit:
    told = f" ({info.description})" if info.description else ""
    if info.reason in _CLOSED:
        what = f"{_CLOSED[info.reason]}{told}"
        return AppExit(f"the app was {what}", lines, _OF_SHELL + _KILLED, False, outside=what)
    if info.reason == _ANR:
        return AppExit(
            f"the system ended the app, since it did not answer for seconds{told}", lines,
            out_of_memory=False,
        )  # fmt: skip
    if info.reason == _EXIT_SELF:
        return AppExit(
            f"the app ended itself with exit code {info.status}{told}", lines, info.status or 1
        )
    if info.reason in (_SIGNALED, _CRASH_NATIVE) and 0 < info.status < 65:
        code = _OF_SHELL + info.status
        # Where the system does not tell of its killing for memory, it has this reason.
        memory = None if info.status == _KILLED else False
        name = signal_of(code) or f"signal {info.status}"
        return AppExit(f"the app was ended by {name}{told}", lines, code, memory)
    if info.reason == _CRASH:
        return AppExit(f"the app was ended by an exception{told}", lines)
    reason = "it used too much of the device" if info.reason == _EXCESSIVE else "for its own reason"
    return AppExit(f"the system ended the app, {reason}{told}", lines, _OF_SHELL + _KILLED, False)


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
