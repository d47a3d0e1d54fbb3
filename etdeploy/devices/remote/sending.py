"""Sends one file to a remote device, verifies it there, and moves it into the store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress
from etdeploy.devices.base import BundleFile
from etdeploy.devices.remote import errors, layout, parts
from etdeploy.devices.remote.parts import Part
from etdeploy.devices.remote.shell import RemoteShell

# Reading back a content of several GB takes a while on a slow device.
HASH_S = 900.0


@dataclass(frozen=True)
class Sent:
    """What the transfer of one or more files came to.

    Attributes:
        sent_bytes: What travelled.
        resumed_bytes: What was there already of files that an interrupted push had begun.
        verify_seconds: How long only the verification was waited for.
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
        file: What is sent.
        folder: Of the push on the device.
        progress: Told what goes on.
        fraction: The fraction of the whole push that is done, by the bytes of this file.
    """

    shell: RemoteShell
    file: BundleFile
    folder: str
    progress: Progress
    fraction: Callable[[int], float]

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
            on_bytes(sent)
            self.progress(text + note, self.fraction(there_bytes + sent))

        self.shell.send(Path(self.file.source), target, text, told, start, size)

    def keep(self, arrived: str) -> None:
        """Moves the file, which was verified, into the store."""
        sha256, executable = self.file.sha256, self.file.executable
        command = layout.keep_command(self.shell.place, arrived, sha256, executable)
        self.shell.require(command, f"keeping {self.file.path}")

    def drop(self) -> None:
        """Removes what is there of a large file, so that it is not kept for the next push."""
        there = f"{self.shell.place.partial}/{self.file.sha256}"
        self.shell.tidy(f"rm -f {quote(self.part)} {quote(there)}")

    def read_back(self, arrived: str) -> str:
        """The digest of the file on a device that has no sha256sum."""
        digest = hashlib.sha256()
        for piece in self.shell.content(arrived, self.verifying):
            digest.update(piece)
        return digest.hexdigest()

    def unverified(self, said: str) -> DeviceError:
        """The device did not give a digest, but said this."""
        return DeviceError(
            f"the device failed while {self.verifying}: {said or 'its shell ended'}",
            place=self.shell.name,
        )


def send_whole(sending: Sending) -> Sent:
    """Sends a file in one go, then has it verified.

    Raises:
        OSError: The source cannot be read.
        RefusedError: The device cannot write it.
        DeviceError: It arrived changed, or the device went away.
        Interrupted: The run was asked to stop.
    """
    file = sending.file
    arrived = f"{sending.folder}/{file.sha256}"
    sending.transfer(arrived)
    started = time.monotonic()
    sending.progress(sending.verifying)
    digest = _digest(sending, arrived)
    if digest != file.sha256:
        raise errors.changed(sending.shell, file, digest)
    verify_seconds = time.monotonic() - started
    sending.keep(arrived)
    return Sent(file.size_bytes, 0, verify_seconds)


def _digest(sending: Sending, arrived: str) -> str:
    command = layout.verify_command(arrived, sending.file.sha256)
    result = sending.shell.shell(command, sending.verifying, HASH_S)
    if result.exit_code == layout.NO_SHA256SUM:
        return sending.read_back(arrived)
    if result.exit_code in (0, layout.CHANGED):
        return result.output.split()[0]
    raise sending.unverified(result.output.strip())
