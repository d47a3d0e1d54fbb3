"""Sends a large file: verified while it travels, and after an interruption only what is missing."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core import console
from etdeploy.core.hashing import sha256_parts
from etdeploy.devices.base import BundleFile
from etdeploy.devices.remote import errors, parts
from etdeploy.devices.remote.parts import Part
from etdeploy.devices.remote.sending import Sending, Sent, send_whole
from etdeploy.devices.remote.session import Begun
from etdeploy.devices.remote.shell import RefusedError

# How often the device is told to hash on: seldom enough to start few processes there; early, so
# that it finds the file in time, and more often towards the end, so that little is left to hash
# when all has arrived.
_STEP_BYTES = 16 << 20
_LEAST_STEP_BYTES = 1 << 20


def is_large(file: BundleFile) -> bool:
    """Whether a file is worth more than one part."""
    return file.size_bytes > parts.PART_BYTES


def send_large(sending: Sending, was_begun: bool, may_resume: bool) -> Sent:
    """Sends a large file, or what is missing of it.

    Args:
        sending: The file.
        was_begun: Whether an interrupted push sent some of it.
        may_resume: Whether the device has room for a part more than the file.

    Raises:
        OSError: The source cannot be read.
        RefusedError: The device cannot write it; nothing of it is kept.
        DeviceError: It arrived changed, or the device went away.
        Interrupted: The run was asked to stop.
    """
    try:
        there = _taken(sending, may_resume) if was_begun else ()
        if not sending.can_hash:
            return send_whole(sending)
        sent = _resumed(sending, there) if there else _sent(sending)
    except RefusedError:
        # A full device needs its room more than the next push needs the beginning of a file.
        sending.drop()
        raise
    sending.keep(sending.part)
    return sent


def _sent(sending: Sending) -> Sent:
    """Sends all of it, while the device hashes what has arrived."""
    file = sending.file
    command = parts.follow_command(sending.folder, file.sha256, file.executable)
    following = _Following(sending, sending.begin_verifying(command, kept=True))
    sending.transfer(parts.new_name(sending.folder, file.sha256), on_bytes=following.told)
    sending.progress(sending.verifying)
    sending.session.say(parts.END, sending.verifying)
    return Sent(file.size_bytes)


@dataclass
class _Following:
    """Tells the device how far a file has come.

    Attributes:
        sending: The file.
        script: What hashes it there.
        told_bytes: What it was told of.
        has_found: Whether the device has found the file, and given it the name that is kept.
    """

    sending: Sending
    script: Begun
    told_bytes: int = 0
    has_found: bool = False

    def told(self, sent: int) -> None:
        """Tells it now and then."""
        if sent - self.told_bytes < self._step_bytes(sent):
            return
        # From the second time on, an interruption must not lose what has arrived. To wait for that
        # the first time would leave the link idle.
        if self.told_bytes and not self.has_found:
            if self.sending.session.hear(self.script) != parts.BEGUN:
                raise self.sending.unverified("")
            self.has_found = True
        self.sending.session.say("more", self.sending.verifying)
        self.told_bytes = sent

    def _step_bytes(self, sent: int) -> int:
        if not self.told_bytes:
            return _LEAST_STEP_BYTES
        left = self.sending.file.size_bytes - sent
        return min(_STEP_BYTES, max(_LEAST_STEP_BYTES, left))


def _taken(sending: Sending, may_resume: bool) -> tuple[Part, ...]:
    """The parts that an interrupted push sent; none where they cannot be verified there."""
    there: tuple[Part, ...] = ()
    if may_resume:
        command = parts.take_command(sending.shell.place, sending.folder, sending.file.sha256)
        result = sending.session.run(command, f"looking for what is there of {sending.file.path}")
        all_parts = parts.parts_of(sending.file.size_bytes, parts.PART_BYTES)
        there = parts.arrived(all_parts, parts.parse_size(result.output))
    if not there:
        sending.drop()
    return there


def _resumed(sending: Sending, there: Sequence[Part]) -> Sent:
    """Sends the parts that are missing or damaged there.

    The digests of the parts are of the same bytes as that of the file, which the bundle lists.
    """
    file = sending.file
    command = parts.continue_command(sending.folder, file.sha256, file.executable)
    writer = sending.begin_verifying(command, kept=True)
    sending.progress(f"verifying what is there of {file.path}")
    for part in there:
        sending.session.say(parts.verify_line(part), sending.verifying)
    whole, digests = sha256_parts(Path(file.source), parts.PART_BYTES)
    if whole != file.sha256:
        raise errors.source_changed(file)
    good = {part for part in there if _digest(sending, writer, part) == digests[part.number]}
    all_parts = parts.parts_of(file.size_bytes, parts.PART_BYTES)
    missing = [part for part in all_parts if part not in good]
    resumed_bytes = sum(part.size for part in good)
    verify_seconds = _send_parts(sending, writer, missing, digests, resumed_bytes)
    sending.session.say(parts.END, sending.verifying)
    return Sent(file.size_bytes - resumed_bytes, resumed_bytes, verify_seconds)


def _send_parts(
    sending: Sending,
    writer: Begun,
    missing: Sequence[Part],
    digests: Sequence[str],
    resumed_bytes: int,
) -> float:
    """Sends parts, each verified while the next travels; returns seconds waited for the last."""
    note = f" ({console.size(resumed_bytes)} were already there)" if resumed_bytes else ""
    there_bytes = resumed_bytes
    before: Part | None = None
    for part in missing:
        new = parts.new_name(sending.folder, sending.file.sha256, part)
        sending.transfer(new, part, there_bytes, note)
        there_bytes += part.size
        sending.session.say(parts.join_line(part), sending.verifying)
        if before:
            _require(sending, _digest(sending, writer, before), digests[before.number])
        before = part
    started = time.monotonic()
    if before:
        _require(sending, _digest(sending, writer, before), digests[before.number])
    return time.monotonic() - started


def _digest(sending: Sending, writer: Begun, part: Part) -> str:
    """The digest that the device prints next; it prints them in the order of its lines."""
    number, digest, said = [*sending.session.hear(writer).split(maxsplit=2), "", "", ""][:3]
    if digest == "failed":
        raise RefusedError(said)
    if number != str(part.number):
        raise sending.unverified("")
    return digest


def _require(sending: Sending, digest: str, expected: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise sending.unverified(digest)
    if digest != expected:
        raise errors.changed(sending.shell, sending.file, digest, kept=True)
