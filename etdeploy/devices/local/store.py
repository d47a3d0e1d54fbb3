"""Bundles laid out on this machine: every content once, a folder of hard links per bundle.

    store/SHA256   stamps/SHA256   DIGEST/path...   runs/RUN_ID/

A stamp holds size, dates and inode of a content that was verified; while they are the same it is
not read again.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.core.files.basic import (
    annotate_oserror,
    claim,
    find_disk_full,
    is_abandoned,
    new_folder,
    read_text,
    remove_tree,
    write_atomic,
)
from etdeploy.core.hashing import sha256_read, stat_signature
from etdeploy.core.values import Progress
from etdeploy.devices.base import Bundle, BundleFile, Leftover, PushReport
from etdeploy.devices.bundles import (
    Process,
    bundle_digest,
    by_content,
    check_bundle,
    find_run_id,
    seconds_since_start,
)


class LocalStore:
    """The folder of all bundles and runs on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def bundle_folder(self, bundle: Bundle) -> Path:
        """Where the bundle's files are after a push."""
        return self.root / bundle_digest(bundle)

    def run_folder(self, run_id: str) -> Path:
        """Where a run works."""
        return self.root / "runs" / run_id

    def push(self, bundle: Bundle, progress: Progress) -> PushReport:
        """Copies and verifies what is missing, and lays out the bundle's folder."""
        started = time.monotonic()
        check_bundle(bundle)
        self._remove_stale_runs()
        missing = [f for f in by_content(bundle) if not self._is_sound(f)]
        size_bytes = sum(f.size_bytes for f in missing)
        try:
            for number, file in enumerate(missing):
                progress(f"copying {file.path}", number / len(missing))
                self._copy(file)
            self._lay_out(bundle)
        except OSError as error:
            if find_disk_full(error):  # the cache's disk, not a device's
                raise
            raise self._not_copied(error, size_bytes) from error
        kept = len(by_content(bundle)) - len(missing)
        return PushReport(len(missing), size_bytes, kept, time.monotonic() - started)

    def _not_copied(self, error: OSError, size_bytes: int) -> DeviceError:
        made = next(folder for folder in (self.root, *self.root.parents) if folder.is_dir())
        folder = quote(str(made))
        return DeviceError(
            f"cannot copy the bundle: {error.strerror or error}",
            place=str(error.filename or self.root),
            remedy=f"{size_bytes} bytes have to be copied. Is there room, and may you write "
            "there?\n"
            f"df -h {folder} && ls -ld {folder}",
        )

    def sizes(self) -> dict[str, int]:
        """Bytes of the contents and of what runs left."""
        parts = {"store": self.root / "store", "runs": self.root / "runs"}
        return {
            name: sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file())
            for name, folder in parts.items()
        }

    def _remove_stale_runs(self) -> None:
        """Removes what killed runs left."""
        for folder in (self.root / "runs").glob("*"):
            if is_abandoned(folder):
                remove_tree(folder)

    def _content(self, file: BundleFile) -> Path:
        return self.root / "store" / file.sha256

    def _is_sound(self, file: BundleFile) -> bool:
        content = self._content(file)
        try:
            before = stat_signature(content)
            if self._known_stamp(file) == list(before):
                return True
            if sha256_read(content) != file.sha256:
                return False
        except OSError:
            return False
        self._note(file)
        return True

    def _copy(self, file: BundleFile) -> None:
        content = self._content(file)
        content.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".new.", dir=content.parent)
        claim(handle)
        part = Path(name)
        try:
            with annotate_oserror(part), os.fdopen(handle, "wb", closefd=False) as stream:
                copied = sha256_read(Path(file.source), stream.write)
            if copied != file.sha256:
                raise DeviceError(
                    f"{file.source} is not the file that the bundle lists: it changed meanwhile",
                    remedy="Run the same command again.",
                )
            part.replace(content)
        finally:
            part.unlink(missing_ok=True)
            os.close(handle)

    def _lay_out(self, bundle: Bundle) -> None:
        folder = self.bundle_folder(bundle)
        if not all(_same_file(folder / f.path, self._content(f)) for f in bundle.files):
            with new_folder(folder) as work:
                for file in bundle.files:
                    (work / file.path).parent.mkdir(parents=True, exist_ok=True)
                    _link(self._content(file), work / file.path)
        # The date of its last use, by which the cache makes room.
        os.utime(folder)
        for file in by_content(bundle):
            _set_mode(self._content(file), file.executable)
            # A new link or mode changes the dates of a content.
            self._note(file)

    def _known_stamp(self, file: BundleFile) -> object:
        try:
            return json.loads((self.root / "stamps" / file.sha256).read_bytes())
        except (OSError, ValueError):
            return None

    def _note(self, file: BundleFile) -> None:
        value = list(stat_signature(self._content(file)))
        if self._known_stamp(file) != value:
            write_atomic(self.root / "stamps" / file.sha256, json.dumps(value))


def _set_mode(path: Path, executable: bool) -> None:
    mode = path.stat().st_mode & 0o777
    wanted = 0o755 if executable else mode | 0o644
    if mode != wanted:
        path.chmod(wanted)


def _same_file(path: Path, content: Path) -> bool:
    try:
        return path.samefile(content)
    except OSError:
        return False


def _link(content: Path, path: Path) -> None:
    try:
        path.hardlink_to(content)
    except OSError:
        # Some file systems have no hard links.
        path.symlink_to(content)


_PROC = Path("/proc")
_END_S = 5.0
_POLL_S = 0.02


def end_leftovers(root: Path) -> tuple[Leftover, ...]:
    """Ends them, and returns them; none where there is no /proc."""
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
            if find_run_id(working, str(root)) is None:
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
