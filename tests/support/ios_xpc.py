"""RemoteXPC as a server: HTTP/2 frames around messages of typed objects, little endian.

An object is its type's number, then its value; texts and data are filled up to multiples of 4.
"""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Callable
from typing import Any

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_DATA, _FRAME_SETTINGS, _FRAME_WINDOW = 0, 4, 8
_MESSAGE, _PAYLOAD = 0x29B00B92, 0x42133742
_ALWAYS, _HAS_DATA = 0x1, 0x100
_NULL, _BOOL, _INT, _UINT, _DOUBLE, _DATA, _TEXT, _UUID, _LIST, _MAP = (
    0x1000, 0x2000, 0x3000, 0x4000, 0x5000, 0x8000, 0x9000, 0xA000, 0xE000, 0xF000,
)  # fmt: skip

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def serve(connection: socket.socket, answer: Answer) -> None:
    """Answers every message that is not empty, until the other side hangs up."""
    stream = connection.makefile("rb")
    if stream.read(len(_PREFACE)) != _PREFACE:
        return
    connection.sendall(_frame(_FRAME_SETTINGS, 0, b""))
    received = b""
    while head := stream.read(9):
        size, kind, number = (
            int.from_bytes(head[:3], "big"),
            head[3],
            int.from_bytes(head[5:], "big"),
        )
        body = stream.read(size)
        if kind != _FRAME_DATA or number != 1:
            continue
        grown = struct.pack(">I", size) if size else b""
        if grown:
            connection.sendall(_frame(_FRAME_WINDOW, 0, grown) + _frame(_FRAME_WINDOW, 1, grown))
        received += body
        while len(received) >= 24:
            length = 24 + struct.unpack_from("<Q", received, 8)[0]
            if len(received) < length:
                break
            message, received = received[24:length], received[length:]
            request = decoded(message[8:])[0] if message else None
            if request:
                connection.sendall(_frame(_FRAME_DATA, 1, _wrapped(answer(request))))


def _frame(kind: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + body


def _wrapped(content: dict[str, Any]) -> bytes:
    payload = struct.pack("<II", _PAYLOAD, 5) + encoded(content)
    return struct.pack("<IIQQ", _MESSAGE, _ALWAYS | _HAS_DATA, len(payload), 2) + payload


def encoded(value: Any) -> bytes:
    """A value as an object; whole numbers are signed."""
    if value is None:
        return struct.pack("<I", _NULL)
    if isinstance(value, bool):
        return struct.pack("<II", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<Iq", _INT, value)
    if isinstance(value, str):
        text = value.encode() + b"\0"
        return struct.pack("<II", _TEXT, len(text)) + _filled(text)
    if isinstance(value, uuid.UUID):
        return struct.pack("<I", _UUID) + value.bytes
    if isinstance(value, list):
        items = b"".join(map(encoded, value))
        return struct.pack("<III", _LIST, 4 + len(items), len(value)) + items
    items = b"".join(_filled(key.encode() + b"\0") + encoded(item) for key, item in value.items())
    return struct.pack("<III", _MAP, 4 + len(items), len(value)) + items


def decoded(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The value of the object at an offset, and the offset after it."""
    [kind] = struct.unpack_from("<I", data, at)
    at += 4
    if kind == _NULL:
        return None, at
    if kind == _BOOL:
        return bool(struct.unpack_from("<I", data, at)[0]), at + 4
    if kind in (_INT, _UINT, _DOUBLE):
        form = {_INT: "<q", _UINT: "<Q", _DOUBLE: "<d"}[kind]
        return struct.unpack_from(form, data, at)[0], at + 8
    if kind == _UUID:
        return uuid.UUID(bytes=data[at : at + 16]), at + 16
    [size] = struct.unpack_from("<I", data, at)
    if kind in (_DATA, _TEXT):
        content = data[at + 4 : at + 4 + size]
        after = at + 4 + -(-size // 4) * 4
        return (content.rstrip(b"\0").decode() if kind == _TEXT else content), after
    [count] = struct.unpack_from("<I", data, at + 4)
    return _collection(kind, count, data, at + 8)


def _collection(kind: int, count: int, data: bytes, at: int) -> tuple[Any, int]:
    items: list[Any] = []
    keys: list[str] = []
    for _ in range(count):
        if kind == _MAP:
            end = data.index(b"\0", at)
            keys.append(data[at:end].decode())
            at += -(-(end + 1 - at) // 4) * 4
        item, at = decoded(data, at)
        items.append(item)
    return (dict(zip(keys, items, strict=True)) if kind == _MAP else items), at


def _filled(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
