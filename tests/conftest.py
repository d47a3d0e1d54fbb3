"""What every test gets: a cache of its own, and a home folder that is not the user's."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Variables of the user's that would change what is tested.
_FOREIGN = (
    "COLUMNS",
    "ETDEPLOY_OUTPUT_DIR",
    "ETDEPLOY_CACHE_MAX",
    "ETDEPLOY_STORE",
    "ANDROID_SERIAL",
    "ANDROID_ADB_SERVER_PORT",
    "ANDROID_NDK",
    "ANDROID_NDK_HOME",
    "ANDROID_NDK_ROOT",
    "ANDROID_HOME",
    "ANDROID_SDK_ROOT",
    "QNN_SDK_ROOT",
    "QNN_RUNTIME_AAR",
    "ETDEPLOY_PYMOBILEDEVICE3",
    "PYMOBILEDEVICE3_TUNNEL",
    "PYMOBILEDEVICE3_USBMUX",
)
# Caches of tools that hold no settings: downloads and compilations stay shared between sessions.
_TOOL_CACHES = {
    "CCACHE_DIR": ".cache/ccache",
    "PIP_CACHE_DIR": ".cache/pip",
    "PYENV_ROOT": ".pyenv",
    "ZIG_GLOBAL_CACHE_DIR": ".cache/zig",
    "UV_CACHE_DIR": ".cache/uv",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the tests marked nightly")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect nightly tests unless `--all` or a marker expression asks for them."""
    if config.getoption("--all") or config.getoption("-m"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


@pytest.fixture(scope="session", autouse=True)
def heard_interrupts() -> None:
    """A shell lets what it starts in the background ignore Ctrl-C, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run have; what is made there needs locks."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def strange_home(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path) -> Iterator[Path]:
    """An empty home folder for the whole session, so that no test reads or writes the user's."""
    user = Path.home()
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in _TOOL_CACHES.items():
            if name not in os.environ and (user / folder).is_dir():
                patch.setenv(name, str(user / folder))
        for name in [*_FOREIGN, *(n for n in os.environ if n.startswith("XDG_"))]:
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(home))
        if "PYTEST_XDIST_WORKER" in os.environ:  # threads of several exports wait for each other
            patch.setenv("OMP_NUM_THREADS", "1")
        # No test reaches the user's iPhones.
        patch.setenv("USBMUXD_SOCKET_ADDRESS", str(home / "no-usbmuxd"))
        # It gets ExecuTorch's packages for other platforms, each once in a test run.
        patch.setenv("ETDEPLOY_CACHE_DIR", str(shared_folder / "cache"))
        yield home


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this one test; it is made when something is stored."""
    folder = tmp_path / "etdeploy-cache"
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder of this one test, with its history; made when something is kept."""
    folder = tmp_path / "etdeploy-data"
    monkeypatch.setenv("XDG_DATA_HOME", str(folder))
    return folder / "etdeploy"
