"""Keeps unit tests from starting programs, reaching devices or the network, or printing.

Allowed are the fakes of a test: programs below its own temporary folder, and servers on loopback.
A test that means to start others asks for the fixture `real_processes`; one that looks at what is
printed asks for `capsys` or `capfd`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etdeploy.backends.qnn import compiler
from etdeploy.core.processes import orphans

_PROCESSES = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn",
     "os.spawn", "pty.spawn"}
)  # fmt: skip
_NAMES = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
_ADDRESSES = frozenset({"socket.connect", "socket.bind", "socket.sendto"})
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# The adb server, and devices and emulators that answer over TCP.
_ADB_PORTS = {5037, *range(5554, 5586)}


class _Guard:
    """An audit hook: it sees every way to do such things, in every thread."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.processes_allowed = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or not self._forbids(event, arguments):
            return
        # Not an Exception: code that forgives errors must not forgive this one.
        pytest.fail(
            f"a unit test must not do {event}{arguments!r:.200}; what needs real parts is an "
            "integration test (see tests/unit/conftest.py)"
        )

    def _forbids(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event in _PROCESSES:
            allowed = self.processes_allowed or self._is_watcher(arguments)
            return not allowed and not self._is_fake(arguments[:1])
        if event in _NAMES:
            return arguments[0] not in _LOOPBACK
        if event in _ADDRESSES:
            address = arguments[-1]
            known = isinstance(address, tuple) and address[0] in _LOOPBACK
            return not known or address[1] in _ADB_PORTS
        return False

    def _is_fake(self, program: tuple[Any, ...]) -> bool:
        path = program[0] if program and isinstance(program[0], str | Path) else ""
        return self.folder is not None and Path(path).is_relative_to(self.folder)

    def _is_watcher(self, arguments: tuple[Any, ...]) -> bool:
        """What `core/processes/process.py` starts beside the first child, be that a fake or not."""
        return len(arguments) > 1 and str(orphans.__file__) in arguments[1]

    @contextmanager
    def active(self, folder: Path) -> Iterator[None]:
        """Forbids while the block runs; programs below `folder` are the test's own."""
        self.folder, self.processes_allowed = folder, False
        try:
            yield
        finally:
            self.folder = None


_guard = _Guard()
# There is no removing it; outside `active` it forbids nothing.
sys.addaudithook(_guard)


@pytest.fixture(autouse=True)
def no_real_parts(tmp_path: Path) -> Iterator[None]:
    """Forbids programs and addresses that are not the test's own."""
    with _guard.active(tmp_path):
        yield


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps huggingface_hub from the network; a test that has a hub of its own allows it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def no_qnn_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides Qualcomm's package, which some environments have; a test lays out its own."""
    monkeypatch.setattr(compiler, "_installed", lambda *_: None)


@pytest.fixture
def real_processes(no_real_parts: None) -> None:
    """Lets the test start any program."""
    _guard.processes_allowed = True


@pytest.fixture(autouse=True)
def no_printing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that prints and does not look at it."""
    if {"capsys", "capfd", "capsysbinary", "capfdbinary"} & set(request.fixturenames):
        yield
        return
    capture: pytest.CaptureFixture[str] = request.getfixturevalue("capsys")
    yield
    out, err = capture.readouterr()
    if out or err:
        pytest.fail(f"a unit test must not print without looking at it:\n{out}{err}")
