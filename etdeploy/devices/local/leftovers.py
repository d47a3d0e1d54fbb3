"""Runners of earlier runs that are still running on this machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import read_text
from etdeploy.devices.base import Leftover
from etdeploy.devices.leftovers import Process, run_of, seconds_since_start

_PROC = Path("/proc")
_END_S = 5.0
_POLL_S = 0.02


def end_leftovers(root: Path) -> tuple[Leftover, ...]:
    """Ends them, and returns them; none where there is no /proc.

    Args:
        root: The folder of all bundles and runs; the caller holds the device's lock, so none of
            its runs is active.

    Raises:
        DeviceError: One cannot be ended.
    """
    root = root.resolve()
    ended: list[Leftover] = []
    # A process may start another one between the look and its end.
    while found := tuple(find_leftovers(root)):
        for leftover in found:
            _end(leftover, root)
        ended += found
    return tuple(ended)


def find_leftovers(root: Path, proc: Path = _PROC) -> Iterator[Leftover]:
    """The runners of etdeploy that are running now."""
    uptime = read_text(proc / "uptime")
    for folder in proc.glob("[0-9]*"):
        try:
            working = str((folder / "cwd").readlink())
            if run_of(working, str(root)) is None:
                continue
            process = Process(
                pid=int(folder.name),
                executable=str((folder / "exe").readlink()),
                arguments=read_text(folder / "cmdline").split("\0"),
                folder=working,
                seconds=seconds_since_start(read_text(folder / "stat"), uptime),
            )
        except (OSError, ValueError):
            continue  # it ended meanwhile, or is another user's
        if leftover := process.leftover(str(root)):
            yield leftover


def _end(leftover: Leftover, root: Path) -> None:
    deadline = time.monotonic() + _END_S
    # Checked again each time: the number may have become another process's.
    while any(found.pid == leftover.pid for found in find_leftovers(root)):
        if time.monotonic() > deadline:
            raise DeviceError(
                f"a runner of the earlier run {leftover.run_id} is still running and cannot be "
                f"ended: process {leftover.pid}",
                place=str(root),
                remedy=f"kill -9 {leftover.pid}",
            )
        try:
            os.kill(leftover.pid, signal.SIGKILL)
        except OSError:
            continue
        finally:
            time.sleep(_POLL_S)
