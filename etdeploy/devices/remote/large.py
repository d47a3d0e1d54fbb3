"""Sends a large file: verified while it travels, and after an interruption only what is missing."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path

from etdeploy.core import console
from etdeploy.core.hashing import sha256_parts
from etdeploy.devices.base import BundleFile
from etdeploy.devices.remote import errors, parts
from etdeploy.devices.remote.parts import Part
from etdeploy.devices.remote.sending import HASH_S, Sending, Sent
from etdeploy.devices.remote.shell import Held, RefusedError

# How often the device is told to hash on: seldom enough to start few processes there.
_STEP_BYTES = 16 << 20


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
        sent = _resumed(sending, there) if there else _sent(sending)
    except RefusedError:
        # A full device needs its room more than the next push needs the beginning of a file.
        sending.drop()
        raise
    sending.keep(sending.part)
    return sent


def _sent(sending: Sending) -> Sent:
    """Sends all of it, while the device hashes what has arrived."""
    file, next_step, begun = sending.file, _STEP_BYTES, False
    new = parts.new_name(sending.folder, file.sha256)
    command = parts.follow_command(sending.folder, file.sha256)
    with sending.shell.held(command, sending.verifying, HASH_S) as follower:

        def on_bytes(sent: int) -> None:
            nonlocal next_step, begun
            if sent >= next_step:
                # From here on, an interruption must not lose what has arrived.
                begun = begun or _begun(sending, follower)
                follower.say("more")
                next_step = sent + _STEP_BYTES

        sending.transfer(new, on_bytes=on_bytes)
        started = time.monotonic()
        sending.progress(sending.verifying)
        follower.say(parts.END)
        begun = begun or _begun(sending, follower)
        digest = follower.hear().partition(" ")[0]
    if digest == parts.NO_DIGEST:
        digest = sending.read_back(sending.part)
    _require(sending, digest, file.sha256)
    return Sent(file.size_bytes, 0, time.monotonic() - started)


def _begun(sending: Sending, follower: Held) -> bool:
    """Waits until the device has found the file."""
    if follower.hear() != parts.BEGUN:
        raise sending.unverified("")
    return True


def _taken(sending: Sending, may_resume: bool) -> tuple[Part, ...]:
    """The parts that an interrupted push sent; none where they cannot be verified there."""
    there: tuple[Part, ...] = ()
    if may_resume:
        command = parts.take_command(sending.shell.place, sending.folder, sending.file.sha256)
        result = sending.shell.shell(command, f"looking for what is there of {sending.file.path}")
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
    command = parts.continue_command(sending.folder, file.sha256)
    with sending.shell.held(command, sending.verifying, HASH_S) as writer:
        sending.progress(f"verifying what is there of {file.path}")
        for part in there:
            writer.say(parts.verify_line(part))
        whole, digests = sha256_parts(Path(file.source), parts.PART_BYTES)
        if whole != file.sha256:
            raise errors.source_changed(file)
        good = {part for part in there if _digest(sending, writer, part) == digests[part.number]}
        all_parts = parts.parts_of(file.size_bytes, parts.PART_BYTES)
        missing = [part for part in all_parts if part not in good]
        resumed_bytes = sum(part.size for part in good)
        verify_seconds = _send_parts(sending, writer, missing, digests, resumed_bytes)
    return Sent(file.size_bytes - resumed_bytes, resumed_bytes, verify_seconds)


def _send_parts(
    sending: Sending,
    writer: Held,
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
        writer.say(parts.join_line(part))
        if before:
            _require(sending, _digest(sending, writer, before), digests[before.number])
        before = part
    started = time.monotonic()
    if before:
        _require(sending, _digest(sending, writer, before), digests[before.number])
    return time.monotonic() - started


def _digest(sending: Sending, writer: Held, part: Part) -> str:
    """The digest that the device prints next; it prints them in the order of its lines."""
    number, digest, said = [*writer.hear().split(maxsplit=2), "", "", ""][:3]
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
