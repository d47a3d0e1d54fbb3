"""Qualcomm's compiler and simulator as a Python package: onnxruntime-qnn, for Linux x86_64.

Of it only the libraries are used, which need neither Python nor ONNX Runtime. It has none for
phones, and no headers.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.values import Package
from etdeploy.core.commands import pip_command
from etdeploy.core.errors import Blocker

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
