"""A test device over each of the ways to it, for tests that must pass on both.

A test module imports the fixtures of tests/support/adbd.py too: `make_android`, `adb_server` and
`no_adb_server`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.devices.base import Device
from etdeploy.devices.registry import open_device
from tests.support.adbd import AdbServer, AndroidRoot, MakeAndroid
from tests.support.processes import eventually


@dataclass(frozen=True)
class Reached:
    """A test device with the way that etdeploy takes to it."""

    root: AndroidRoot
    device: Device
    server: AdbServer | None

    def is_quiet(self) -> bool:
        """Waits until the device's shells have seen that nobody listens, and let go of files."""
        return eventually(lambda: not self.root.processes())

    def come_back(self) -> None:
        """Starts the device's adbd again after it was killed."""
        self.root.start_adbd()
        if self.server:
            self.server.connect(self.root)


@pytest.fixture(params=["server", "direct"])
def reached(request: pytest.FixtureRequest, make_android: MakeAndroid) -> Iterator[Reached]:
    """A device of 64 MiB over each of the two transports."""
    root = make_android(size_mib=64)
    server: AdbServer | None = None
    if request.param == "server":
        server = request.getfixturevalue("adb_server")
        server.connect(root)
    else:
        request.getfixturevalue("no_adb_server")
    device = open_device(root.spec)
    yield Reached(root, device, server)
    device.close()


@pytest.fixture(autouse=True)
def no_request_left() -> Iterator[None]:
    """A stop request of one test must not stop the next."""
    yield
    with cancel.trapped_signals():
        pass


def wait_until_empty(folder: Path) -> bool:
    """Waits until nothing is in a folder; False when that takes too long."""
    return eventually(lambda: not list(folder.iterdir()))
