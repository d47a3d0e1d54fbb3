"""Sends one file to a remote device, has it verified there and moved into the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress
from etdeploy.devices.base import BundleFile
from etdeploy.devices.remote import errors, layout, parts
from etdeploy.devices.remote.parts import Part
from etdeploy.devices.remote.session import HASH_S, Begun, Session
from etdeploy.devices.remote.shell import RemoteShell
from etdeploy.devices.shell import ShellResult

# When so much of a file has gone, those before it are kept whatever happens; to wait for that any
# earlier would leave the link idle.
_KEPT_BYTES = 1 << 20


@dataclass(frozen=True)
class Sent:
    """What the transfer of one or more files came to.

    Attributes:
        sent_bytes: What travelled.
        resumed_bytes: What was there already of files that an interrupted push had begun.
        verify_seconds: How long only the verification of parts was waited for.
    """

    sent_bytes: int = 0
    resumed_bytes: int = 0
    verify_seconds: float = 0.0

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            self.sent_bytes + other.sent_bytes,
            self.resumed_bytes + other.resumed_bytes,
            self.verify_seconds + other.verify_seconds,
        )


def _ignore(_: int) -> None:
    pass


@dataclass(frozen=True)
class Sending:
    """One file on its way.

    Attributes:
        shell: The connection.
        session: The shell of the push.
        file: What is sent.
        progress: Told what goes on.
        fraction: The fraction of the whole push that is done, by the bytes of this file.
        can_hash: Whether the device has sha256sum.
        verifications: Takes the scripts that verify what was sent.
        before: What was begun last for the files before.
    """

    shell: RemoteShell
    session: Session
    file: BundleFile
    progress: Progress
    fraction: Callable[[int], float]
    can_hash: bool
    verifications: list[Begun]
    before: Begun | None

    @property
    def folder(self) -> str:
        """The push's, on the device."""
        return self.session.folder

    @property
    def part(self) -> str:
        """Where a large file lies as far as it has arrived."""
        return parts.part_name(self.folder, self.file.sha256)

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
        """Sends the file, or a part of it.

        Args:
            target: Its path there.
            part: The only part to send.
            there_bytes: What is there of the file already.
            note: Follows the file's name where progress is shown.
            on_bytes: Told how many bytes have gone so far.

        Raises:
            OSError: The source cannot be read.
            RefusedError: The device cannot write it.
            DeviceError: The device went away.
            Interrupted: The run was asked to stop.
        """
        start, size = (part.start, part.size) if part else (0, None)
        text = f"pushing {self.file.path}"

        def told(sent: int) -> None:
            if self.before and sent >= _KEPT_BYTES:
                self.session.settle(self.before)
            on_bytes(sent)
            self.progress(text + note, self.fraction(there_bytes + sent))

        self.shell.send(Path(self.file.source), target, text, told, start, size)

    def begin_verifying(self, script: str, kept: bool) -> Begun:
        """Begins a script that prints the file's digest at its end.

        Args:
            script: Ends with `layout.CHANGED` when it is another than it should be.
            kept: Whether the next push finds what arrived.
        """

        def done(result: ShellResult) -> None:
            if result.exit_code == layout.CHANGED:
                digest = result.output.splitlines()[-1].split()[0]
                raise errors.changed(self.shell, self.file, digest, kept)
            if not result.ok:
                raise self.unverified(result.output.strip())

        begun = self.session.begin(script, self.verifying, done, HASH_S)
        self.verifications.append(begun)
        return begun

    def keep(self, arrived: str) -> None:
        """Has the file moved into the store, if the script before succeeded."""
        command = layout.keep_command(self.shell.place, arrived, self.file.sha256)
        self.session.demand(command, f"keeping {self.file.path}", after_success=True)

    def drop(self) -> None:
        """Removes what is there of a large file, so that it is not kept for the next push."""
        there = f"{self.shell.place.partial}/{self.file.sha256}"
        self.shell.tidy(f"rm -f {quote(self.part)} {quote(there)}")

    def require_read_back(self, arrived: str) -> None:
        """Verifies the file on a device that has no sha256sum, and sets its mode."""
        digest = hashlib.sha256()
        for piece in self.shell.content(arrived, self.verifying):
            digest.update(piece)
        if digest.hexdigest() != self.file.sha256:
            raise errors.changed(self.shell, self.file, digest.hexdigest())
        mode = layout.mode_command(quote(arrived), self.file.executable)
        self.session.demand(mode, f"keeping {self.file.path}")

    def unverified(self, said: str) -> DeviceError:
        """The device did not give a digest, but said this."""
        return DeviceError(
            f"the device failed while {self.verifying}: {said or 'its shell ended'}",
            place=self.shell.name,
        )


def send_whole(sending: Sending) -> Sent:
    """Sends a file in one go; it is verified and kept while what follows is sent.

    Raises:
        OSError: The source cannot be read.
        RefusedError: The device cannot write it.
        DeviceError: It arrived changed, or the device went away.
        Interrupted: The run was asked to stop.
    """
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
