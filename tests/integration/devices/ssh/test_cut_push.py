"""A board that goes away in the middle of a large file, and comes back."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.registry import open_device
from etdeploy.devices.remote import store
from tests.support.arm64_board import Arm64Board, make_arm64_board
from tests.support.arm64_root import busybox_root
from tests.support.bundles import make_bundle, of_size
from tests.support.processes import eventually
from tests.support.sshd import SshBoard, make_board

pytestmark = pytest.mark.integration

__all__ = ["make_arm64_board", "make_board"]


@pytest.fixture(params=["this machine's tools", "BusyBox on arm64"])
def board(request: pytest.FixtureRequest) -> SshBoard:
    if request.param == "this machine's tools":
        make: Callable[..., SshBoard] = request.getfixturevalue("make_board")
        return make()
    make = request.getfixturevalue("make_arm64_board")
    return make(busybox_root)


_PART_BYTES = 1 << 16
_PAUSE_S = 0.002
_AT_MOST_BYTES = 40 << 20


def _copy(source: socket.socket, to: socket.socket, fast: threading.Event) -> None:
    """Copies until either end closes: slowly and not beyond _AT_MOST_BYTES, until `fast` is set."""
    copied_bytes = 0
    with contextlib.suppress(OSError):
        while part := source.recv(_PART_BYTES):
            if not fast.wait(_PAUSE_S) and copied_bytes >= _AT_MOST_BYTES:
                fast.wait()
            to.sendall(part)
            copied_bytes += len(part)
    for end in (source, to):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def slow_link(board: SshBoard) -> Iterator[threading.Event]:
    """Has ssh connect by a slow link, on which no large file arrives before the event is set.

    Loopback would carry a file of 60 MB between two looks at its progress.
    """
    fast = threading.Event()

    class Link(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", board.port)) as there:
                back = threading.Thread(target=_copy, args=(there, self.request, fast))
                back.start()
                _copy(self.request, there, fast)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Link) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        board.write_config(
            f"HostKeyAlias [127.0.0.1]:{board.port}",
            "Host test-board", f"  Port {server.server_address[1]}",
        )  # fmt: skip
        try:
            yield fast
        finally:
            fast.set()
            server.shutdown()
            thread.join()


def test_a_large_file_goes_on_where_a_push_was_cut_off(
    board: SshBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 4 * store.BLOCK_BYTES)
    bundle = make_bundle({"big": of_size(tmp_path, 60 << 20)}, ("big",))

    def stop(text: str, fraction: float | None = None) -> None:
        if fraction and fraction > 0.3:
            board.stop()
            fast.set()

    with slow_link(board) as fast, contextlib.closing(open_device(board.spec)) as device:
        with pytest.raises(DeviceError, match="pushing big"):
            device.push(bundle, stop)
        board.start()
        # On this machine, the shell that receives outlives sshd, and puts away what has arrived.
        if not isinstance(board, Arm64Board):
            assert eventually(lambda: bool(list((board.kept / "partial").iterdir())))
        report = device.push(bundle)
    assert report.resumed_bytes >= store.PART_BYTES
    there = board.kept / "store" / bundle.files[0].sha256
    assert there.read_bytes() == (tmp_path / "big").read_bytes()
