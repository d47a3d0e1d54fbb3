"""Copies a bundle to a remote device: only what is missing, verified, whole or not at all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from etdeploy.core import console
from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress
from etdeploy.devices.base import Bundle, BundleFile, PushReport
from etdeploy.devices.bundles import bundle_digest, by_content, check_bundle
from etdeploy.devices.remote import errors, layout, parts, store
from etdeploy.devices.remote.incoming import held_folder, sweep_command
from etdeploy.devices.remote.large import is_large, send_large
from etdeploy.devices.remote.sending import HASH_S, Sending, Sent, send_whole
from etdeploy.devices.remote.shell import RefusedError, RemoteShell


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
    shell.require(sweep_command(shell.place), "checking what it has")
    with held_folder(shell) as folder:
        push = _Push(shell, bundle, bundle_digest(bundle), progress, folder)
        survey, removed_bytes = push.make_room(limit)
        missing = push.missing(survey)
        push.check_room(missing, survey)
        sent = push.send(missing, survey)
        push.finish(to_lay_out=bool(missing) or not survey.is_laid_out(bundle))
    return PushReport(
        pushed_files=len(missing),
        pushed_bytes=sent.sent_bytes,
        kept_files=len(by_content(bundle)) - len(missing),
        seconds=time.monotonic() - started,
        verify_seconds=sent.verify_seconds,
        removed_bytes=removed_bytes,
        resumed_bytes=sent.resumed_bytes,
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
        if not gone.size_bytes:
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
        good = layout.parse_digests(self.shell.require(command, "verifying what it has", HASH_S))
        for file in doubtful:
            if file.sha256 in good:
                command = layout.stamp_command(
                    self.shell.place, file.sha256, file.executable, self.folder
                )
                self.shell.require(command, f"keeping {file.path}")
        return [f for f in unsound if f.sha256 not in good]

    def check_room(self, missing: list[BundleFile], survey: layout.Survey) -> None:
        needed = store.needed_bytes(missing, survey)
        if survey.free_bytes is not None and needed > survey.free_bytes:
            raise errors.no_room(self.shell, needed, survey.free_bytes)

    def send(self, missing: list[BundleFile], survey: layout.Survey) -> Sent:
        """Pushes contents one by one, so that what has arrived stays."""
        total = sum(f.size_bytes for f in missing) or 1
        needed = store.needed_bytes(missing, survey)
        # A part lies beside its file until it has been written into it.
        may_resume = survey.free_bytes is None or needed + parts.PART_BYTES <= survey.free_bytes
        before = 0
        sent = Sent()
        for file in missing:
            fraction = partial(_fraction, before, total)
            sending = Sending(self.shell, file, self.folder, self.progress, fraction)
            sent += self._send_one(sending, file.sha256 in survey.partial, may_resume)
            before += file.size_bytes
        return sent

    def _send_one(self, sending: Sending, was_begun: bool, may_resume: bool) -> Sent:
        file = sending.file
        try:
            if is_large(file):
                return send_large(sending, was_begun, may_resume)
            return send_whole(sending)
        except RefusedError as error:
            raise errors.refused(self.shell, file, str(error)) from error
        except OSError as error:
            raise DeviceError(f"cannot read {file.source}: {error.strerror}") from error

    def finish(self, *, to_lay_out: bool) -> None:
        """Makes the bundle's folder, where there is none as it should be, and records its use."""
        place, part = self.shell.place, f"{self.folder}/bundle"
        command, doing = store.used_command(place, self.folder, self.digest), "recording its use"
        if to_lay_out:
            laying_out = layout.layout_command(place, self.bundle, self.digest, part)
            command, doing = f"( {laying_out}\n) || exit 1\n{command}", "laying out the bundle"
        self.shell.require(command, doing)


def _fraction(before: int, total: int, there_bytes: int) -> float:
    return min(1.0, (before + there_bytes) / total)
