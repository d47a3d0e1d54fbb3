"""Runners of earlier runs that are still running on a remote device."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.devices.base import Leftover
from etdeploy.devices.leftovers import Process, run_of, seconds_since_start
from etdeploy.devices.remote.shell import RemoteShell
from etdeploy.devices.shell import sections

_DOING = "looking for runners of earlier runs"
_FOLDERS_COMMAND = "ls -l /proc/[0-9]*/cwd 2>/dev/null; true"
_END_S = 5.0
_POLL_S = 0.1


def end_leftovers(shell: RemoteShell) -> tuple[Leftover, ...]:
    """Ends them, and returns them.

    A run from another computer whose connection is still open is not a leftover.
    """
    found = _find(shell)
    for leftover in found:
        if is_watched(shell, leftover):
            raise in_use(shell, leftover)
    deadline = time.monotonic() + _END_S
    left = found
    while left:
        if time.monotonic() > deadline:
            raise immortal(shell, left[0])
        ending = "\n".join(_end_command(found.pid, _folder(shell, found)) for found in left)
        shell.shell(ending, "ending a runner of an earlier run")
        time.sleep(_POLL_S)
        left = _find(shell)
    return found


def is_watched(shell: RemoteShell, leftover: Leftover) -> bool:
    """Whether the connection that a run was started over is still open."""
    command = _is_watched_command(_folder(shell, leftover), leftover.run_id)
    return shell.shell(command, _DOING).ok


def _folder(shell: RemoteShell, leftover: Leftover) -> str:
    return shell.place.run(leftover.run_id)


def _find(shell: RemoteShell) -> tuple[Leftover, ...]:
    root = shell.place.root
    folders = parse_folders(shell.shell(_FOLDERS_COMMAND, _DOING).output, root)
    if not folders:
        return ()
    output = shell.shell(processes_command(folders), _DOING).output
    return parse_processes(output, folders, root)


def parse_folders(output: str, root: str) -> dict[int, str]:
    """The working folders of processes that run in a run's folder, by process."""
    links = re.findall(r"/proc/(\d+)/cwd -> (.*)$", output, re.MULTILINE)
    return {int(pid): folder for pid, folder in links if run_of(folder, root)}


def processes_command(pids: Mapping[int, str]) -> str:
    """Prints for each process what it was started from, and when."""
    lines = [
        f"echo '#p{pid}'; readlink /proc/{pid}/exe; cat /proc/{pid}/stat; "
        f"tr '\\0' '\\n' </proc/{pid}/cmdline"
        for pid in pids
    ]
    return "\n".join(["echo '#uptime'; cat /proc/uptime", *(f"( {x} ) 2>/dev/null" for x in lines)])


def parse_processes(output: str, folders: Mapping[int, str], root: str) -> tuple[Leftover, ...]:
    """The runners of etdeploy in the output of `processes_command`."""
    return tuple(_leftovers(sections(output), folders, root))


def _leftovers(
    parts: Mapping[str, str], folders: Mapping[int, str], root: str
) -> Iterator[Leftover]:
    for pid, folder in folders.items():
        lines = parts.get(f"p{pid}", "").splitlines()
        if len(lines) < 2:
            continue  # it ended meanwhile
        try:
            seconds = seconds_since_start(lines[1], parts.get("uptime", ""))
        except ValueError:
            continue
        if leftover := Process(pid, lines[0], lines[2:], folder, seconds).leftover(root):
            yield leftover


def _is_watched_command(folder: str, run_id: str) -> str:
    """Succeeds while the shell that started a run watches over its connection."""
    return f"read -r w <{quote(folder)}/.watch && grep -qF {quote(f'/{run_id}')} /proc/$w/cmdline"


def _end_command(pid: int, folder: str) -> str:
    """Ends a process if it is still the one that was found."""
    return f'case "$(readlink /proc/{pid}/cwd)/" in {quote(folder)}[/\\ ]*) kill -9 {pid};; esac'


def in_use(shell: RemoteShell, leftover: Leftover) -> DeviceError:
    """The error for a run of another computer."""
    return DeviceError(
        f"another run of etdeploy is active on the device: {leftover.run_id}, "
        f"process {leftover.pid}, for {leftover.duration}",
        place=shell.name,
        remedy="Wait until it has ended: two runs at once would disturb each other's times.",
    )


def immortal(shell: RemoteShell, leftover: Leftover) -> DeviceError:
    """The error for what cannot be ended."""
    return DeviceError(
        f"a runner of the earlier run {leftover.run_id} is still running on the device and cannot "
        f"be ended: process {leftover.pid}",
        place=shell.name,
        remedy=f"Restart the device:\n{shell.advice.restart}",
    )
