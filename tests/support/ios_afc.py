"""The file protocol of an iPhone (AFC), over a folder of this machine.

A packet is a header of 40 bytes (magic, length of all, length of header and arguments, number,
operation; little endian), then arguments, then content.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = b"CFA6LPAA"
_STATUS, _DATA, _OPENED = 1, 2, 14
_READ_ONLY = 1
_MODES = {1: "rb", 2: "r+b", 3: "wb", 4: "w+b", 5: "ab", 6: "a+b"}
# Numbers of its errors.
_NOT_FOUND, _IS_FOLDER, _NO_SPACE, _UNSUPPORTED, _NOT_EMPTY = 8, 9, 18, 15, 33


@dataclass
class FileService:
    """Serves one connection.

    Attributes:
        root: What the other side sees as /.
        room_bytes: Writing more in all is refused, as a full device does; None for no limit.
        written: Paths that were opened for writing, in their order.
    """

    root: Path
    room_bytes: int | None = None
    written: list[str] = field(default_factory=list)

    def serve(self, connection: socket.socket) -> None:
        """Answers until the other side hangs up."""
        handles: dict[int, int] = {}
        try:
            while header := _exactly(connection, 40):
                size, _, number, operation = struct.unpack("<8x4Q", header)
                payload = _exactly(connection, size - 40)
                kind, answer = self._answer(operation, payload, handles)
                head = struct.pack(
                    "<8s4Q", _MAGIC, 40 + len(answer), 40 + len(answer), number, kind
                )
                connection.sendall(head + answer)
        finally:
            for handle in handles.values():
                os.close(handle)

    def _answer(self, operation: int, payload: bytes, handles: dict[int, int]) -> tuple[int, bytes]:
        try:
            return self._done(operation, payload, handles)
        except OSError as error:
            codes = {
                errno.ENOENT: _NOT_FOUND, errno.ENOTEMPTY: _NOT_EMPTY, errno.EISDIR: _IS_FOLDER,
                errno.ENOSPC: _NO_SPACE,
            }  # fmt: skip
            return _STATUS, struct.pack("<Q", codes.get(error.errno or 0, 20))

    def _done(self, operation: int, payload: bytes, handles: dict[int, int]) -> tuple[int, bytes]:
        done = _STATUS, struct.pack("<Q", 0)
        if operation in (15, 16, 20):
            [number] = struct.unpack_from("<Q", payload)
            if operation == 15:
                return _DATA, os.read(handles[number], struct.unpack_from("<Q", payload, 8)[0])
            if operation == 16:
                self._write(handles[number], payload[8:])
            else:
                os.close(handles.pop(number))
            return done
        if operation == 13:
            return _OPENED, self._open(payload, handles)
        path = self._path(payload)
        if operation == 3:
            return _DATA, _strings(".", "..", *sorted(p.name for p in path.iterdir()))
        if operation == 8:
            path.rmdir() if path.is_dir() else path.unlink()
            return done
        if operation == 9:
            path.mkdir(parents=True, exist_ok=True)
            return done
        if operation == 10:
            return _DATA, _information(path)
        return _STATUS, struct.pack("<Q", _UNSUPPORTED)

    def _open(self, payload: bytes, handles: dict[int, int]) -> bytes:
        [mode] = struct.unpack_from("<Q", payload)
        path = self._path(payload[8:])
        with path.open(_MODES[mode]) as file:
            number = max(handles, default=0) + 1
            handles[number] = os.dup(file.fileno())
        if mode != _READ_ONLY:
            self.written.append(path.relative_to(self.root).as_posix())
        return struct.pack("<Q", number)

    def _write(self, handle: int, content: bytes) -> None:
        if self.room_bytes is not None:
            self.room_bytes -= len(content)
            if self.room_bytes < 0:
                raise OSError(errno.ENOSPC, "full")
        while content:
            content = content[os.write(handle, content) :]

    def _path(self, payload: bytes) -> Path:
        relative = payload.split(b"\0")[0].decode().strip("/")
        path = (self.root / relative).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise FileNotFoundError(errno.ENOENT, "outside")
        return path


def _information(path: Path) -> bytes:
    found = path.stat()
    kind = "S_IFDIR" if path.is_dir() else "S_IFREG"
    return _strings(
        "st_size", str(found.st_size), "st_blocks", str(found.st_blocks), "st_nlink", "1",
        "st_ifmt", kind, "st_mtime", str(found.st_mtime_ns), "st_birthtime", str(found.st_ctime_ns),
    )  # fmt: skip


def _strings(*words: str) -> bytes:
    return b"".join(word.encode() + b"\0" for word in words)


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes; fewer where the connection has ended."""
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(min(size - len(received), 1 << 20))
        if not chunk:
            break
        received += chunk
    return bytes(received) if len(received) == size else b""


def emptied(folder: Path) -> Path:
    """The folder itself, new and empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
