"""A device that is reached directly, over TCP or USB, where no adb server has it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from etdeploy.devices.adb.errors import (
    AdbDroppedError,
    AdbError,
    AdbGoneError,
    AdbUnreachableError,
)
from etdeploy.devices.adb.keys import Signer, key_path, user_signer
from etdeploy.devices.adb.pipes import Pipe, TcpPipe, UsbPipe, usb_transport_of
from etdeploy.devices.adb.stream import Buffer, Patience, Stream
from etdeploy.devices.adb.wire import WireConnection, WireStream

_CONFIRM_S = 10.0
# adbd names a connection after its file descriptor, and drops a new one while the last one with
# that number is being taken apart: now and then when one follows another at once.
_MORE_GREETINGS, _PAUSE_S = 2, 0.1


def _user_key() -> Signer:
    return user_signer(key_path())


class DirectTransport:
    """A connection to a device, made on first use, and again after it broke.

    Args:
        connect: Opens the pipe.
        description: How the device is reached, for people.
        signer: Returns the user's key.
        confirm_s: How long to wait for the user's consent on the device's screen.
    """

    def __init__(
        self,
        connect: Callable[[Patience], Pipe],
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

    def open(self, service: str, patience: Patience) -> Stream:
        with self._broken_on_error():
            connection = self._connection or self._connected(patience)
            return _GuardedStream(self, connection.open(service, patience))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def _connected(self, patience: Patience) -> WireConnection:
        for _ in range(_MORE_GREETINGS):
            with contextlib.suppress(AdbDroppedError):
                return self._greeted(patience)
            self.close()
            time.sleep(_PAUSE_S)
        return self._greeted(patience)

    def _greeted(self, patience: Patience) -> WireConnection:
        connection = WireConnection(self._pipe(patience), self._signer, self._confirm_s)
        self._connection = connection
        connection.connect()
        self._was_connected = True
        return connection

    def _pipe(self, patience: Patience) -> Pipe:
        try:
            return self._connect(patience.for_opening)
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
    def patience(self) -> Patience:
        return self.stream.patience

    @patience.setter
    def patience(self, patience: Patience) -> None:
        self.stream.patience = patience

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
    return DirectTransport(lambda patience: TcpPipe(host, port, patience), "TCP")


def usb_transport(serial: str, find: Callable[[str], Any] = usb_transport_of) -> DirectTransport:
    """A phone on USB; `find` gives the adb_shell UsbTransport that it has now."""
    return DirectTransport(lambda patience: UsbPipe(find(serial), patience), "USB")
