"""Adb's file protocol (SYNC.TXT in AOSP): a file to the device, a file from the device."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from io import FileIO
from pathlib import Path

from etdeploy.devices.adb.errors import AdbGoneError, AdbRefusedError
from etdeploy.devices.adb.stream import Patience, Stream, Transport, receive_exactly

# What a DATA packet holds at most, and its header.
_CHUNK = 64 * 1024
_HEADER_BYTES = 8
_SLOT = _HEADER_BYTES + _CHUNK
_REGULAR_FILE = 0o100000


def push_file(
    transport: Transport,
    source: Path,
    target: str,
    patience: Patience,
    on_bytes: Callable[[int], None],
    start: int = 0,
    size: int | None = None,
) -> None:
    """Sends a file or a range of it; the device writes it as it comes.

    Args:
        transport: The way to the device.
        source: The file here.
        target: Its absolute path on the device.
        patience: For each read and write.
        on_bytes: Told how many bytes have gone so far.
        start: Where the range begins.
        size: Of the range in bytes; None for all that follows.

    Raises:
        OSError: The source cannot be read.
        AdbRefusedError: The device could not write it; the message is the device's.
        AdbError: The device went away.
    """
    with FileIO(source) as file, closing(transport.open("sync:", patience)) as stream:
        file.seek(start)
        _ask(stream, b"SEND", f"{target},{_REGULAR_FILE | 0o644}")
        try:
            _send_content(stream, file, size, on_bytes)
        except AdbGoneError:
            # A device that cannot write says why before it hangs up.
            if not stream.has_input():
                raise
        _read_status(stream)


def _send_content(
    stream: Stream, file: FileIO, size: int | None, on_bytes: Callable[[int], None]
) -> None:
    block = _Block(stream.block_bytes)
    sent = 0
    while filled := block.fill(file, None if size is None else size - sent):
        if stream.has_input():
            return
        stream.send(block.packets())
        sent += filled
        on_bytes(sent)
    # The device sets this time as the file's: a fixed one, since the content is what counts.
    stream.send(_packet(b"DONE", 1))


class _Block:
    """DATA packets of a file, read to where they are sent from.

    One buffer for all of a file: new ones of this size would cost more than reading the file.
    """

    def __init__(self, size_bytes: int) -> None:
        # Whole packets only, so that a block fits into one packet of the connection below.
        self._slots = max(1, size_bytes // _SLOT)
        self._view = memoryview(bytearray(self._slots * _SLOT))
        self._end = 0

    def fill(self, file: FileIO, limit: int | None) -> int:
        """Reads on in the file, up to `limit` bytes; returns how many it read."""
        self._end = total = 0
        for _ in range(self._slots):
            start = self._end + _HEADER_BYTES
            room = _CHUNK if limit is None else min(_CHUNK, limit - total)
            size = file.readinto(self._view[start : start + room]) or 0
            if not size:
                break
            self._view[self._end : start] = _packet(b"DATA", size)
            self._end = start + size
            total += size
        return total

    def packets(self) -> memoryview:
        """What was read, as packets; valid until the next `fill`."""
        return self._view[: self._end]


def _read_status(stream: Stream) -> None:
    kind, size = struct.unpack("<4sI", receive_exactly(stream, 8))
    if kind == b"FAIL":
        raise AdbRefusedError(receive_exactly(stream, size).decode(errors="replace"))
    if kind != b"OKAY":
        raise AdbGoneError(f"the device answered {kind!r} instead of OKAY")


def pull_file(transport: Transport, source: str, patience: Patience) -> Iterator[bytes]:
    """The content of a file on the device, in pieces.

    Raises:
        AdbRefusedError: The device cannot read it.
        AdbError: The device went away.
    """
    with closing(transport.open("sync:", patience)) as stream:
        yield from _received(stream, source)


def read_file(transport: Transport, source: str, patience: Patience) -> bytes | None:
    """The content of a small file on the device; None where there is none.

    Raises:
        AdbRefusedError: The device cannot read it.
        AdbError: The device went away.
    """
    with closing(transport.open("sync:", patience)) as stream:
        _ask(stream, b"STAT", source)
        kind, mode, _, _ = struct.unpack("<4s3I", receive_exactly(stream, 16))
        if kind != b"STAT":
            raise AdbGoneError(f"the device answered {kind!r} instead of STAT")
        # The mode of what is not there.
        return b"".join(_received(stream, source)) if mode else None


def _received(stream: Stream, source: str) -> Iterator[bytes]:
    _ask(stream, b"RECV", source)
    while True:
        kind, size = struct.unpack("<4sI", receive_exactly(stream, 8))
        if kind == b"DONE":
            return
        content = receive_exactly(stream, size)
        if kind == b"FAIL":
            raise AdbRefusedError(content.decode(errors="replace"))
        if kind != b"DATA":
            raise AdbGoneError(f"the device answered {kind!r} instead of DATA")
        yield content


def _ask(stream: Stream, kind: bytes, path: str) -> None:
    name = path.encode()
    stream.send(_packet(kind, len(name)) + name)


def _packet(kind: bytes, value: int) -> bytes:
    return struct.pack("<4sI", kind, value)
