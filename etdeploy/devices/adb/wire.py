"""Adb's packets (protocol.txt in AOSP): the connection to adbd, and the streams in it.

Files go at the speed of the cable only with packets of the size that the device allows and without
the byte sum of old versions, so the protocol is implemented here; adb-shell provides USB and keys.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from etdeploy.devices.adb.stream import (
    AdbBrokenKeyError,
    AdbDroppedError,
    AdbError,
    AdbGoneError,
    AdbKeyError,
    AdbRefusedError,
    AdbStateError,
    AdbTimeoutError,
    AdbTlsError,
    AdbUnreachableError,
    Buffer,
    Pipe,
    Stream,
    TcpPipe,
    Timeouts,
    UsbPipe,
    find_usb_transport,
)

# From this version on, receivers ignore the byte sum.
_VERSION = 0x01000001
# Measured on loopback: adbd takes packets of 256 to 768 KiB faster than those of its limit, 1 MiB.
_MAX_DATA = 3 << 18
_HEADER = struct.Struct("<4s5I")

_AUTH_TOKEN, _AUTH_SIGNATURE, _AUTH_PUBLIC_KEY = 1, 2, 3


@dataclass(frozen=True)
class Packet:
    """One adb packet."""

    command: bytes
    arg0: int
    arg1: int
    data: Buffer = b""


class WireConnection:
    """A connection to adbd."""

    def __init__(self, pipe: Pipe, signer: Callable[[], Signer], confirm_s: float) -> None:
        self._pipe = pipe
        self._signer = signer
        self._confirm_s = confirm_s
        self._byte_sum = True
        self._streams: dict[int, WireStream] = {}
        self._last_id = 0
        self.max_data = 4096

    def connect(self) -> None:
        """Greets the device and authenticates."""
        try:
            self._send(Packet(b"CNXN", _VERSION, _MAX_DATA, b"host::\0"))
            answer = self._receive()
        except AdbGoneError as error:
            raise AdbDroppedError(str(error)) from error
        if answer.command == b"AUTH":
            answer = self._authenticate(answer)
        if answer.command == b"STLS":
            raise AdbTlsError("the device requires an encrypted connection")
        if answer.command != b"CNXN":
            raise AdbGoneError(f"the device answered {answer.command!r} to the greeting")
        self._byte_sum = answer.arg0 < _VERSION
        self.max_data = min(_MAX_DATA, answer.arg1)

    def open(self, service: str, timeouts: Timeouts) -> WireStream:
        """A stream to a service."""
        self._pipe.timeouts = timeouts.for_opening
        self._last_id += 1
        stream = WireStream(self, self._last_id, timeouts)
        self._streams[stream.local_id] = stream
        self._send(Packet(b"OPEN", stream.local_id, 0, service.encode() + b"\0"))
        while not stream.acknowledged and not stream.ended:
            self._pump()
        if not stream.acknowledged:
            raise AdbRefusedError(f"the device has no service {service.partition(':')[0]!r}")
        return stream

    def close(self) -> None:
        """Hangs up."""
        self._pipe.close()

    def write(self, stream: WireStream, data: Buffer) -> None:
        """Sends one packet of a stream, as soon as the device has taken the one before.

        The caller makes the next packet while the device works on this one.
        """
        self._pipe.timeouts = stream.timeouts
        while not stream.acknowledged and not stream.ended:
            self._pump()
        if stream.ended:
            raise AdbGoneError("the device closed the stream")
        stream.acknowledged = False
        self._send(Packet(b"WRTE", stream.local_id, stream.remote_id, data))

    def fill(self, stream: WireStream) -> None:
        """Waits until the stream has input or has ended."""
        self._pipe.timeouts = stream.timeouts
        while not stream.inbox and not stream.ended:
            self._pump()

    def drain(self, stream: WireStream) -> bool:
        """Takes in what has already come; whether the stream has input then."""
        self._pipe.timeouts = stream.timeouts
        while not stream.inbox and not stream.ended and self._pipe.has_input():
            self._pump()
        return bool(stream.inbox) or stream.ended

    def end(self, stream: WireStream) -> None:
        """Closes our side of a stream."""
        self._pipe.timeouts = stream.timeouts
        if self._streams.pop(stream.local_id, None) and not stream.ended:
            self._send(Packet(b"CLSE", stream.local_id, stream.remote_id))

    def _authenticate(self, challenge: Packet) -> Packet:
        signer = self._signer()
        self._send(Packet(b"AUTH", _AUTH_SIGNATURE, 0, signer.Sign(bytes(challenge.data))))
        answer = self._receive()
        if answer.command != b"AUTH":
            return answer
        self._send(Packet(b"AUTH", _AUTH_PUBLIC_KEY, 0, bytes(signer.GetPublicKey()) + b"\0"))
        self._pipe.timeouts = replace(self._pipe.timeouts, idle_s=self._confirm_s)
        try:
            while answer.command == b"AUTH":
                answer = self._receive()
        except (AdbTimeoutError, AdbGoneError) as error:
            raise AdbStateError("unauthorized") from error
        return answer

    def _pump(self) -> None:
        """Takes in one packet, whichever stream it is for."""
        packet = self._receive()
        stream = self._streams.get(packet.arg1)
        if stream is None:
            return
        if packet.command == b"OKAY":
            stream.remote_id = packet.arg0
            stream.acknowledged = True
        elif packet.command == b"WRTE":
            stream.inbox.append(bytes(packet.data))
            self._send(Packet(b"OKAY", stream.local_id, stream.remote_id))
        elif packet.command == b"CLSE":
            stream.ended = True

    def _send(self, packet: Packet) -> None:
        total = sum(packet.data) if self._byte_sum else 0
        number = int.from_bytes(packet.command, "little")
        header = _HEADER.pack(
            packet.command,
            packet.arg0,
            packet.arg1,
            len(packet.data),
            total & 0xFFFFFFFF,
            number ^ 0xFFFFFFFF,
        )
        self._pipe.send(header, more=bool(packet.data))
        if packet.data:
            self._pipe.send(packet.data)

    def _receive(self) -> Packet:
        command, arg0, arg1, size, _, magic = _HEADER.unpack(
            self._pipe.receive_exactly(_HEADER.size)
        )
        if magic != int.from_bytes(command, "little") ^ 0xFFFFFFFF or size > _MAX_DATA:
            raise AdbGoneError("what answers there does not speak adb")
        return Packet(command, arg0, arg1, self._pipe.receive_exactly(size) if size else b"")


@dataclass
class WireStream:
    """A stream in a connection; `ended` once the device closed its side."""

    connection: WireConnection
    local_id: int
    timeouts: Timeouts
    remote_id: int = 0
    acknowledged: bool = False
    ended: bool = False
    inbox: deque[bytes] = field(default_factory=deque)

    @property
    def block_bytes(self) -> int:
        return self.connection.max_data

    def send(self, data: Buffer) -> None:
        view = memoryview(data)
        size = self.connection.max_data
        for start in range(0, len(data), size):
            self.connection.write(self, view[start : start + size])

    def receive(self, size: int) -> bytes:
        self.connection.fill(self)
        if not self.inbox:
            return b""
        data = self.inbox.popleft()
        if len(data) > size:
            self.inbox.appendleft(data[size:])
        return data[:size]

    def has_input(self) -> bool:
        return self.connection.drain(self)

    def close(self) -> None:
        self.connection.end(self)


class Signer(Protocol):
    """Signs a device's challenge."""

    def Sign(self, data: bytes) -> bytes: ...  # noqa: N802 - named by adb-shell

    def GetPublicKey(self) -> bytes: ...  # noqa: N802 - named by adb-shell


