"""Qualcomm's compiler and simulator as a Python package: onnxruntime-qnn, for Linux x86_64.

Of it only the libraries are used, which need neither Python nor ONNX Runtime. It has none for
phones, and no headers.
"""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from etdeploy.backends.qnn.versions import BUILD_ID
from etdeploy.backends.values import Package
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import pip_command
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.files.basic import not_regular, open_regular
from etdeploy.core.hashing import sha256_file, stat_signature

EXTRA = "etdeploy[qnn]"
# ExecuTorch's adaptor is built with the headers of 2.37. The libraries of 2.3, 2.4, 2.6 and 2.7
# (QNN 2.47, 2.48, 2.50 and 2.51) reject its configuration of the device with error 14001.
PACKAGE = Package("onnxruntime-qnn", "compiling for QNN", EXTRA, "==2.5.0")
# That of its libQnnHtp.so.
QNN_VERSION = "2.49.40.260810104044"
# As its wheel's tag says, manylinux_2_35.
LEAST_GLIBC = (2, 35)
_LEAST_PYTHON = (3, 11)

_FOLDER = "onnxruntime_qnn"
# The libraries find these by their run path, which is relative.
_LIBCXX = "onnxruntime_qnn.libs"
_LICENSE = f"{_FOLDER}/Qualcomm_LICENSE.pdf"
_FILES = (
    f"{_FOLDER}/libQnnHtp.so",
    f"{_FOLDER}/libQnnSystem.so",
    f"{_LIBCXX}/libc++-*",
    f"{_LIBCXX}/libc++abi-*",
    f"{_LIBCXX}/libunwind-*",
)


@dataclass(frozen=True)
class QnnPackage:
    """The package in the environment that runs etdeploy.

    Attributes:
        version: Of the package, not of QNN.
        libraries: The folder of the libraries for Linux x86_64.
        license: The text of Qualcomm's licence.
    """

    version: str
    libraries: Path
    license: Path


def find_package() -> QnnPackage | Blocker | None:
    """The package of this environment; None if there is none that ExecuTorch can compile with.

    Nothing of it is imported. The one for arm64 is of no use: ExecuTorch's wheel has no adaptor
    there.
    """
    installed = _installed() if runs_here() else None
    if installed is None:
        return None
    version, site = installed
    if not PACKAGE.fits(version):
        return Blocker(
            PACKAGE.name,
            f"{PACKAGE.name} {version} is installed, and ExecuTorch's adaptor works with "
            f"{PACKAGE.specifier} alone: the QNN of others rejects its configuration (error 14001)",
            pip_command(EXTRA),
        )
    return installed_in(site, version)


def installed_in(site: Path, version: str) -> QnnPackage | Blocker:
    """The libraries of a package, by the folder that it was installed into."""
    old = glibc_problem()
    if old:
        return old
    lacking = [name.removesuffix("*") for name in _FILES if not any(site.glob(name))]
    if lacking:
        why = f"{PACKAGE.name} {version} in {site} lacks {', '.join(lacking)}"
        return Blocker(PACKAGE.name, why, whole_again())
    return QnnPackage(version, site / _FOLDER, site / _LICENSE)


def runs_here() -> bool:
    """Whether this is Linux x86_64."""
    return (sys.platform, platform.machine()) == ("linux", "x86_64")


def glibc_problem() -> Blocker | None:
    """The blocker for a C library that the package's libraries cannot be loaded with."""
    name, _, version = _c_library().partition(" ")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name == "glibc" and numbers >= LEAST_GLIBC:
        return None
    least = ".".join(map(str, LEAST_GLIBC))
    return Blocker(
        "glibc",
        f"{PACKAGE.name} needs glibc {least} or newer, and this system has "
        f"{f'glibc {version}' if name == 'glibc' else 'another C library'}",
        "Export on a newer Linux, such as Ubuntu 22.04 or Debian 12.",
    )


def get_package() -> str:
    """How to install the package, for a remedy."""
    if not runs_here():
        return (
            f"The package {PACKAGE.name} compiles on Linux x86_64, and this is {sys.platform} "
            f"{platform.machine()}: export there."
        )
    if sys.version_info[:2] < _LEAST_PYTHON:
        python = ".".join(map(str, _LEAST_PYTHON))
        return (
            f"The package {PACKAGE.name} needs Python {python} or newer, and this is Python "
            f"{sys.version_info[0]}.{sys.version_info[1]}: install etdeploy for a newer one."
        )
    return pip_command(EXTRA)


def whole_again() -> str:
    """How to install the package once more, for a remedy."""
    return f"{pip_command(PACKAGE.name + PACKAGE.specifier)} --force-reinstall --no-deps"


def executorch_version() -> str | None:
    """The version of the ExecuTorch whose adaptor compiles; None if it is not installed."""
    installed = _installed("executorch")
    return installed[0] if installed else None


