"""Which iPhones usbmuxd knows."""

from __future__ import annotations

import plistlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etdeploy.devices.ios.command import (
    Attached,
    MuxError,
    list_attached,
    parse_devices,
)
from tests.support.ios_phone import UDID, IosPhone


def device(serial: str, connection: str = "USB") -> dict[str, Any]:
    properties = {"SerialNumber": serial, "ConnectionType": connection, "DeviceID": 3}
    return {"MessageType": "Attached", "DeviceID": 3, "Properties": properties}


def test_a_phone_on_both_ways_is_listed_once_by_its_cable() -> None:
    old, new = "f" * 40, "00008130001A2B3C4D5E6F70"
    answer = {
        "DeviceList": [device(new, "Network"), device(new), device(new, "Network"), device(old)]
    }
    assert parse_devices(answer) == [Attached(UDID, "USB"), Attached(old, "USB")]


@pytest.mark.parametrize("answer", [{}, {"DeviceList": [{}]}, {"DeviceList": 3}])
def test_an_answer_without_devices_is_none(answer: dict[str, Any]) -> None:
    with pytest.raises(MuxError):
        parse_devices(answer)


def test_it_is_asked_over_its_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with IosPhone(tmp_path) as phone:
        for name, value in phone.environment.items():
            monkeypatch.setenv(name, value)
        assert list_attached() == [Attached(UDID, "USB")]
        phone.attached = False
        assert list_attached() == []


@contextmanager
def answering(content: bytes) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(content)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack("<4I", 20, 1, 8, 1) + b"none",
        struct.pack("<4I", 1 << 31, 1, 8, 1),
        struct.pack("<4I", 16 + len(plistlib.dumps([])), 1, 8, 1) + plistlib.dumps([]),
    ],
)
def test_another_server_is_recognized(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(content) as address:
        monkeypatch.setenv("USBMUXD_SOCKET_ADDRESS", address)
        with pytest.raises(MuxError):
            list_attached()