def key_path() -> Path:
    """The private key's path, the adb program's own."""
    folder = os.environ.get("ANDROID_USER_HOME")
    return (Path(folder) if folder else Path.home() / ".android") / "adbkey"


def user_signer(path: Path) -> Signer:
    """The user's key; a new one is made when there is none, readable by the user alone."""
    try:
        return _signer(path)
    except IsADirectoryError as error:
        raise AdbBrokenKeyError(path, "it is a folder") from error
    except OSError as error:
        problem = f"{error.filename or path}: {error.strerror or error}"
        raise AdbKeyError(path, problem) from error
    except (ValueError, TypeError) as error:
        # The libraries' own messages are several lines long.
        problem = "it does not hold an RSA key in PEM format without a password"
        raise AdbBrokenKeyError(path, problem) from error


def _signer(path: Path) -> Signer:
    from adb_shell.auth.keygen import keygen, write_public_keyfile
    from adb_shell.auth.sign_cryptography import CryptographySigner

    public = path.with_name(path.name + ".pub")
    if not path.exists():
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        _make_key(path, keygen)
    _require_rsa(path)
    if not public.is_file():
        write_public_keyfile(str(path), str(public))
    signer: Signer = CryptographySigner(str(path))
    return signer


def _require_rsa(path: Path) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, RSAPrivateKey):
        raise ValueError(f"a key of the kind {type(key).__name__}")