def _installed(name: str = PACKAGE.name) -> tuple[str, Path] | None:
    """The version of a package, and the folder that it is installed in."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        package = distribution(name)
    except PackageNotFoundError:
        return None
    return package.version, Path(str(package.locate_file("")))


def _c_library() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):  # Windows; another C library
        return ""


VARIABLE = "QNN_RUNTIME_AAR"
COORDINATES = "com.qualcomm.qti:qnn-runtime"
FOLDER = "jni/arm64-v8a"
_MAIN = "libQnnHtp.so"
_LIBRARY = re.compile(rf"{FOLDER}/(libQnn(?:Htp\w*|System)\.so)")
_OTHER = re.compile(rf"jni/([^/]+)/{re.escape(_MAIN)}")
# Of a whole release: 0.3 GB. More is no release, but an archive made to fill a disk.
_MOST_BYTES = 2_000_000_000
_CHUNK_BYTES = 1 << 20
# An ELF file's e_machine, for arm64.
_MACHINE, _AARCH64 = slice(18, 20), b"\xb7\x00"
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError)


@dataclass(frozen=True)
class Aar:
    """An AAR with QNN's libraries for phones.

    Attributes:
        path: The file.
        version: Of QNN, for example 2.49.0.260810104044; None if its libQnnHtp.so has none.
        libraries: The names of those that a program for an HTP may need.
    """

    path: Path
    version: str | None
    libraries: tuple[str, ...]


def read_aar(path: Path) -> Aar | Blocker:
    """Reads what an AAR contains; nothing is unpacked."""
    if not path.is_file():
        kind = not_regular(path) if path.exists() else None
        return _blocker(f"names {path}, which {f'is {kind}' if kind else 'does not exist'}")
    return _read(path, stat_signature(path))


def unpack_aar(aar: Aar, workspace: Workspace) -> Path:
    """The folder of the cache with its libraries, unpacked if it is not there yet."""
    entry = workspace.entry(CacheKind.KITS, sha256_file(aar.path)[:32])
    workspace.obtain(entry, lambda folder: _unpack(aar, folder))
    return entry.path


@lru_cache(maxsize=8)
def _read(path: Path, _: tuple[int, ...]) -> Aar | Blocker:
    try:
        with _opened(path) as archive:
            found = {m[1]: i for i in archive.infolist() if (m := _LIBRARY.fullmatch(i.filename))}
            if _MAIN not in found:
                return _blocker(f"names {path}, {_without(archive)}")
            wrong = _wrong(found)
            if wrong:
                return _blocker(f"names {path}, {wrong}")
            with archive.open(found[_MAIN]) as stream:
                head = stream.read(20)
                if head[:4] != b"\x7fELF" or head[_MACHINE] != _AARCH64:
                    return _blocker(f"names {path}, whose {FOLDER}/{_MAIN} is no library for arm64")
                version = _version(stream)
    except _DAMAGED as error:
        return _blocker(f"names {path}, which cannot be read as an AAR (a zip archive): {error}")
    return Aar(path, version, tuple(sorted(found)))


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with open_regular(path) as stream, zipfile.ZipFile(stream) as archive:
        yield archive


def _without(archive: zipfile.ZipFile) -> str:
    others = sorted({m[1] for name in archive.namelist() if (m := _OTHER.fullmatch(name))})
    if others:
        return f"which has QNN's libraries for {', '.join(others)} and none for arm64-v8a"
    return f"which has no {FOLDER}/{_MAIN}: it is not {COORDINATES}"


def _wrong(members: dict[str, zipfile.ZipInfo]) -> str | None:
    """What keeps members from being unpacked."""
    if sum(info.file_size for info in members.values()) > _MOST_BYTES:
        return f"whose libraries are larger than {_MOST_BYTES // 10**9} GB"
    for info in members.values():
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) and not stat.S_ISREG(mode):
            return f"whose {info.filename} is not a plain file"
    return None


def _version(stream: IO[bytes]) -> str | None:
    """The version in a library."""
    tail = b""
    while chunk := stream.read(_CHUNK_BYTES):
        found = BUILD_ID.search(tail + chunk)
        if found:
            return found[1].decode()
        tail = chunk[-64:]
    return None


def _unpack(aar: Aar, folder: Path) -> None:
    try:
        with _opened(aar.path) as archive:
            for name in aar.libraries:
                # `name` has no separator, and zipfile checks its length and its sum.
                with archive.open(f"{FOLDER}/{name}") as source, (folder / name).open("wb") as file:
                    while chunk := source.read(_CHUNK_BYTES):
                        file.write(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError) as error:
        raise BuildError(
            f"{VARIABLE} names {aar.path}, which is damaged: {error}", remedy=_REMEDY
        ) from error


_REMEDY = (
    f"Download {COORDINATES} (an .aar) from Maven again, and\n"
    f"export {VARIABLE}=/path/to/qnn-runtime-VERSION.aar"
)


def _blocker(what_it_names: str) -> Blocker:
    return Blocker("QNN for phones", f"{VARIABLE} {what_it_names}", _REMEDY)
