"""What compiles for QNN on this machine, and runs programs in Qualcomm's simulator.

It is the SDK that the user names; else Qualcomm's Python package, or an SDK that ExecuTorch has
downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.qnn.kits.libraries import too_old
from etdeploy.backends.qnn.kits.package import (
    PACKAGE,
    QNN_VERSION,
    QnnPackage,
    find_package,
    get_package,
)
from etdeploy.backends.qnn.kits.sdk import (
    COMPILER,
    COMPILING,
    DEPLOYING,
    HOST_LIBRARIES,
    READER,
    VARIABLE,
    QnnSdk,
    downloads_folder,
    find_sdk,
    how_to_get,
    unpack_again,
)
from etdeploy.backends.qnn.socs import QUALCOMM_SOCS, QualcommSoc
from etdeploy.backends.qnn.versions import ADAPTOR_SDK, dotted, short_version, version_numbers
from etdeploy.backends.values import Workstation
from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.blocker import Blocker
from etdeploy.core.hashing import sha256_bytes


@dataclass(frozen=True)
class CompileKit:
    """Qualcomm's compiler and simulator for Linux x86_64.

    Attributes:
        version: Of QNN, for example 2.49.40.260810104044.
        from_: Where it is from, for messages: `onnxruntime-qnn 2.5.0`, or an SDK's folder.
        libraries: The folder with libQnnHtp.so and libQnnSystem.so.
        root: The folder for QNN_SDK_ROOT. For the package one in the cache, which
            `compile_environment` makes.
        license: The text of the licence that comes with the package; None for an SDK, whose user
            has accepted it to get the SDK.
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


def find_compile_kit(station: Workstation, soc: str | None = None) -> CompileKit | Blocker:
    """What compiles here.

    An SDK that the user names is the user's choice. Otherwise the package comes before ExecuTorch's
    downloads, unless its programs would be too new for the libraries that go to the phone.

    Args:
        station: This machine.
        soc: What is compiled for; None or an unknown one leaves it out of account.
    """
    if station.environ.get(VARIABLE):
        return _of(find_sdk(station.environ, station.home, COMPILING))
    package = find_package()
    sdk = find_sdk(station.environ, station.home, COMPILING)
    kits = [kit for kit in (_of(package), _of(sdk)) if isinstance(kit, CompileKit)]
    if not kits:
        return _none(package, sdk, downloads_folder(station.environ, station.home))
    able = [kit for kit in kits if _is_new_enough(kit, soc)] or kits
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
    if isinstance(sdk, Blocker) and downloads.is_dir() and any(downloads.glob("sdk-*")):
        return sdk
    return Blocker(
        "Qualcomm's compiler",
        f"{PACKAGE.name} is not installed, {VARIABLE} is not set, and there is no SDK in "
        f"{downloads}",
        f"{get_package()}\nor take Qualcomm's SDK, which also has the libraries for phones:\n"
        f"{how_to_get()}",
    )


def _is_new_enough(kit: CompileKit, soc: str | None) -> bool:
    facts = QUALCOMM_SOCS.get(soc or "")
    return (not facts or too_old(kit.version, kit.from_, facts) is None) and (
        _too_old_to_export(kit) is None
    )


def _loadable_on_the_phone(kits: list[CompileKit], station: Workstation) -> Iterator[CompileKit]:
    """Those that are not newer than the libraries for phones: older ones load no newer program."""
    phone = find_sdk(station.environ, station.home, DEPLOYING)
    for kit in kits:
        if (
            isinstance(phone, Blocker)
            or version_numbers(kit.version)[:2] <= version_numbers(phone.version)[:2]
        ):
            yield kit


def compile_problem(kit: CompileKit, soc: QualcommSoc | None = None) -> Blocker | None:
    """What is wrong with a kit for an export; None if nothing is.

    Args:
        kit: The result of `find_compile_kit`.
        soc: What is compiled for; None for what concerns all.
    """
    return (
        (too_old(kit.version, kit.from_, soc) if soc else None)
        or _too_old_to_export(kit)
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