def _make_key(path: Path, generate: Callable[[str], None]) -> None:
    """Makes the key in a private folder, so that it is never readable by others or half written."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder) / path.name
        generate(str(new))
        new.chmod(0o600)
        # Another process may have made one meanwhile: that one stays.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)


_CONFIRM_S = 10.0
# adbd names a connection after its file descriptor, and drops a new one while the last one with
# that number is being taken apart: now and then when one follows another at once.
_MORE_GREETINGS, _PAUSE_S = 2, 0.1


def _user_key() -> Signer:
    return user_signer(key_path())


class DirectTransport:
    """A connection to a device, made on first use, and again after it broke."""

    def __init__(
        self,
        connect: Callable[[Timeouts], Pipe],
        description: str,
        signer: Callable[[], Signer] = _user_key,
        confirm_s: float = _CONFIRM_S,
    ) -> None:
        self._connect = connect
        self._signer = signer
        self._confirm_s = confirm_s
        self._connection: WireConnection | None = None
        self._was_connected = False
        self.description = description

    def open(self, service: str, timeouts: Timeouts) -> Stream:
        with self._broken_on_error():
            connection = self._connection or self._connected(timeouts)
            return _GuardedStream(self, connection.open(service, timeouts))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def _connected(self, timeouts: Timeouts) -> WireConnection:
        for _ in range(_MORE_GREETINGS):
            with contextlib.suppress(AdbDroppedError):
                return self._greeted(timeouts)
            self.close()
            time.sleep(_PAUSE_S)
        return self._greeted(timeouts)

    def _greeted(self, timeouts: Timeouts) -> WireConnection:
        connection = WireConnection(self._pipe(timeouts), self._signer, self._confirm_s)
        self._connection = connection
        connection.connect()
        self._was_connected = True
        return connection

    def _pipe(self, timeouts: Timeouts) -> Pipe:
        try:
            return self._connect(timeouts.for_opening)
        except AdbUnreachableError as error:
            if not self._was_connected:
                raise
            raise AdbGoneError(str(error)) from error

    @contextlib.contextmanager
    def _broken_on_error(self) -> Iterator[None]:
        # After an error or a stop, half a packet may be under way: only a new connection is clean.
        try:
            yield
        except BaseException:
            self.close()
            raise

    def guarded(self, stream: WireStream) -> contextlib.AbstractContextManager[None]:
        """Drops the connection when the block fails, if the stream is still in it."""
        if stream.connection is self._connection:
            return self._broken_on_error()
        raise AdbGoneError("the connection was closed")


@dataclass
class _GuardedStream:
    """A stream whose failure drops the connection that it is in."""

    transport: DirectTransport
    stream: WireStream

    @property
    def timeouts(self) -> Timeouts:
        return self.stream.timeouts

    @timeouts.setter
    def timeouts(self, timeouts: Timeouts) -> None:
        self.stream.timeouts = timeouts

    @property
    def block_bytes(self) -> int:
        return self.stream.block_bytes

    def send(self, data: Buffer) -> None:
        with self.transport.guarded(self.stream):
            self.stream.send(data)

    def receive(self, size: int) -> bytes:
        with self.transport.guarded(self.stream):
            return self.stream.receive(size)

    def has_input(self) -> bool:
        with self.transport.guarded(self.stream):
            return self.stream.has_input()

    def close(self) -> None:
        with contextlib.suppress(AdbError), self.transport.guarded(self.stream):
            self.stream.close()


def tcp_transport(host: str, port: int) -> DirectTransport:
    """The adbd that listens on a TCP port."""
    return DirectTransport(lambda timeouts: TcpPipe(host, port, timeouts), "TCP")


def usb_transport(serial: str, find: Callable[[str], Any] = find_usb_transport) -> DirectTransport:
    """A phone on USB; `find` gives the adb_shell UsbTransport that it has now."""
    return DirectTransport(lambda timeouts: UsbPipe(find(serial), timeouts), "USB")
