"""The guards of tests/unit/conftest.py hold."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from etdeploy.core.processes.process import Request, run

FORBIDDEN = pytest.fail.Exception


def test_programs_cannot_be_started() -> None:
    with pytest.raises(FORBIDDEN, match=r"subprocess\.Popen"):
        run(Request((sys.executable, "-c", "")))
    with pytest.raises(FORBIDDEN, match=r"os\.system"):
        os.system("true")  # noqa: S605
    with pytest.raises(FORBIDDEN, match=r"os\.fork"):
        os.fork()


@pytest.mark.parametrize(
    "address", [("192.0.2.1", 80), ("127.0.0.1", 5037), ("localhost", 5555), ("198.51.100.1", 80)]
)
def test_devices_and_the_network_cannot_be_reached(address: tuple[str, int]) -> None:
    with socket.socket() as client, pytest.raises(FORBIDDEN, match=r"socket\.connect"):
        client.connect(address)


def test_the_home_folder_is_not_the_users(strange_home: Path, cache_folder: Path) -> None:
    assert Path.home() == strange_home
    assert Path("~").expanduser() == strange_home
    assert os.environ["ETDEPLOY_CACHE_DIR"] == str(cache_folder)
