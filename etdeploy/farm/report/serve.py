"""Serves the dashboard live. It reads no file: every page is made of values, by its exact name."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from etdeploy.core.errors import EtdeployError, UsageError
from etdeploy.farm.report.pages import INDEX, Dashboard, page_of
from etdeploy.farm.spec.model import is_loopback
from etdeploy.report.formatting import finite
from etdeploy.report.html.page import render

DEFAULT = "127.0.0.1:8033"
STATUS = "status.json"
_EVERY_S = 10
# A page that is asked for by several is made once.
_FRESH_S = 3.0
# A newer one is waited for so long; a farm with hundreds of pairs takes longer, and the one before
# is shown meanwhile, unless that is too old to be of use.
_PATIENCE_S = 0.5
_OLD_S = 60.0
_REQUEST_S = 15.0
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    # The page names its own scripts by their digests; this is what a page cannot say of itself.
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_HIGHEST_PORT = 65_535


def address_of(text: str) -> tuple[str, int]:
    """`ADDRESS:PORT`, `:PORT` or `PORT`, by default of this machine alone.

    Raises:
        UsageError: It is none of these.
    """
    address, _, port = text.rpartition(":")
    address = address.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > _HIGHEST_PORT:
        raise UsageError(
            f"{text!r} is not ADDRESS:PORT",
            place="--serve",
            remedy=f"For this machine alone: --serve {DEFAULT}",
        )
    return address, int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], board: Callable[[], Dashboard]) -> None:
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        self._board, self._lock = board, threading.Lock()
        self._kept: tuple[float, Dashboard] | None = None
        self._trouble: EtdeployError | None = None
        self._making: threading.Thread | None = None
        self.is_local = is_loopback(address[0])
        super().__init__(address, _Handler)

    def board(self) -> Dashboard:
        """What is shown: some seconds old, or as old as it takes to make another one."""
        age_s, making = self.make()
        if making:
            making.join(_PATIENCE_S if age_s < _OLD_S else None)
        with self._lock:
            if self._trouble or self._kept is None:
                raise self._trouble or EtdeployError("the dashboard cannot be made")
            return self._kept[1]

    def make(self) -> tuple[float, threading.Thread | None]:
        """Begins another board if it is time; gives the age of the last one, and who makes one."""
        with self._lock:
            age_s = time.monotonic() - self._kept[0] if self._kept else math.inf
            if self._making is None and age_s > _FRESH_S:
                self._making = threading.Thread(target=self._make, name="board", daemon=True)
                self._making.start()
            return age_s, self._making

    def _make(self) -> None:
        began, board, trouble = time.monotonic(), None, None
        try:
            board = self._board()
        except EtdeployError as error:
            trouble = error
        finally:
            with self._lock:
                self._kept = (began, board) if board else None
                self._trouble, self._making = trouble, None


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S
    server_version, sys_version = "etdeploy", ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the name in http.server
        """Nothing: requests are no messages to the user."""

    def _answer(self, *, body: bool) -> None:
        status, kind, text = self._found()
        data = text.encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        # A page with plots would lose its place.
        if kind == "text/html" and urlsplit(self.path).path in ("/", f"/{INDEX}"):
            self.send_header("Refresh", str(_EVERY_S))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _found(self) -> tuple[HTTPStatus, str, str]:
        if not self._is_meant():
            return HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "Host header not allowed\n"
        name = unquote(urlsplit(self.path).path).removeprefix("/") or INDEX
        try:
            board = self.server.board()
        except EtdeployError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n"
        if name == STATUS:
            value = finite(board.status.model_dump(mode="json"))
            return HTTPStatus.OK, "application/json", json.dumps(value)
        page = page_of(board, name)
        if page is None:
            return HTTPStatus.NOT_FOUND, "text/plain", "there is no such page\n"
        return HTTPStatus.OK, "text/html", render(page)

    def _is_meant(self) -> bool:
        """Whether the request names this machine, where only this machine is served.

        A page elsewhere could let its own name stand for 127.0.0.1, and read the answer.
        """
        host = self.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return not self.server.is_local or name.lower() in _LOOPBACK_NAMES


@contextmanager
def serving(address: tuple[str, int], board: Callable[[], Dashboard]) -> Iterator[str]:
    """Serves in a thread while the block runs.

    Args:
        address: To listen on; port 0 takes a free one.
        board: Gives what is shown; called by other threads, one at a time.

    Yields:
        The URL.

    Raises:
        UsageError: The address cannot be listened on.
    """
    try:
        server = _Server(address, board)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{address[0]}:{address[1]} cannot be listened on: {why}",
            place="--serve",
            remedy="Name another port: --serve 127.0.0.1:0 takes a free one",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="dashboard", daemon=True)
    with server:
        server.make()  # who asks first waits less
        thread.start()
        try:
            host = f"[{address[0]}]" if ":" in address[0] else address[0]
            yield f"http://{host}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
