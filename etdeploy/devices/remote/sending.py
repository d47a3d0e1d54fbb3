"""Sends one file to a remote device, has it verified there and moved into the store."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from etdeploy.core import console
from etdeploy.core.diagnostics import FailurePattern, FailureTable
from etdeploy.core.errors import DeviceError
from etdeploy.core.hashing import sha256_file, sha256_parts
from etdeploy.core.values import Progress
from etdeploy.devices.base import BundleFile
from etdeploy.devices.remote import layout, store
from etdeploy.devices.remote.shell import (
    HASH_S,
    DeviceWriteError,
    PushScript,
    RemoteShell,
    ShellSession,
)
from etdeploy.devices.remote.store import Part
from etdeploy.devices.shell import ShellResult

# When so much of a file has gone, those before it are kept whatever happens; to wait for that any
# earlier would leave the link idle.
_KEPT_BYTES = 1 << 20


@dataclass(frozen=True)
class Sent:
    """What the transfer of one or more files came to."""

    sent_bytes: int = 0
    resumed_bytes: int = 0
    verify_seconds: float = 0.0

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            self.sent_bytes + other.sent_bytes,
            self.resumed_bytes + other.resumed_bytes,
            self.verify_seconds + other.verify_seconds,
        )


PUSH_FAILURES = FailureTable(
    "Pushing files to a device",
    DeviceError.exit_code,
    (
        FailurePattern(
            r"(?i)space",
            "no room on the device: {file} needs {needed}, and {folder} has {free} free",
            "Free some space, or remove what etdeploy keeps there:\n"
            "etdeploy clean --device {device}",
        ),
        FailurePattern(
            r"^changed (?P<there>\w+)$",
            "{file} arrived changed: its SHA-256 is {there}... there and {here}... here; "
            "nothing of it was kept",
            "{try}, then run the same command again.",
            formats={"there": lambda digest: digest[:12]},
        ),
        FailurePattern(
            r"^parts changed$",
            "{file} arrived changed; the next push sends its damaged parts again",
            "{try}, then run the same command again.",
        ),
        FailurePattern(
            r"",
            "the device cannot write {file}: {error}",
            "Is {folder} writable there?\n{shell} ls -ld {folder}",
        ),
    ),
)


def push_error(shell: RemoteShell, failure: str, file: str, **values: str) -> DeviceError:
    """Return the error of a push for the user."""
    return PUSH_FAILURES.error(
        DeviceError, failure, shell.name,
        file=file,
        folder=quote(shell.place.base),
        device=quote(shell.name),
        shell=shell.advice.prefix,
        **{"try": shell.advice.damaged},
        **values,
    )  # fmt: skip


def no_room(shell: RemoteShell, needed: int, free: int | None, file: str) -> DeviceError:
    """Return the error where the device has less room than a file or the bundle needs; in bytes."""
    room = "unknown" if free is None else f"{console.size(free)} ({free} bytes)"
    return push_error(
        shell, "no space", file, needed=f"{console.size(needed)} ({needed} bytes)", free=room
    )


def write_error(shell: RemoteShell, file: BundleFile, said: str) -> DeviceError:
    """Return the error where the device could not write a file, and said this."""
    checking = shell.shell(f"df -k {quote(shell.place.base)}", "checking its free space")
    free = layout.parse_df(checking.output)
    if "space" in said.lower() or (free is not None and free < file.size_bytes):
        return no_room(shell, file.size_bytes, free, file.path)
    return push_error(shell, said, file.path)


def changed(shell: RemoteShell, file: BundleFile, arrived: str, kept: bool = False) -> DeviceError:
    """Return the error where another digest arrived; reads the source again."""
    try:
        if sha256_file(Path(file.source)) != file.sha256:
            return source_changed(file)
    except OSError as error:
        return unreadable(file, error)
    failure = "parts changed" if kept else f"changed {arrived}"
    return push_error(shell, failure, file.path, here=file.sha256[:12])


def unreadable(file: BundleFile, error: OSError) -> DeviceError:
    """Return the error where the file here cannot be read."""
    return DeviceError(f"cannot read {file.source}: {error.strerror}")


def source_changed(file: BundleFile) -> DeviceError:
    """Return the error where the file here differs from the one that the bundle lists."""
    return DeviceError(
        f"{file.source} is not the file that the bundle lists: it changed meanwhile",
        remedy="Run the same command again.",
    )


def _ignore(_: int) -> None:
    pass


@dataclass(frozen=True)
class Sending:
    """One file on its way."""

    shell: RemoteShell
    session: ShellSession
    file: BundleFile
    progress: Progress
    fraction: Callable[[int], float]
    can_hash: bool
    verifications: list[PushScript]
    before: PushScript | None

    @property
    def folder(self) -> str:
        """The push's, on the device."""
        return self.session.folder

    @property
    def part(self) -> str:
        """Where a large file lies as far as it has arrived."""
        return store.part_name(self.folder, self.file.sha256)

    @property
    def pushing(self) -> str:
        """What goes on while its bytes are sent."""
        return f"pushing {self.file.path}"

    @property
    def verifying(self) -> str:
        """What goes on when the device reads a file back."""
        return f"verifying {self.file.path}"

    def transfer(
        self,
        target: str,
        part: Part | None = None,
        there_bytes: int = 0,
        note: str = "",
        on_bytes: Callable[[int], None] = _ignore,
    ) -> None:
        """Sends the file, or a part of it."""
        start, size = (part.start, part.size) if part else (0, None)

        def report(sent: int) -> None:
            if self.before and sent >= _KEPT_BYTES:
                self.session.wait(self.before)
            on_bytes(sent)
            self.progress(self.pushing + note, self.fraction(there_bytes + sent))

        self.shell.send(Path(self.file.source), target, self.pushing, report, start, size)

    def begin_verifying(self, script: str, kept: bool) -> PushScript:
        """Begins a script that prints the file's digest at its end."""

        def done(result: ShellResult) -> None:
            if result.exit_code == layout.CHANGED:
                digest = result.output.splitlines()[-1].split()[0]
                raise changed(self.shell, self.file, digest, kept)
            if not result.ok:
                raise self.unverified(result.output.strip())

        begun = self.session.begin(script, self.verifying, done, HASH_S)
        self.verifications.append(begun)
        return begun

    def keep(self, arrived: str) -> None:
        """Has the file moved into the store, if the script before succeeded."""
        command = layout.keep_command(self.shell.place, arrived, self.file.sha256)
        self.session.begin_checked(command, f"keeping {self.file.path}", after_success=True)

    def drop(self) -> None:
        """Removes what is there of a large file, so that it is not kept for the next push."""
        there = f"{self.shell.place.partial}/{self.file.sha256}"
        self.shell.best_effort_cleanup(f"rm -f {quote(self.part)} {quote(there)}")

    def require_read_back(self, arrived: str) -> None:
        """Verifies the file on a device that has no sha256sum, and sets its mode."""
        digest = hashlib.sha256()
        for piece in self.shell.content(arrived, self.verifying):
            digest.update(piece)
        if digest.hexdigest() != self.file.sha256:
            raise changed(self.shell, self.file, digest.hexdigest())
        mode = layout.mode_command(quote(arrived), self.file.executable)
        self.session.begin_checked(mode, f"keeping {self.file.path}")

    def unverified(self, said: str) -> DeviceError:
        """The device did not give a digest, but said this."""
        return self._failed(self.verifying, said)

    def cut_off(self) -> DeviceError:
        """The device's shell ended while bytes were sent."""
        return self._failed(self.pushing, "")

    def _failed(self, activity: str, said: str) -> DeviceError:
        return DeviceError(
            f"the device failed while {activity}: {said or 'its shell ended'}",
            place=self.shell.name,
        )


