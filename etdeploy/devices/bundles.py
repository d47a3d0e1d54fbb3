"""Bundles, run folders and leftover runners, alike for every kind of device; all pure.

A leftover was started from a folder of bundles and works in the folder of a run. Both are required,
so that neither an editor with a bundle's file open nor a runner that somebody started by hand from
elsewhere is mistaken for one.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from etdeploy.core.hashing import digest_json
from etdeploy.devices.base import Bundle, BundleFile, Leftover


def bundle_digest(bundle: Bundle) -> str:
    """Names the bundle's folder: the same files at the same paths give the same name."""
    return digest_json(sorted((f.path, f.sha256, f.executable) for f in bundle.files))


def by_content(bundle: Bundle) -> list[BundleFile]:
    """One file for each content; executable when any of its files is."""
    contents: dict[str, BundleFile] = {}
    for file in bundle.files:
        known = contents.get(file.sha256)
        if known is None or (file.executable and not known.executable):
            contents[file.sha256] = file
    return list(contents.values())


def check_bundle(bundle: Bundle) -> None:
    """Raises unless every file of the bundle stays in its folder."""
    for name in () if bundle.app else bundle.process.environment:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} cannot name a variable")
    for file in bundle.files:
        check_relative(file.path)
        if not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
            raise ValueError(f"{file.path}: {file.sha256!r} is not a SHA-256")
    paths = [file.path for file in bundle.files]
    if len(set(paths)) != len(paths):
        raise ValueError(f"a path occurs twice in the bundle: {sorted(paths)}")


def check_relative(path: str) -> str:
    """`path` itself when it stays below the folder that it is relative to."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(f"{path!r} is not a path inside a folder")
    return path


def check_run_id(run_id: str) -> str:
    """`run_id` itself when it can name a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", run_id):
        raise ValueError(f"{run_id!r} cannot name a folder")
    return run_id


def command_line(
    bundle: Bundle, arguments: Sequence[str], bundle_folder: str, run_folder: str
) -> list[str]:
    """The words of the bundle's process with its arguments, as the device is to run them."""
    first, *rest = (
        _filled(word, bundle_folder, run_folder) for word in (*bundle.process.argv, *arguments)
    )
    return [posixpath.join(bundle_folder, first), *rest]


def environment(bundle: Bundle, bundle_folder: str, run_folder: str) -> dict[str, str]:
    """The variables for the bundle's process."""
    return {
        name: _filled(value, bundle_folder, run_folder)
        for name, value in bundle.process.environment.items()
    }


def _filled(text: str, bundle_folder: str, run_folder: str) -> str:
    return text.replace("{bundle}", bundle_folder).replace("{run}", run_folder)


# Of proc(5): the unit in which Linux gives times to programs, on every processor.
_TICKS_PER_S = 100
_START_TIME = 22
_DELETED = " (deleted)"


@dataclass(frozen=True)
class Process:
    """A process as /proc has it."""

    pid: int
    executable: str
    arguments: Sequence[str]
    folder: str
    seconds: float

    def leftover(self, root: str) -> Leftover | None:
        """The leftover that it is; None for anything but etdeploy's runner."""
        run_id = find_run_id(self.folder, root)
        if run_id is None or not self._is_of(root):
            return None
        return Leftover(pid=self.pid, run_id=run_id, seconds=self.seconds)

    def _is_of(self, root: str) -> bool:
        if _is_inside(self.executable, root):
            return True
        emulated = PurePosixPath(self.executable).name.startswith("qemu-")
        return emulated and any(_is_inside(word, root) for word in self.arguments)


def find_run_id(folder: str, root: str) -> str | None:
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
