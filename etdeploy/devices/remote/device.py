"""What every device with a POSIX shell at its other end does the same way."""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from shlex import quote

from etdeploy.core import console
from etdeploy.core.errors import DeviceError
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import Bundle, BundleFile, Leftover, PushReport, RunFolder
from etdeploy.devices.bundles import bundle_digest, by_content, check_bundle
from etdeploy.devices.remote import layout, store
from etdeploy.devices.remote.layout import StateSampling
from etdeploy.devices.remote.run import end_leftovers, open_run_folder
from etdeploy.devices.remote.sending import (
    Sending,
    Sent,
    is_large,
    no_room,
    send_large,
    send_whole,
    unreadable,
    write_error,
)
from etdeploy.devices.remote.shell import (
    HASH_S,
    DevicePaths,
    DeviceWriteError,
    PushScript,
    RemoteShell,
    ShellSession,
    check_output,
    loop_command,
)
from etdeploy.devices.remote.store import release_command

_REMOVE_S = 120.0


class RemoteDevice:
    """What devices with a RemoteShell share: push, runs, leftovers and cleanup."""

    def __init__(self, shell: RemoteShell, sampling: StateSampling | None = None) -> None:
        self._shell, self._sampling = shell, sampling or StateSampling()

    @property
    def name(self) -> str:
        return self._shell.name

    def push(self, bundle: Bundle, progress: Progress = silent) -> PushReport:
        return push_bundle(self._shell, bundle, progress)

    def end_leftovers(self) -> tuple[Leftover, ...]:
        return end_leftovers(self._shell)

    def open_run(self, bundle: Bundle, run_id: str) -> AbstractContextManager[RunFolder]:
        return open_run_folder(self._shell, bundle, run_id, self._sampling)

    def clean(self) -> dict[str, int]:
        command = layout.clean_command(self._shell.place)
        return layout.parse_sizes(
            check_output(self._shell, command, "removing what etdeploy left", _REMOVE_S)
        )

    def close(self) -> None:
        self._shell.close()


_LOOKING = "checking what it has"
_LAYING_OUT = "laying out the bundle"


def push_bundle(shell: RemoteShell, bundle: Bundle, progress: Progress) -> PushReport:
    """Copies every file of the bundle that the device does not have."""
    started = time.monotonic()
    check_bundle(bundle)
    limit = store.limit_bytes()
    with open_session(shell) as session:
        push = _Push(shell, session, bundle, bundle_digest(bundle), progress)
        survey, removed_bytes = push.make_room(limit)
        missing = push.missing(survey)
        push.check_room(missing, survey)
        sent = push.send(missing, survey)
        push.begin_finish(bool(missing) or not survey.is_laid_out(bundle))
        verify_seconds = sent.verify_seconds + push.finish_seconds()
    return PushReport(
        pushed_files=len(missing),
        pushed_bytes=sent.sent_bytes,
        kept_files=len(by_content(bundle)) - len(missing),
        seconds=time.monotonic() - started,
        verify_seconds=verify_seconds,
        removed_bytes=removed_bytes,
        resumed_bytes=sent.resumed_bytes,
    )


