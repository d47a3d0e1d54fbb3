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
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote

from etdeploy.devices.app_results import FILE, Option
from etdeploy.devices.base import Leftover
from etdeploy.devices.bundles import seconds_since_start
from etdeploy.devices.remote.run import end_all
from etdeploy.devices.remote.shell import DevicePaths, RemoteShell
from etdeploy.devices.shell import sections

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


_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+")


def check_app_id(app_id: str) -> str:
    """`app_id` itself when it is an application id, which needs no quotes in a shell."""
    if not _ID.fullmatch(app_id) or len(app_id) > 200:
        raise ValueError(f"{app_id!r} is not an application id")
    return app_id


def main_activity(app_id: str) -> str:
    """What `am start -n` starts."""
    return f"{app_id}/.MainActivity"


def external_files(app_id: str) -> str:
    """The folder of getExternalFilesDir(), which adb's user may read."""
    return f"/sdcard/Android/data/{app_id}/files"


def stop_command(app_id: str) -> str:
    """Ends the app; its data stay."""
    return f"am force-stop {app_id}"


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
    start = f"am start -W -S -n {main_activity(app_id)} {extras(run_id, options)}"
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
        # A zombie has no command line, and the number of a process may be used again.
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
    """`look` counts in `$away` how many times in a row the app was not in front.

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


_DOING = "looking for apps of earlier runs"


@dataclass(frozen=True)
class RunningApp:
    """An app that a run started and that still runs."""

    app_id: str
    leftover: Leftover


def end_apps(shell: RemoteShell) -> tuple[Leftover, ...]:
    """Ends the apps of earlier runs, and returns them.

    An app that its user started is not a leftover: a run notes the process that it started.
    """
    return end_all(shell, _find, "ending an app of an earlier run")


def _find(shell: RemoteShell) -> dict[Leftover, str]:
    found = parse_apps(shell.shell(apps_command(shell.place), _DOING).output)
    return {app.leftover: stop_command(app.app_id) for app in found}


def apps_command(place: DevicePaths) -> str:
    """Prints the apps that runs noted, each with what /proc has of its process."""
    return "\n".join(
        (
            "echo '#uptime'; cat /proc/uptime; n=0",
            f"for f in {quote(place.root)}/runs/*/{MARKER}; do",
            '  read -r id pid <"$f" || continue; [ "$pid" != 0 ] || continue',
            "  read -r stat </proc/$pid/stat || continue",
            '  n=$((n + 1)); echo "#a$n"; f=${f%/*}; echo "${f##*/}"',
            '  echo "$id $pid"; echo "$stat"',
            '  IFS= read -r -d "" name </proc/$pid/cmdline; echo "$name"',
            "done 2>/dev/null; true",
        )
    )


def parse_apps(output: str) -> tuple[RunningApp, ...]:
    """The running apps in the output of `apps_command`."""
    parts = sections(output)
    found = (
        _running(text, parts.get("uptime", ""))
        for name, text in parts.items()
        if re.fullmatch(r"a\d+", name)
    )
    return tuple(app for app in found if app)


def _running(text: str, uptime: str) -> RunningApp | None:
    lines = text.splitlines()
    marker = parse_marker(lines[1]) if len(lines) > 3 else None
    # The number may be another process's by now.
    if marker is None or lines[3] != marker[0]:
        return None
    try:
        seconds = seconds_since_start(lines[2], uptime)
    except ValueError:
        return None
    return RunningApp(marker[0], Leftover(pid=marker[1], run_id=lines[0], seconds=seconds))
