"""Which iPhones are attached, asked of usbmuxd: the daemon that Linux and macOS have for them.

A message is a header of four numbers (length with header, version 1, kind 8, tag; little endian)
and a property list. Asking costs a millisecond; where no phone was ever attached, Linux runs no
daemon.
"""

from __future__ import annotations

import os
import plistlib
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

VARIABLE = "USBMUXD_SOCKET_ADDRESS"
"""Names another socket: a path, UNIX:PATH or HOST:PORT."""

_SOCKET = "/var/run/usbmuxd"
_HEADER = struct.Struct("<4I")
_WAIT_S = 5.0
_MOST_BYTES = 1 << 20


class MuxError(Exception):
    """What listens on the socket does not answer like usbmuxd."""


@dataclass(frozen=True)
class Attached:
    """A phone that usbmuxd knows.

    Attributes:
        udid: As Apple's tools write it: `00008130-001A2B3C4D5E6F70`, or 40 digits of an old phone.
        connection: USB or Network.
    """

    udid: str
    connection: str


def socket_address() -> str:
    """Where usbmuxd listens: a path, or HOST:PORT."""
    return (os.environ.get(VARIABLE) or _SOCKET).removeprefix("UNIX:")


def attached() -> list[Attached] | None:
    """Every attached phone, once, preferring its cable; None where no usbmuxd runs."""
    try:
        with _connected() as connection:
            answer = _asked(connection, {"MessageType": "ListDevices"})
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise MuxError(str(error)) from error
    return parse_devices(answer)


def parse_devices(answer: dict[str, Any]) -> list[Attached]:
    """The phones in an answer to ListDevices."""
    try:
        found = [
            Attached(dashed(str(p["SerialNumber"])), str(p["ConnectionType"]))
            for p in (device["Properties"] for device in answer["DeviceList"])
        ]
    except (KeyError, TypeError) as error:
        raise MuxError(f"its list of devices has no {error}") from error
    by_udid: dict[str, Attached] = {}
    for phone in found:
        if phone.connection == "USB" or phone.udid not in by_udid:
            by_udid[phone.udid] = phone
    return list(by_udid.values())


def dashed(serial: str) -> str:
    """A UDID as Apple's tools write it; usbmuxd on Linux leaves the dash out."""
    match = re.fullmatch(r"([0-9A-Fa-f]{8})-?([0-9A-Fa-f]{16})", serial)
    return f"{match[1]}-{match[2]}".upper() if match else serial


def _connected() -> socket.socket:
    address = socket_address()
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        return socket.create_connection((host.strip("[]"), int(port)), timeout=_WAIT_S)
    if not Path(address).exists():
        raise FileNotFoundError(address)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_WAIT_S)
    try:
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _asked(connection: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    body = plistlib.dumps(message)
    connection.sendall(_HEADER.pack(_HEADER.size + len(body), 1, 8, 1) + body)
    size = _HEADER.unpack(_exactly(connection, _HEADER.size))[0] - _HEADER.size
    if not 0 < size <= _MOST_BYTES:
        raise MuxError(f"a message of {size} bytes")
    try:
        answer = plistlib.loads(_exactly(connection, size))
    except (plistlib.InvalidFileException, ExpatError, ValueError) as error:
        raise MuxError("its answer is no property list") from error
    if not isinstance(answer, dict):
        raise MuxError("its answer is no dictionary")
    return answer


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise MuxError("it hung up")
        received += chunk
    return received
