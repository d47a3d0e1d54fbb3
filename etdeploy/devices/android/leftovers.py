"""Runners of earlier runs that are still running on an Android device."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.devices.android.facts import sections
from etdeploy.devices.android.layout import ROOT, run_folder
from etdeploy.devices.android.link import AndroidLink
from etdeploy.devices.base import Leftover
from etdeploy.devices.leftovers import Process, run_of, seconds_since_start

_DOING = "looking for runners of earlier runs"
_FOLDERS_COMMAND = "ls -l /proc/[0-9]*/cwd 2>/dev/null; true"
_END_S = 5.0
_POLL_S = 0.1


def end_leftovers(link: AndroidLink) -> tuple[Leftover, ...]:
    """Ends them, and returns them.

    A run from another computer whose connection is still open is not a leftover.

    Raises:
        DeviceError: Such a run is active, a leftover cannot be ended, or the device went away.
    """
    found = _find(link)
    for leftover in found:
        if link.shell(_is_watched_command(leftover.run_id), _DOING).ok:
            raise _in_use(link, leftover)
    deadline = time.monotonic() + _END_S
    left = found
    while left:
        if time.monotonic() > deadline:
            raise _immortal(link, left[0])
        link.shell("\n".join(map(_end_command, left)), "ending a runner of an earlier run")
        time.sleep(_POLL_S)
        left = _find(link)
    return found


def _find(link: AndroidLink) -> tuple[Leftover, ...]:
    folders = parse_folders(link.shell(_FOLDERS_COMMAND, _DOING).output)
    if not folders:
        return ()
    return parse_processes(link.shell(processes_command(folders), _DOING).output, folders)


def parse_folders(output: str) -> dict[int, str]:
    """The working folders of processes that run in a run's folder, by process."""
    links = re.findall(r"/proc/(\d+)/cwd -> (.*)$", output, re.MULTILINE)
    return {int(pid): folder for pid, folder in links if run_of(folder, ROOT)}


def processes_command(pids: Mapping[int, str]) -> str:
    """Prints for each process what it was started from, and when."""
    lines = [
        f"echo '#p{pid}'; readlink /proc/{pid}/exe; cat /proc/{pid}/stat; "
        f"tr '\\0' '\\n' </proc/{pid}/cmdline"
        for pid in pids
    ]
    return "\n".join(["echo '#uptime'; cat /proc/uptime", *(f"( {x} ) 2>/dev/null" for x in lines)])


def parse_processes(output: str, folders: Mapping[int, str]) -> tuple[Leftover, ...]:
    """The runners of etdeploy in the output of `processes_command`."""
    return tuple(_leftovers(sections(output), folders))


def _leftovers(parts: Mapping[str, str], folders: Mapping[int, str]) -> Iterator[Leftover]:
    for pid, folder in folders.items():
        lines = parts.get(f"p{pid}", "").splitlines()
        if len(lines) < 2:
            continue  # it ended meanwhile
        try:
            seconds = seconds_since_start(lines[1], parts.get("uptime", ""))
        except ValueError:
            continue
        if leftover := Process(pid, lines[0], lines[2:], folder, seconds).leftover(ROOT):
            yield leftover


def _is_watched_command(run_id: str) -> str:
    """Succeeds while the shell that started a run watches over its connection."""
    folder = run_folder(run_id)
    return f"read -r w <{quote(folder)}/.watch && grep -q {quote(folder)} /proc/$w/cmdline"


def _end_command(leftover: Leftover) -> str:
    """Ends a process if it is still the one that was found."""
    pid, folder = leftover.pid, run_folder(leftover.run_id)
    return f'case "$(readlink /proc/{pid}/cwd)/" in {quote(folder)}[/\\ ]*) kill -9 {pid};; esac'


def _in_use(link: AndroidLink, leftover: Leftover) -> DeviceError:
    return DeviceError(
        f"another run of etdeploy is active on the device: {leftover.run_id}, "
        f"process {leftover.pid}, for {leftover.duration}",
        place=link.name,
        remedy="Wait until it has ended: two runs at once would disturb each other's times.",
    )


def _immortal(link: AndroidLink, leftover: Leftover) -> DeviceError:
    return DeviceError(
        f"a runner of the earlier run {leftover.run_id} is still running on the device and cannot "
        f"be ended: process {leftover.pid}",
        place=link.name,
        remedy=f"Restart the device:\nadb -s {quote(link.serial)} reboot",
    )
