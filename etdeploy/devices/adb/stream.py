"""What both connections to a device provide: a stream of bytes to a service of its adbd."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from etdeploy.core import cancel

_SLICE_S = 0.2
_BUFFER_BYTES = 1 << 20
# Measured: with a fourth of the buffer per call, this process, the adb server and adbd all work
# at the same time.
_BLOCK_BYTES = _BUFFER_BYTES // 4
_MSG_MORE = getattr(socket, "MSG_MORE", 0)
_QUICK_ACK = getattr(socket, "TCP_QUICKACK", None)


Buffer = bytes | memoryview


@dataclass(frozen=True)
class Timeouts:
    """How long a single read or write may wait, in seconds, and whether a stop request ends it.

    Opening a service has its own limit, since a program may be silent for as long as it runs, and
    an adb server or a device that hangs must not be mistaken for one. Cleaning up after a stop must
    not be stopped by the same request.
    """

    idle_s: float = 30.0
    heed_cancel: bool = True
    open_s: float = 10.0

    @property
    def for_opening(self) -> Timeouts:
        """The timeouts of each read and write until a service is open."""
        return replace(self, idle_s=self.open_s)

    def check(self, since: float) -> float:
        """The seconds to wait until the next check."""
        if self.heed_cancel:
            cancel.checkpoint()
        left_s = self.idle_s - (time.monotonic() - since)
        if left_s <= 0:
            raise AdbTimeoutError(f"no answer within {self.idle_s:g} s")
        return min(left_s, _SLICE_S)


class Stream(Protocol):
    """A connection to one service of the device.

    Attributes:
        timeouts: May be changed between two reads or writes.
    """

    timeouts: Timeouts

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

    Every method raises AdbError, or Interrupted where the timeouts heeds it.
    """

    @property
    def description(self) -> str:
        """How the device is reached, for people."""
        ...

    def open(self, service: str, timeouts: Timeouts) -> Stream:
        """A stream to a service, such as `sync:` or `exec:COMMAND`; connects when needed."""
        ...

    def close(self) -> None: ...


def receive_exactly(stream: Stream, size: int) -> bytes:
    """Exactly `size` bytes."""
    parts = bytearray()
    while len(parts) < size:
        part = stream.receive(size - len(parts))
        if not part:
            raise AdbGoneError("the connection ended in the middle of an answer")
        parts += part
    return bytes(parts)


class SocketStream:
    """A stream on a socket that notices stop requests and a peer that disappeared."""

    def __init__(self, connection: socket.socket, timeouts: Timeouts) -> None:
        self._socket = connection
        self._is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
        self.timeouts = timeouts
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
            self._socket.settimeout(self.timeouts.check(since))
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
            self._socket.settimeout(self.timeouts.check(since))
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


_CONNECT_S = 5.0
_USB_SLICE_S = 0.5


class Pipe(Protocol):
    """Carries whole buffers both ways; `timeouts` may be changed between two of them."""

    timeouts: Timeouts

    def send(self, data: Buffer, more: bool = False) -> None: ...

    def receive_exactly(self, size: int) -> bytes: ...

    def has_input(self) -> bool: ...

    def close(self) -> None: ...


class TcpPipe(SocketStream):
    """adbd on a TCP port."""

    def __init__(self, host: str, port: int, timeouts: Timeouts) -> None:
        try:
            connection = socket.create_connection((host, port), timeout=_CONNECT_S)
        except socket.gaierror as error:
            raise AdbUnreachableError(f"the name {host} is not known") from error
        except TimeoutError as error:
            raise AdbUnreachableError(f"no answer within {_CONNECT_S:g} s") from error
        except OSError as error:
            raise AdbUnreachableError(error.strerror or str(error)) from error
        super().__init__(connection, timeouts)

    def receive_exactly(self, size: int) -> bytes:
        return receive_exactly(self, size)


