"""Apps that earlier runs started, and that are still running."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from shlex import quote

from etdeploy.devices.android.apps.names import stop_command
from etdeploy.devices.android.apps.watch import MARKER, parse_marker
from etdeploy.devices.base import Leftover
from etdeploy.devices.leftovers import seconds_since_start
from etdeploy.devices.remote import leftovers
from etdeploy.devices.remote.shell import Place, RemoteShell
from etdeploy.devices.shell import sections

_DOING = "looking for apps of earlier runs"
_END_S = 5.0
_POLL_S = 0.2


@dataclass(frozen=True)
class RunningApp:
    """An app that a run started and that still runs."""

    app_id: str
    leftover: Leftover


def end_apps(shell: RemoteShell) -> tuple[Leftover, ...]:
    """Ends them, and returns them.

    An app that its user started is no leftover: a run notes the process that it started.

    Raises:
        DeviceError: Such a run is active, an app cannot be ended, or the device went away.
    """
    found = _find(shell)
    for app in found:
        if leftovers.is_watched(shell, app.leftover):
            raise leftovers.in_use(shell, app.leftover)
    deadline = time.monotonic() + _END_S
    left = found
    while left:
        if time.monotonic() > deadline:
            raise leftovers.immortal(shell, left[0].leftover)
        stops = "\n".join(stop_command(app.app_id) for app in left)
        shell.shell(stops, "ending an app of an earlier run")
        time.sleep(_POLL_S)
        left = _find(shell)
    return tuple(app.leftover for app in found)


def _find(shell: RemoteShell) -> tuple[RunningApp, ...]:
    return parse_apps(shell.shell(apps_command(shell.place), _DOING).output)


def apps_command(place: Place) -> str:
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
