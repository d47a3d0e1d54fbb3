"""Where adb packets travel without a server: a TCP connection, or USB through adb-shell."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter
from typing import Any, Protocol

from etdeploy.devices.adb.errors import (
    AdbBusyError,
    AdbError,
    AdbGoneError,
    AdbRefusedError,
    AdbStateError,
    AdbUnreachableError,
)
from etdeploy.devices.adb.stream import Buffer, Patience, SocketStream, receive_exactly

_CONNECT_S = 5.0
_USB_SLICE_S = 0.5


class Pipe(Protocol):
    """Carries whole buffers both ways; `patience` may be changed between two of them."""

    patience: Patience

    def send(self, data: Buffer, more: bool = False) -> None: ...

    def receive_exactly(self, size: int) -> bytes: ...

    def has_input(self) -> bool: ...

    def close(self) -> None: ...


class TcpPipe(SocketStream):
    """adbd on a TCP port."""

    def __init__(self, host: str, port: int, patience: Patience) -> None:
        try:
            connection = socket.create_connection((host, port), timeout=_CONNECT_S)
        except socket.gaierror as error:
            raise AdbUnreachableError(f"the name {host} is not known") from error
        except TimeoutError as error:
            raise AdbUnreachableError(f"no answer within {_CONNECT_S:g} s") from error
        except OSError as error:
            raise AdbUnreachableError(error.strerror or str(error)) from error
        super().__init__(connection, patience)

    def receive_exactly(self, size: int) -> bytes:
        return receive_exactly(self, size)


class UsbPipe:
    """The adb interface of a phone, through adb-shell and libusb.

    Args:
        transport: An adb_shell UsbTransport.
        patience: How long to wait.
    """

    def __init__(self, transport: Any, patience: Patience) -> None:
        self._transport = transport
        self.patience = patience
        try:
            transport.connect(_CONNECT_S)
        except Exception as error:  # libusb's errors have no base class that is always importable
            raise _usb_error(error) from error

    def send(self, data: Buffer, more: bool = False) -> None:  # noqa: ARG002 - each is a transfer
        from adb_shell.exceptions import UsbWriteFailedError

        self.patience.check(time.monotonic())
        try:
            self._transport.bulk_write(bytes(data), self.patience.idle_s)
        except UsbWriteFailedError as error:
            raise AdbGoneError(f"the USB connection broke: {error}") from error

    def receive_exactly(self, size: int) -> bytes:
        from adb_shell.exceptions import UsbReadFailedError

        since = time.monotonic()
        data = bytearray()
        while len(data) < size:
            slice_s = min(self.patience.check(since), _USB_SLICE_S)
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


def usb_transport_of(serial: str) -> Any:
    """The phone with a serial number, wherever it is on USB now.

    A phone that was plugged in again, or whose debugging was switched, has another address.

    Raises:
        AdbStateError: It is not connected, or this user has no permission to open it.
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