class UsbPipe:
    """The adb interface of a phone, through adb-shell and libusb."""

    def __init__(self, transport: Any, timeouts: Timeouts) -> None:
        self._transport = transport
        self.timeouts = timeouts
        try:
            transport.connect(_CONNECT_S)
        except Exception as error:  # libusb's errors have no base class that is always importable
            raise _usb_error(error) from error

    def send(self, data: Buffer, more: bool = False) -> None:  # noqa: ARG002 - each is a transfer
        from adb_shell.exceptions import UsbWriteFailedError

        self.timeouts.check(time.monotonic())
        try:
            self._transport.bulk_write(bytes(data), self.timeouts.idle_s)
        except UsbWriteFailedError as error:
            raise AdbGoneError(f"the USB connection broke: {error}") from error

    def receive_exactly(self, size: int) -> bytes:
        from adb_shell.exceptions import UsbReadFailedError

        since = time.monotonic()
        data = bytearray()
        while len(data) < size:
            slice_s = min(self.timeouts.check(since), _USB_SLICE_S)
            try:
                data += self._transport.bulk_read(size - len(data), slice_s)
            except UsbReadFailedError as error:
                if type(error.usb_error).__name__ != "USBErrorTimeout":
                    raise AdbGoneError(f"the USB connection broke: {error}") from error
        return bytes(data)

    def has_input(self) -> bool:
        # libusb cannot tell without reading; the device's answer is read after the last block.
        return False

    def close(self) -> None:
        self._transport.close()


def find_usb_transport(serial: str) -> Any:
    """The phone with a serial number, wherever it is on USB now.

    A phone that was plugged in again, or whose debugging was switched, has another address.
    """
    found = usb_transports()
    transport = found.get(serial)
    if transport is None:
        raise AdbStateError("no permissions" if serial in found else None)
    return transport


def usb_transports() -> dict[str, Any]:
    """The phones on USB by serial number; none where libusb is not installed.

    A phone whose USB interface this user may not open has no transport, and is named by its port;
    so are phones with one serial number.
    """
    try:
        from adb_shell.transport.usb_transport import UsbTransport
    except (ImportError, OSError):
        return {}
    found: list[tuple[str, str, Any]] = []
    # A phone that is unplugged while libusb looks ends the listing.
    with contextlib.suppress(Exception):
        for transport in UsbTransport.find_all_adb_devices():
            port = f"usb-{'.'.join(map(str, transport.port_path))}"
            try:
                found.append((str(transport.serial_number), port, transport))
            except Exception:  # as above
                found.append((port, port, None))
    counts = Counter(serial for serial, _, _ in found)
    return {s if counts[s] == 1 else port: transport for s, port, transport in found}


def _usb_error(error: Exception) -> AdbError:
    """What libusb's error means, by its class."""
    kind = type(error).__name__
    if kind in ("USBErrorNoDevice", "USBErrorNotFound"):
        return AdbGoneError("it left the USB port")
    if kind == "USBErrorAccess":
        return AdbStateError("no permissions")
    if kind == "USBErrorBusy":
        return AdbBusyError("another program holds its USB interface")
    return AdbRefusedError(f"its USB interface cannot be opened: {kind} {error}")


class AdbError(Exception):
    """The connection to the device failed; the message is for the user."""


class AdbGoneError(AdbError):
    """The connection ended prematurely."""


class AdbDroppedError(AdbGoneError):
    """The connection ended before the device answered anything."""


class AdbTimeoutError(AdbError):
    """Nothing was sent or received for too long."""


class AdbRefusedError(AdbError):
    """The device refused; the message is what it said."""


class AdbServerError(AdbError):
    """The adb server itself ended, hangs, or does not answer like one."""


class AdbStateError(AdbError):
    """The device is known and cannot be used."""

    def __init__(self, state: str | None) -> None:
        super().__init__(f"its state is {state}" if state else "it is not connected any more")
        self.state = state


class AdbUnreachableError(AdbError):
    """Nothing has ever answered at the device's address."""


class AdbBusyError(AdbError):
    """Another program holds the device's USB interface."""


class AdbTlsError(AdbError):
    """The device requires an encrypted connection, which only the adb program speaks."""


class AdbReconnectError(AdbError):
    """The adb server could not reconnect to a device on the network."""


class AdbKeyError(AdbError):
    """This computer's key cannot be read or created."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(problem)
        self.path = path


class AdbBrokenKeyError(AdbKeyError):
    """The file of this computer's key holds something else."""
