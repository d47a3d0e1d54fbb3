"""Qualcomm's compiler and simulator here, of a Python package or an SDK, and whether it works.

The package is onnxruntime-qnn, for Linux x86_64: only its libraries are used, which need neither
Python nor ONNX Runtime. It has none for phones, and no headers.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.qnn.deploy import find_deploy_kit
from etdeploy.backends.qnn.facts import (
    ADAPTOR_SDK,
    QUALCOMM_SOCS,
    REJECTING,
    QualcommSoc,
    dotted,
    is_newer,
    short_version,
    version_numbers,
)
from etdeploy.backends.qnn.sdk import (
    COMPILER,
    COMPILING,
    HOST_LIBRARIES,
    READER,
    SDK_VARIABLE,
    QnnSdk,
    downloads_folder,
    find_sdk,
    how_to_get,
    too_old,
    unpack_again,
)
from etdeploy.backends.values import Package, Workstation
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.commands import pip_command
from etdeploy.core.errors import Blocker
from etdeploy.core.hashing import sha256_bytes

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
    """The installed package: its own version, its folder of libraries, Qualcomm's licence text."""

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


@dataclass(frozen=True)
class CompileKit:
    """Qualcomm's compiler and simulator for Linux x86_64, of QNN `version`.

    `from_` names the package or the SDK's folder. `libraries` has libQnnHtp.so and libQnnSystem.so,
    `root` is the folder for QNN_SDK_ROOT: for the package one in the cache, which `lay_out` makes.
    An SDK has no `license`: its user has accepted it to get the SDK.
    """

    version: str
    from_: str
    libraries: Path
    root: Path
    license: Path | None = None

    @property
    def number(self) -> str:
        """The short version, 2.49.40."""
        return short_version(self.version)


def compile_problem(kit: CompileKit, soc: QualcommSoc | None = None) -> Blocker | None:
    """What is wrong with a kit for an export; None if nothing is."""
    return (
        (too_old(kit.version, kit.from_, soc) if soc else None)
        or _too_old_to_export(kit)
        or _rejecting(kit)
        or _absent_to_export(kit)
    )


def _too_old_to_export(kit: CompileKit) -> Blocker | None:
    """The blocker for a kit that is older than ExecuTorch's adaptor; None if it is not."""
    if version_numbers(kit.version)[:2] >= ADAPTOR_SDK:
        return None
    wanted = dotted(ADAPTOR_SDK)
    return Blocker(
        f"QNN {wanted}",
        f"ExecuTorch compiles with QNN {wanted} or newer, whatever the SoC, and the one in "
        f"{kit.from_} is {kit.number}",
        how_to_get(wanted),
    )


def _rejecting(kit: CompileKit) -> Blocker | None:
    """The blocker for a QNN that ExecuTorch's adaptor cannot configure; None if it can."""
    if not rejects(kit.version):
        return None
    return Blocker(
        "another QNN",
        f"the libraries of QNN {kit.number} in {kit.from_} reject the configuration of "
        "ExecuTorch's adaptor (error 14001), whose layout they changed",
        f"Compile with QNN {short_version(QNN_VERSION)} of the package, whose programs the SDK's "
        f"libraries load if they are newer:\n{get_package()}\n"
        f"or take an SDK of another release than {_REJECTED}:\n{how_to_get()}",
    )


_REJECTED = ", ".join(map(dotted, sorted(REJECTING)))


def rejects(version: str) -> bool:
    """Whether compiling is known to fail.

    One's own build of ExecuTorch, whose version has a suffix, may have other headers.
    """
    if version_numbers(version)[:2] not in REJECTING:
        return False
    executorch = executorch_version()
    return executorch is None or re.fullmatch(r"[\d.]+", executorch) is not None


def _absent_to_export(kit: CompileKit) -> Blocker | None:
    """The blocker for an SDK without a library that an export loads; None if it has all."""
    absent = [name for name in (COMPILER, READER) if not (kit.libraries / name).is_file()]
    if not absent:
        return None
    names = " and no ".join(f"{HOST_LIBRARIES}/{name}" for name in absent)
    return Blocker(
        "libraries that compile",
        f"the QNN SDK {kit.number} in {kit.root} is incomplete: there is no {names}",
        unpack_again(),
    )


def find_compile_kit(station: Workstation, soc: str | None = None) -> CompileKit | Blocker:
    """What compiles here.

    An SDK that the user names is the user's choice, unless its compiler is known not to work with
    ExecuTorch, and the package is there: its libraries may still go to the phone. Without a name,
    the package comes before ExecuTorch's downloads, unless its programs would be too new for the
    libraries that go to the phone: older ones load no newer program.
    """
    sdk = find_sdk(station.environ, station.home, COMPILING)
    if station.environ.get(SDK_VARIABLE) and not (isinstance(sdk, QnnSdk) and rejects(sdk.version)):
        return _of(sdk)
    package = find_package()
    kits = [kit for kit in (_of(package), _of(sdk)) if isinstance(kit, CompileKit)]
    if not kits:
        return _none(package, sdk, downloads_folder(station.environ, station.home))
    able = [kit for kit in kits if _is_able(kit, soc)] or kits
    return next(_loadable_on_the_phone(able, station), able[0])


def _of(found: QnnPackage | QnnSdk | Blocker | None) -> CompileKit | Blocker:
    if isinstance(found, QnnPackage):
        return CompileKit(
            QNN_VERSION,
            f"{PACKAGE.name} {found.version}",
            found.libraries,
            _folder_of(found),
            found.license,
        )
    if isinstance(found, QnnSdk):
        return CompileKit(found.version, str(found.root), found.host_libraries, found.root)
    return found or Blocker(PACKAGE.name, f"{PACKAGE.name} is not installed", get_package())


def _folder_of(package: QnnPackage) -> Path:
    key = sha256_bytes(f"{QNN_VERSION} {package.libraries}".encode())[:32]
    return Workspace.default().folder(CacheKind.KITS) / key


def _none(package: QnnPackage | Blocker | None, sdk: QnnSdk | Blocker, downloads: Path) -> Blocker:
    """What is said when nothing compiles: what is wrong with what there is."""
    if isinstance(package, Blocker):
        return package
    if isinstance(sdk, Blocker) and any(downloads.glob("sdk-*")):
        return sdk
    return Blocker(
        "Qualcomm's compiler",
        f"{PACKAGE.name} is not installed, {SDK_VARIABLE} is not set, and there is no SDK in "
        f"{downloads}",
        f"{get_package()}\nor take Qualcomm's SDK, which also has the libraries for phones:\n"
        f"{how_to_get()}",
    )


def _is_able(kit: CompileKit, soc: str | None) -> bool:
    return compile_problem(kit, QUALCOMM_SOCS.get(soc or "")) is None


def _loadable_on_the_phone(kits: list[CompileKit], station: Workstation) -> Iterator[CompileKit]:
    """Those whose programs the libraries for phones load, as far as that is known."""
    phone = find_deploy_kit(station)
    for kit in kits:
        if isinstance(phone, Blocker) or not is_newer(kit.version, phone.version):
            yield kit
