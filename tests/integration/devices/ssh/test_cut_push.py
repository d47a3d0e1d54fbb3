"""A board that goes away in the middle of a large file, and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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


def test_a_large_file_goes_on_where_a_push_was_cut_off(
    board: SshBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 4 * store.BLOCK_BYTES)
    bundle = make_bundle({"big": of_size(tmp_path, 60 << 20)}, ("big",))

    def stop(text: str, fraction: float | None = None) -> None:
        if fraction and fraction > 0.3:
            board.stop()

    with contextlib.closing(open_device(board.spec)) as device:
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
