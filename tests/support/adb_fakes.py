"""Stand-ins for what cannot be had for real, at the level of adb's protocols.

`FakeServer` answers what an adb server answers about devices that cannot be used; `FakeAdbd` is a
phone that asks for a key, or for TLS.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class _Serving(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def _serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[int]:
    with _Serving(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def fake_server(
    devices: str | Sequence[str],
    transport_answer: bytes | None = b"OKAY",
    service_answer: bytes | None = b"",
    requests: list[str] | None = None,
    connect_answers: Sequence[str] = ("who knows",),
) -> Iterator[int]:
    """An adb server; its port. An answer of None never comes, an empty one hangs up.

    Args:
        devices: What `host:devices-l` gives; of several, one after the other, the last for ever.
        transport_answer: To `host:transport:SERIAL`; `FAIL` with a text, or OKAY.
        service_answer: To what is asked of the device after that.
        requests: Gets what was asked of the server.
        connect_answers: To `host:connect:SERIAL`, one after the other, the last for ever.
    """
    lists = [devices] if isinstance(devices, str) else list(devices)
    said = list(connect_answers)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                size = int(_read(self.request, 4), 16)
                request = _read(self.request, size).decode()
                if requests is not None:
                    requests.append(request)
                if request == "host:devices-l":
                    data = (lists.pop(0) if len(lists) > 1 else lists[0]).encode()
                    self.request.sendall(b"OKAY%04x" % len(data) + data)
                elif request.startswith("host:connect:"):
                    data = (said.pop(0) if len(said) > 1 else said[0]).encode()
                    self.request.sendall(b"OKAY%04x" % len(data) + data)
                elif request.startswith("host:disconnect:"):
                    self.request.sendall(b"OKAY%04x" % 12 + b"disconnected")
                elif request.endswith(":reconnect"):
                    self.request.sendall(b"OKAY%04x" % 12 + b"reconnecting")
                elif request.startswith("host:transport:"):
                    self.answer(transport_answer)
                    if transport_answer == b"OKAY":
                        _read(self.request, int(_read(self.request, 4), 16))
                        self.answer(service_answer)
                else:
                    self.request.sendall(b"FAIL%04x" % 15 + b"unknown request")

        def answer(self, data: bytes | None) -> None:
            # Without an answer, it waits for the other side to hang up.
            self.request.sendall(data) if data is not None else self.request.recv(1)

    with _serving(Handler) as port:
        yield port


def fail(text: str) -> bytes:
    """A refusal in the server's protocol."""
    return b"FAIL%04x" % len(text) + text.encode()


@contextmanager
def fake_adbd(greeting: bytes, knows_key: bool = False, drops: int = 0) -> Iterator[int]:
    """A phone; its port.

    Args:
        greeting: Its answer to CNXN: AUTH, STLS, or bytes of something that is no adbd.
        knows_key: Whether it accepts the first signature.
        drops: How many connections it hangs up on before it answers one.
    """
    left = [None] * drops

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError, ConnectionError):
                if left:
                    left.pop()
                    return
                if greeting not in (b"AUTH", b"STLS"):
                    self.request.recv(4096)
                    self.request.sendall(greeting)
                    return
                _read_packet(self.request)
                self.request.sendall(_packet(greeting, 1, 0, b"t" * 20))
                _read_packet(self.request)
                if knows_key:
                    self.request.sendall(_packet(b"CNXN", 0x01000001, 4096, b"device::\0"))
                    _refuse_streams(self.request)
                    return
                self.request.sendall(_packet(b"AUTH", 1, 0, b"u" * 20))
                while True:
                    _read_packet(self.request)

    with _serving(Handler) as port:
        yield port


def _refuse_streams(connection: socket.socket) -> None:
    while True:
        command, arg0, _ = _read_packet(connection)
        if command == b"OPEN":
            connection.sendall(_packet(b"CLSE", 0, arg0))


def _packet(command: bytes, arg0: int, arg1: int, data: bytes = b"") -> bytes:
    magic = int.from_bytes(command, "little") ^ 0xFFFFFFFF
    return struct.pack("<4s5I", command, arg0, arg1, len(data), sum(data), magic) + data


def _read_packet(connection: socket.socket) -> tuple[bytes, int, bytes]:
    command, arg0, _, size, _, _ = struct.unpack("<4s5I", _read(connection, 24))
    return command, arg0, _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other side hung up")
        data += part
    return data