def send_whole(sending: Sending) -> Sent:
    """Sends a file in one go; it is verified and kept while what follows is sent."""
    file = sending.file
    arrived = f"{sending.folder}/{file.sha256}"
    sending.transfer(arrived)
    sending.progress(sending.verifying)
    if sending.can_hash:
        command = layout.verify_command(arrived, file.sha256, file.executable)
        sending.begin_verifying(command, kept=False)
    else:
        sending.require_read_back(arrived)
    sending.keep(arrived)
    return Sent(file.size_bytes)


# How often the device is told to hash on: seldom enough to start few processes there; early, so
# that it finds the file in time, and more often towards the end, so that little is left to hash
# when all has arrived.
_STEP_BYTES = 16 << 20
_LEAST_STEP_BYTES = 1 << 20


def is_large(file: BundleFile) -> bool:
    """Whether a file is worth more than one part."""
    return file.size_bytes > store.PART_BYTES


def send_large(sending: Sending, was_begun: bool, may_resume: bool) -> Sent:
    """Sends a large file, or what is missing of it."""
    try:
        there = _take_partial(sending, may_resume) if was_begun else ()
        if not sending.can_hash:
            return send_whole(sending)
        sent = _resume(sending, there) if there else _send_all(sending)
    except DeviceWriteError:
        # A full device needs its room more than the next push needs the beginning of a file.
        sending.drop()
        raise
    sending.keep(sending.part)
    return sent


