"""The server: an address, and uvicorn on it until a signal."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

import uvicorn
from starlette.types import ASGIApp

from etdeploy.core.errors import UsageError

# What answers have to end when the server is stopped.
_GRACE_S = 2
_OWN_HOST = "Name an address of this machine: --host 127.0.0.1, or 0.0.0.0 for all"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Bind an address, before an export takes minutes.

    Raises UsageError if that is not possible.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(
            f"{host} is not an address of this machine: {error.strerror or error}",
            remedy=_OWN_HOST,
        ) from error
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen()
        except OSError as error:
            is_elsewhere = error.errno == errno.EADDRNOTAVAIL
            raise UsageError(
                f"cannot listen on {host}, port {port}: {error.strerror or error}",
                remedy=_OWN_HOST if is_elsewhere else "Choose another port: --port 0 is a free one",
            ) from error
        yield bound


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: `run_server` handles signals, and has to restore those of the command line."""
        yield


async def run_server(app: ASGIApp, listener: socket.socket) -> None:
    """Serve an application until Ctrl-C or SIGTERM; a second one ends open answers at once."""
    config = uvicorn.Config(
        app, log_config=None, log_level="critical", access_log=False, lifespan="off",
        http="h11", ws="none", timeout_graceful_shutdown=_GRACE_S, server_header=False,
    )  # fmt: skip
    server = _Server(config)
    with _stopped_by_signals(server):
        await server.serve(sockets=[listener])


@contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in before:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
