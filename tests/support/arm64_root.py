"""Root folders of arm64 boards, made of Debian's packages: every program in them is arm64."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.debian import (
    RootUnavailable,
    kept_root,
    native_architecture,
    require_tools,
    static_qemu,
    unpack,
)

HOME = "home/pi"
_FOLDERS = (HOME, "proc", "dev", "sys", "tmp", "etc")
# `base-files` has /etc/os-release; `libc-bin` has getconf and ldd.
_DEBIAN = (
    "base-files", "bash", "coreutils", "dash", "findutils", "grep", "libc-bin", "libstdc++6", "sed",
)  # fmt: skip
_BUSYBOX_OS = 'NAME=BusyBox\nID=busybox\nPRETTY_NAME="BusyBox without a C library"\n'


def debian_root() -> Path:
    """A Debian with glibc, GCC's C++ library, bash and coreutils.

    Raises:
        RootUnavailable: Something that it takes is missing here.
    """
    return _kept("debian", _make_debian)


def busybox_root() -> Path:
    """A static BusyBox and nothing else: no C library, as on boards with musl or uClibc.

    Raises:
        RootUnavailable: Something that it takes is missing here.
    """
    return _kept("busybox", _make_busybox)


def _kept(name: str, make: Callable[[Path, Path], None]) -> Path:
    require_tools()
    static_qemu()
    if native_architecture() == "arm64":
        raise RootUnavailable("an emulated arm64 board is for machines that are not arm64")
    return kept_root(f"arm64-{name}", Path(__file__), make)


def _make_debian(unpacked: Path, root: Path) -> None:
    shutil.copytree(_arm64(unpacked, *_DEBIAN), root, symlinks=True, dirs_exist_ok=True)
    _complete(root)


def _make_busybox(unpacked: Path, root: Path) -> None:
    folder = _arm64(unpacked, "busybox-static")
    _complete(root)
    busybox = root / "bin/busybox"
    shutil.copy(folder / "usr/bin/busybox", busybox)
    listed = subprocess.run(
        [static_qemu(), str(busybox), "--list"], capture_output=True, text=True, check=True
    )
    for name in set(listed.stdout.split()) - {"busybox"}:
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc/os-release").write_text(_BUSYBOX_OS)


def _arm64(unpacked: Path, *packages: str) -> Path:
    """The folder that packages for arm64 were unpacked to."""
    architectures = (native_architecture(), "arm64")
    unpack([[f"{name}:arm64" for name in packages]], architectures, unpacked)
    return unpacked / "arm64"


def _complete(root: Path) -> None:
    for folder in (*_FOLDERS, "usr/bin", "usr/sbin"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