def _send_all(sending: Sending) -> Sent:
    """Sends all of it, while the device hashes what has arrived."""
    file = sending.file
    command = store.follow_command(sending.folder, file.sha256, file.executable)
    following = _Following(sending, sending.begin_verifying(command, kept=True))
    sending.transfer(store.new_name(sending.folder, file.sha256), on_bytes=following.report)
    sending.progress(sending.verifying)
    sending.session.write_line(store.END, sending.verifying)
    return Sent(file.size_bytes)


@dataclass
class _Following:
    """Tells the device how far a file has come."""

    sending: Sending
    script: PushScript
    reported_bytes: int = 0
    has_found: bool = False

    def report(self, sent: int) -> None:
        """Tells it now and then."""
        if sent - self.reported_bytes < self._step_bytes(sent):
            return
        # From the second time on, an interruption must not lose what has arrived. To wait for that
        # the first time would leave the link idle.
        if self.reported_bytes and not self.has_found:
            found = self.sending.session.read_line(self.script, self.sending.pushing)
            if found != store.BEGUN:
                raise self.sending.cut_off()
            self.has_found = True
        self.sending.session.write_line("more", self.sending.pushing)
        self.reported_bytes = sent

    def _step_bytes(self, sent: int) -> int:
        if not self.reported_bytes:
            return _LEAST_STEP_BYTES
        left = self.sending.file.size_bytes - sent
        return min(_STEP_BYTES, max(_LEAST_STEP_BYTES, left))


def _take_partial(sending: Sending, may_resume: bool) -> tuple[Part, ...]:
    """The parts that an interrupted push sent; none where they cannot be verified there."""
    there: tuple[Part, ...] = ()
    if may_resume:
        command = store.take_command(sending.shell.place, sending.folder, sending.file.sha256)
        result = sending.session.run(command, f"looking for what is there of {sending.file.path}")
        all_parts = store.split_parts(sending.file.size_bytes, store.PART_BYTES)
        there = store.arrived(all_parts, store.parse_size(result.output))
    if not there:
        sending.drop()
    return there


def _resume(sending: Sending, there: Sequence[Part]) -> Sent:
    """Sends the parts that are missing or damaged there.

    The digests of the parts are of the same bytes as that of the file, which the bundle lists.
    """
    file = sending.file
    command = store.continue_command(sending.folder, file.sha256, file.executable)
    writer = sending.begin_verifying(command, kept=True)
    sending.progress(f"verifying what is there of {file.path}")
    for part in there:
        sending.session.write_line(store.verify_line(part), sending.verifying)
    whole, digests = sha256_parts(Path(file.source), store.PART_BYTES)
    if whole != file.sha256:
        raise source_changed(file)
    good = {part for part in there if _digest(sending, writer, part) == digests[part.number]}
    all_parts = store.split_parts(file.size_bytes, store.PART_BYTES)
    missing = [part for part in all_parts if part not in good]
    resumed_bytes = sum(part.size for part in good)
    verify_seconds = _send_parts(sending, writer, missing, digests, resumed_bytes)
    sending.session.write_line(store.END, sending.verifying)
    return Sent(file.size_bytes - resumed_bytes, resumed_bytes, verify_seconds)


def _send_parts(
    sending: Sending,
    writer: PushScript,
    missing: Sequence[Part],
    digests: Sequence[str],
    resumed_bytes: int,
) -> float:
    """Sends parts, each verified while the next travels; returns seconds waited for the last."""
    note = f" ({console.size(resumed_bytes)} were already there)" if resumed_bytes else ""
    there_bytes = resumed_bytes
    before: Part | None = None
    for part in missing:
        new = store.new_name(sending.folder, sending.file.sha256, part)
        sending.transfer(new, part, there_bytes, note)
        there_bytes += part.size
        sending.session.write_line(store.join_line(part), sending.verifying)
        if before:
            _require(sending, _digest(sending, writer, before), digests[before.number])
        before = part
    started = time.monotonic()
    if before:
        _require(sending, _digest(sending, writer, before), digests[before.number])
    return time.monotonic() - started


def _digest(sending: Sending, writer: PushScript, part: Part) -> str:
    """The digest that the device prints next; it prints them in the order of its lines."""
    number, digest, said = [*sending.session.read_line(writer).split(maxsplit=2), "", "", ""][:3]
    if digest == "failed":
        raise DeviceWriteError(said)
    if number != str(part.number):
        raise sending.unverified("")
    return digest


def _require(sending: Sending, digest: str, expected: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise sending.unverified(digest)
    if digest != expected:
        raise changed(sending.shell, sending.file, digest, kept=True)
