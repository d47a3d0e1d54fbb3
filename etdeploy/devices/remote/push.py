"""Copies a bundle to a remote device: only what is missing, verified, whole or not at all."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from etdeploy.core import console
from etdeploy.core.errors import DeviceError
from etdeploy.core.hashing import sha256_file
from etdeploy.core.progress import Progress
from etdeploy.devices.base import Bundle, BundleFile, PushReport
from etdeploy.devices.bundles import bundle_digest, by_content, check_bundle
from etdeploy.devices.remote import layout, store
from etdeploy.devices.remote.incoming import held_folder, sweep_command
from etdeploy.devices.remote.shell import RefusedError, RemoteShell

# Reading back a content of several GB takes a while on a slow device.
_HASH_S = 900.0


def push_bundle(shell: RemoteShell, bundle: Bundle, progress: Progress) -> PushReport:
    """Copies every file of the bundle that the device does not have.

    Raises:
        DeviceError: There is no room, the device went away, or a file arrived changed.
        Interrupted: The run was asked to stop.
    """
    started = time.monotonic()
    check_bundle(bundle)
    limit = store.limit_bytes()
    # First, so that the free space that is read includes what this removes.
    incoming = shell.place.incoming
    shell.require(
        f"mkdir -p {quote(incoming)} && {sweep_command(incoming)}", "checking what it has"
    )
    with held_folder(shell, incoming) as folder:
        push = _Push(shell, bundle, bundle_digest(bundle), progress, folder)
        survey, removed_bytes = push.make_room(limit)
        missing = push.missing(survey)
        push.check_room(missing, survey)
        verify_seconds = push.send(missing)
        if missing or not survey.is_laid_out(bundle):
            push.lay_out()
        shell.require(store.used_command(shell.place, folder, push.digest), "recording its use")
    return PushReport(
        pushed_files=len(missing),
        pushed_bytes=sum(f.size_bytes for f in missing),
        kept_files=len(by_content(bundle)) - len(missing),
        seconds=time.monotonic() - started,
        verify_seconds=verify_seconds,
        removed_bytes=removed_bytes,
    )


@dataclass(frozen=True)
class _Push:
    """The steps of one push; `folder` on the device is for this push alone."""

    shell: RemoteShell
    bundle: Bundle
    digest: str
    progress: Progress
    folder: str

    def make_room(self, limit: int | None) -> tuple[layout.Survey, int]:
        """Removes what was used longest ago; returns what is left, and bytes removed."""
        noting = store.note_command(self.bundle, self.folder)
        survey, uses = self._survey(f"{noting} || exit 1")
        gone = store.removal(survey, uses, self.bundle, self.digest, limit)
        if not gone.contents:
            return survey, 0
        self.progress(f"removing {console.size(gone.size_bytes)} of what was used longest ago")
        survey, _ = self._survey(store.removal_command(self.shell.place, gone))
        return survey, gone.size_bytes

    def _survey(self, before: str) -> tuple[layout.Survey, store.Uses]:
        survey = layout.survey_command(self.shell.place, self.bundle, self.digest)
        command = f"{before}\n{survey}\n{store.uses_command(self.shell.place)}"
        output = self.shell.require(command, "checking what it has")
        return layout.parse_survey(output), store.parse_uses(output)

    def missing(self, survey: layout.Survey) -> list[BundleFile]:
        """The contents to send; those with a changed stamp are verified on the device first."""
        contents = by_content(self.bundle)
        unsound = [f for f in contents if not survey.is_sound(f.sha256, f.executable)]
        doubtful = [f for f in unsound if f.sha256 in survey.stamps]
        if not doubtful:
            return unsound
        self.progress("verifying what the device has")
        command = layout.digest_command(self.shell.place, [f.sha256 for f in doubtful])
        good = layout.parse_digests(self.shell.require(command, "verifying what it has", _HASH_S))
        for file in doubtful:
            if file.sha256 in good:
                command = layout.stamp_command(
                    self.shell.place, file.sha256, file.executable, self.folder
                )
                self.shell.require(command, f"keeping {file.path}")
        return [f for f in unsound if f.sha256 not in good]

    def check_room(self, missing: list[BundleFile], survey: layout.Survey) -> None:
        needed = sum(f.size_bytes for f in missing)
        if survey.free_bytes is not None and needed > survey.free_bytes:
            raise self._no_room(needed, survey.free_bytes)

    def send(self, missing: list[BundleFile]) -> float:
        """Pushes contents one by one, so that what has arrived stays; returns seconds verifying."""
        total = sum(f.size_bytes for f in missing) or 1
        before = 0
        verify_seconds = 0.0
        for file in missing:
            verify_seconds += self._send_one(file, before, total)
            before += file.size_bytes
        return verify_seconds

    def lay_out(self) -> None:
        part = f"{self.folder}/bundle"
        command = layout.layout_command(self.shell.place, self.bundle, self.digest, part)
        self.shell.require(command, "laying out the bundle")

    def _send_one(self, file: BundleFile, before: int, total: int) -> float:
        part = f"{self.folder}/{file.sha256}"
        text = f"pushing {file.path}"

        def on_bytes(sent: int) -> None:
            self.progress(text, min(1.0, (before + sent) / total))

        try:
            try:
                self.shell.send(Path(file.source), part, text, on_bytes)
            except RefusedError as error:
                raise self._refused(file, str(error)) from error
            started = time.monotonic()
            self._verify(file, part)
            verify_seconds = time.monotonic() - started
            command = layout.keep_command(self.shell.place, part, file.sha256, file.executable)
            self.shell.require(command, f"keeping {file.path}")
            return verify_seconds
        except OSError as error:
            raise DeviceError(f"cannot read {file.source}: {error.strerror}") from error

    def _verify(self, file: BundleFile, part: str) -> None:
        doing = f"verifying {file.path}"
        self.progress(doing)
        result = self.shell.shell(layout.verify_command(part, file.sha256), doing, _HASH_S)
        if result.exit_code == layout.NO_SHA256SUM:
            arrived = self._read_back(part, doing)
        elif result.exit_code in (0, layout.CHANGED):
            arrived = result.output.split()[0]
        else:
            raise DeviceError(
                f"the device failed while {doing}: {result.output.strip()}", place=self.shell.name
            )
        if arrived != file.sha256:
            raise self._changed(file, arrived)

    def _read_back(self, part: str, doing: str) -> str:
        """The digest of a file on a device that has no sha256sum."""
        digest = hashlib.sha256()
        for piece in self.shell.content(part, doing):
            digest.update(piece)
        return digest.hexdigest()

    def _changed(self, file: BundleFile, arrived: str) -> DeviceError:
        if sha256_file(Path(file.source)) != file.sha256:
            return DeviceError(
                f"{file.source} is not the file that the bundle lists: it changed meanwhile",
                remedy="Run the same command again.",
            )
        return DeviceError(
            f"{file.path} arrived changed: its SHA-256 is {arrived[:12]}... there "
            f"and {file.sha256[:12]}... here; nothing of it was kept",
            place=self.shell.name,
            remedy=f"{self.shell.advice.damaged}, then run the same command again.",
        )

    def _refused(self, file: BundleFile, said: str) -> DeviceError:
        base = self.shell.place.base
        checking = self.shell.shell(f"df -k {quote(base)}", "checking its free space")
        free = layout.parse_df(checking.output)
        if "space" in said.lower() or (free is not None and free < file.size_bytes):
            return self._no_room(file.size_bytes, free, file.path)
        return DeviceError(
            f"the device cannot write {file.path}: {said}",
            place=self.shell.name,
            remedy=f"Is {base} writable there?\n{self.shell.advice.prefix} ls -ld {quote(base)}",
        )

    def _no_room(self, needed: int, free: int | None, path: str | None = None) -> DeviceError:
        room = "unknown" if free is None else console.size(free)
        what = path or "the bundle"
        return DeviceError(
            f"no room on the device: {what} needs {console.size(needed)} ({needed} bytes), and "
            f"{self.shell.place.base} has {room} free"
            + ("" if free is None else f" ({free} bytes)"),
            place=self.shell.name,
            remedy=f"Free some space, or remove what etdeploy keeps there:\n"
            f"etdeploy clean --device {quote(self.shell.name)}",
        )
