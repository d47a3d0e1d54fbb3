"""A root folder with Swift for Linux, of Debian's packages.

Debian 12 and Ubuntu have no Swift, and Debian 13's wants a newer C library than theirs.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.debian import kept_root, native_architecture, require_tools, unpack

_PACKAGES = ("swiftlang", "libc6-dev", "libstdc++-14-dev")
# Of Swift's tools: what compiles, links and checks the style.
_TOOLS = """
clang clang-17 clang++ ld.lld lld swift swift-autolink-extract swift-driver swift-format
swift-frontend swift-plugin-server swiftc
"""
_MERGED = ("bin", "lib", "lib64", "sbin")


def obtain_swift_root() -> Path:
    """The root folder; made on first use (a minute) and kept.

    Raises:
        RootUnavailable: Something that it takes is missing here.
    """
    require_tools()
    return kept_root("swift", Path(__file__), _make)


def _make(unpacked: Path, root: Path) -> None:
    native = native_architecture()
    unpack([[f"{name}:{native}" for name in _PACKAGES]], (native,), unpacked)
    tools = unpacked / native / "usr/libexec/swift/bin"
    for tool in tools.iterdir():
        if tool.name not in _TOOLS.split():
            tool.unlink()
    shutil.move(unpacked / native / "usr", root / "usr")
    shutil.copytree(unpacked / "all/usr", root / "usr", symlinks=True, dirs_exist_ok=True)
    for name in _MERGED:
        (root / "usr" / name).mkdir(exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for folder in ("proc", "dev", "tmp", "work"):
        (root / folder).mkdir()
