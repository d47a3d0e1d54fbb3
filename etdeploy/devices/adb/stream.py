"""What both connections to a device provide: a stream of bytes to a service of its adbd."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, replace
from typing import Protocol

from etdeploy.core import cancel
from etdeploy.devices.adb.errors import AdbGoneError, AdbTimeoutError

_SLICE_S = 0.2
_BUFFER_BYTES = 1 << 20
# Measured: with a fourth of the buffer per call, this process, the adb server and adbd all work
# at the same time.
_BLOCK_BYTES = _BUFFER_BYTES // 4
_MSG_MORE = getattr(socket, "MSG_MORE", 0)
_QUICK_ACK = getattr(socket, "TCP_QUICKACK", None)


Buffer = bytes | memoryview


@dataclass(frozen=True)
class Patience:
    """How long a single read or write may wait, in seconds, and whether a stop request ends it.

    Opening a service has its own limit, since a program may be silent for as long as it runs, and
    an adb server or a device that hangs must not be mistaken for one. Cleaning up after a stop must
    not be stopped by the same request.
    """

    idle_s: float = 30.0
    heed_cancel: bool = True
    open_s: float = 10.0

    @property
    def for_opening(self) -> Patience:
        """The patience of each read and write until a service is open."""
        return replace(self, idle_s=self.open_s)

    def check(self, since: float) -> float:
        """The seconds to wait until the next check.

        Raises:
            Interrupted: The run was asked to stop.
            AdbTimeoutError: The time is up.
        """
        if self.heed_cancel:
            cancel.checkpoint()
        left_s = self.idle_s - (time.monotonic() - since)
        if left_s <= 0:
            raise AdbTimeoutError(f"no answer within {self.idle_s:g} s")
        return min(left_s, _SLICE_S)


class Stream(Protocol):
    """A connection to one service of the device.

    Attributes:
        patience: May be changed between two reads or writes.
    """

    patience: Patience

    @property
    def block_bytes(self) -> int:
        """The size of a `send` that goes fastest."""
        ...

    def send(self, data: Buffer) -> None:
        """Sends all of `data`; the caller may change it afterwards."""
        ...

    def receive(self, size: int) -> bytes:
        """Up to `size` bytes; none at the end of the stream."""
        ...

    def has_input(self) -> bool:
        """Whether `receive` would return at once."""
        ...

    def close(self) -> None: ...


class Transport(Protocol):
    """A connection to a device.

    Every method raises AdbError, or Interrupted where the patience heeds it.
    """

    @property
    def description(self) -> str:
        """How the device is reached, for people."""
        ...

    def open(self, service: str, patience: Patience) -> Stream:
        """A stream to a service, such as `sync:` or `exec:COMMAND`; connects when needed."""
        ...

    def close(self) -> None: ...


def receive_exactly(stream: Stream, size: int) -> bytes:
    """Exactly `size` bytes.

    Raises:
        AdbGoneError: The stream ended first.
    """
    parts = bytearray()
    while len(parts) < size:
        part = stream.receive(size - len(parts))
        if not part:
            raise AdbGoneError("the connection ended in the middle of an answer")
        parts += part
    return bytes(parts)


class SocketStream:
    """A stream on a socket that notices stop requests and a peer that disappeared."""

    def __init__(self, connection: socket.socket, patience: Patience) -> None:
        self._socket = connection
        self._is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
        self.patience = patience
        _set_up(connection)

    @property
    def block_bytes(self) -> int:
        return _BLOCK_BYTES

    def send(self, data: Buffer, more: bool = False) -> None:
        """Sends all of `data`, together with what follows at once where `more` does."""
        view = memoryview(data)
        flags = _MSG_MORE if more else 0
        since = time.monotonic()
        while view:
            self._socket.settimeout(self.patience.check(since))
            try:
                sent = self._socket.send(view, flags)
            except TimeoutError:
                continue
            except OSError as error:
                raise AdbGoneError(f"the connection broke: {error.strerror or error}") from error
            view = view[sent:]
            since = time.monotonic()

    def receive(self, size: int) -> bytes:
        since = time.monotonic()
        self._acknowledge()
        while True:
            self._socket.settimeout(self.patience.check(since))
            try:
                return self._socket.recv(size)
            except TimeoutError:
                continue
            except OSError as error:
                raise AdbGoneError(f"the connection broke: {error.strerror or error}") from error

    def _acknowledge(self) -> None:
        """Acknowledges at once what comes.

        The adb server keeps back a small answer until the one before was acknowledged (Nagle), and
        Linux waits 40 ms for something to send along; it forgets this option now and then (tcp(7)).
        """
        if _QUICK_ACK is not None and self._is_tcp:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def has_input(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self._socket.close()


def _set_up(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A phone that left the network answers no probe: 10 s + 3 x 5 s until that is noticed.
        for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
