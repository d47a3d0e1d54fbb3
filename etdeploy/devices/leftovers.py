"""Which processes are etdeploy's runners, according to /proc on Linux; all pure.

Such a runner was started from a folder of bundles and works in the folder of a run. Both are
required, so that neither an editor with a bundle's file open nor a runner that somebody started
manually from elsewhere is mistaken for one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from etdeploy.devices.base import Leftover

# Of proc(5): the unit in which Linux gives times to programs, on every processor.
_TICKS_PER_S = 100
_START_TIME = 22
_DELETED = " (deleted)"


@dataclass(frozen=True)
class Process:
    """A process as /proc has it.

    Attributes:
        pid: Its number.
        executable: Where `exe` leads, links resolved.
        arguments: Of its command line.
        folder: Where `cwd` leads.
        seconds: How long it has run.
    """

    pid: int
    executable: str
    arguments: Sequence[str]
    folder: str
    seconds: float

    def leftover(self, root: str) -> Leftover | None:
        """The leftover that it is; None for anything but etdeploy's runner."""
        run_id = run_of(self.folder, root)
        if run_id is None or not self._is_of(root):
            return None
        return Leftover(pid=self.pid, run_id=run_id, seconds=self.seconds)

    def _is_of(self, root: str) -> bool:
        if _is_inside(self.executable, root):
            return True
        emulated = PurePosixPath(self.executable).name.startswith("qemu-")
        return emulated and any(_is_inside(word, root) for word in self.arguments)


def run_of(folder: str, root: str) -> str | None:
    """The run whose folder this is, or that contains it; the folder may already be removed."""
    runs = f"{root}/runs/"
    if not folder.startswith(runs):
        return None
    return folder.removeprefix(runs).removesuffix(_DELETED).partition("/")[0] or None


def seconds_since_start(stat: str, uptime: str) -> float:
    """How long a process has run."""
    fields = stat.rpartition(")")[2].split()
    # What follows the name is the third field.
    if len(fields) <= _START_TIME - 3 or not re.match(r"\d", uptime):
        raise ValueError(f"{stat!r} is not a /proc/PID/stat")
    return max(0.0, float(uptime.split()[0]) - int(fields[_START_TIME - 3]) / _TICKS_PER_S)


def _is_inside(path: str, root: str) -> bool:
    return path.startswith(f"{root}/")