@dataclass
class _Push:
    """The steps of one push."""

    shell: RemoteShell
    session: ShellSession
    bundle: Bundle
    digest: str
    progress: Progress
    verifications: list[PushScript] = field(default_factory=list)
    is_prepared: bool = False

    def make_room(self, limit: int | None) -> tuple[layout.StoreState, int]:
        """Removes what was used longest ago; returns what is left, and bytes removed."""
        noting = store.note_command(self.bundle, self.session.folder)
        survey = self._survey(f"{noting} || exit 1")
        if store.excess_bytes(survey, self.bundle, limit) <= 0:
            return survey, 0
        command = store.uses_command(self.shell.place)
        uses = store.parse_uses(self.session.check_output(command, _LOOKING))
        gone = store.removal(survey, uses, self.bundle, self.digest, limit)
        if not gone.size_bytes:
            return survey, 0
        self.progress(f"removing {console.size(gone.size_bytes)} of what was used longest ago")
        return self._survey(store.removal_command(self.shell.place, gone)), gone.size_bytes

    def _survey(self, before: str) -> layout.StoreState:
        survey = layout.survey_command(self.shell.place, self.bundle, self.digest)
        return layout.parse_survey(self.session.check_output(f"{before}\n{survey}", _LOOKING))

    def missing(self, survey: layout.StoreState) -> list[BundleFile]:
        """The contents to send; those with a changed stamp are verified on the device first."""
        contents = by_content(self.bundle)
        unsound = [f for f in contents if not survey.is_sound(f.sha256, f.executable)]
        doubtful = [f for f in unsound if f.sha256 in survey.stamps]
        if not doubtful:
            return unsound
        self.progress("verifying what the device has")
        command = layout.digest_command(self.shell.place, [f.sha256 for f in doubtful])
        good = layout.parse_digests(
            self.session.check_output(command, "verifying what it has", HASH_S)
        )
        for file in doubtful:
            if file.sha256 in good:
                command = layout.stamp_command(self.shell.place, file.sha256, file.executable)
                self.session.check_output(command, f"keeping {file.path}")
        return [f for f in unsound if f.sha256 not in good]

    def check_room(self, missing: list[BundleFile], survey: layout.StoreState) -> None:
        needed = store.needed_bytes(missing, survey)
        if survey.free_bytes is not None and needed > survey.free_bytes:
            raise no_room(self.shell, needed, survey.free_bytes, "the bundle")

    def send(self, missing: list[BundleFile], survey: layout.StoreState) -> Sent:
        """Pushes contents one by one, so that what has arrived stays."""
        total = sum(f.size_bytes for f in missing) or 1
        needed = store.needed_bytes(missing, survey)
        # A part lies beside its file until it has been written into it.
        may_resume = survey.free_bytes is None or needed + store.PART_BYTES <= survey.free_bytes
        before = 0
        sent = Sent()
        for file in missing:
            fraction = partial(_fraction, before, total)
            sending = Sending(
                self.shell, self.session, file, self.progress, fraction, survey.can_hash,
                self.verifications, self.session.last,
            )  # fmt: skip
            if file is missing[-1]:
                self._prepare_early(file)
            sent += self._send_one(sending, file.sha256 in survey.partial, may_resume)
            before += file.size_bytes
        return sent

    def _send_one(self, sending: Sending, was_begun: bool, may_resume: bool) -> Sent:
        file = sending.file
        try:
            if is_large(file):
                return send_large(sending, was_begun, may_resume)
            return send_whole(sending)
        except DeviceWriteError as error:
            raise write_error(self.shell, file, str(error)) from error
        except OSError as error:
            raise unreadable(file, error) from error

    def _prepare_early(self, last: BundleFile) -> None:
        """Has the bundle's folder made while the last file travels, if that takes long enough."""
        # A program's link needs its content, and everything else is in the store by then.
        if is_large(last) and not last.executable:
            self._begin_preparing()
            self.is_prepared = True

    def _begin_preparing(self) -> None:
        command = layout.prepare_command(self.shell.place, self.bundle, self._laid_out)
        self.session.begin_checked(command, _LAYING_OUT, after_success=True)

    def begin_finish(self, to_lay_out: bool) -> None:
        """Makes the bundle's folder, where there is none as it should be, and records its use."""
        place, folder = self.shell.place, self.session.folder
        if to_lay_out:
            if not self.is_prepared:
                self._begin_preparing()
            command = layout.place_command(place, self.digest, self._laid_out)
            self.session.begin_checked(command, _LAYING_OUT, after_success=True)
        command = store.used_command(place, folder, self.digest)
        self.session.begin_checked(command, "recording its use", after_success=True)

    def finish_seconds(self) -> float:
        """Waits for all of it; returns for how many seconds the verification was waited for."""
        started = time.monotonic()
        self.session.wait()
        return max(0.0, max((x.ended_s for x in self.verifications), default=0.0) - started)

    @property
    def _laid_out(self) -> str:
        """Where the bundle's folder is made."""
        return f"{self.session.folder}/bundle"


def _fraction(before: int, total: int, there_bytes: int) -> float:
    return min(1.0, (before + there_bytes) / total)


def sweep_command(place: DevicePaths) -> str:
    """Removes what finished pushes left, and anything that no push of this layout made.

    Spares `$own`, the folder of this push.
    """
    return (
        f"cd {quote(place.incoming)} || exit 1\n"
        'for d in *; do [ -e "$d" ] && [ "$d" != "$own" ] || continue\n'
        # A process with this number that has the token in its command is the folder's holder.
        '  p=${d##*.}; if ! grep -q "${d%.*}" /proc/$p/cmdline 2>/dev/null; then\n'
        f"""{release_command(place, '"$d"')}\n"""
        "  fi\n"
        "done"
    )


def hold_command(place: DevicePaths, token: str) -> str:
    """Makes a folder, prints its name, and runs scripts; releases it when nobody listens."""
    root = quote(place.root)
    return "\n".join(
        (
            # One tool makes all: to start one takes some ms on a phone, the shell's tests nothing.
            f"own={token}.$$; set -- {root}/incoming/$own",
            f"for d in {' '.join(layout.FOLDERS)}",
            f'do [ -d {root}/$d ] || set -- "$@" {root}/$d; done; mkdir -p "$@" || exit 1',
            # An adbd that ends tells its shells so by HUP, and PIPE comes when nobody listens. What
            # was begun is finished nevertheless, and the folder released.
            "trap '' HUP PIPE",
            sweep_command(place),
            "echo $own",
            loop_command(token),
            release_command(place, "$own"),
        )
    )


@contextlib.contextmanager
def open_session(shell: RemoteShell) -> Iterator[ShellSession]:
    """A shell with a new folder for this push alone; the folder is released when the block ends."""
    token = secrets.token_hex(8)
    activity = "checking what it has"
    with shell.persistent_shell(hold_command(shell.place, token), activity) as holder:
        # Before that, it removes what others left.
        answer = holder.read_reply(activity, HASH_S)
        if not re.fullmatch(rf"{token}\.\d+", answer):
            raise DeviceError(f"the device failed while {activity}: {answer}", place=shell.name)
        folder = f"{shell.place.incoming}/{answer}"
        try:
            yield ShellSession(shell, holder, folder, token)
        except BaseException:
            # The holder does so too, a moment later, unless the device ended it.
            shell.best_effort_cleanup(release_command(shell.place, quote(folder)))
            raise
