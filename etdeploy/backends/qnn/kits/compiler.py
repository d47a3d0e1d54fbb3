"""A compiler of Qualcomm's on this machine, and whether ExecuTorch can compile with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.qnn.kits.deploy import NAME_AN_AAR, DeployKit, find_deploy_kit
from etdeploy.backends.qnn.kits.package import (
    PACKAGE,
    QNN_VERSION,
    Aar,
    QnnPackage,
    executorch_version,
    find_package,
    get_package,
)
from etdeploy.backends.qnn.kits.sdk import (
    COMPILER,
    COMPILING,
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
from etdeploy.backends.qnn.versions import (
    ADAPTOR_SDK,
    LEAST_SDK,
    PINNED_VERSION,
    REJECTING,
    dotted,
    is_newer,
    short_version,
    version_numbers,
)
from etdeploy.backends.values import Workstation
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Blocker
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
        f"QNN {PINNED_VERSION}",
        f"the libraries of QNN {kit.number} in {kit.from_} reject the configuration of "
        "ExecuTorch's adaptor (error 14001), whose layout they changed",
        f"Compile with QNN {short_version(QNN_VERSION)} of the package, whose programs the SDK's "
        f"libraries load if they are newer:\n{get_package()}\n"
        f"or take an SDK that ExecuTorch is tested with:\n{how_to_get()}",
    )


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
    if station.environ.get(VARIABLE) and not (isinstance(sdk, QnnSdk) and rejects(sdk.version)):
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
        f"{PACKAGE.name} is not installed, {VARIABLE} is not set, and there is no SDK in "
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


def required_libraries(soc: QualcommSoc) -> tuple[str, ...]:
    """The names of the libraries that a program for the HTP of an SoC loads on Android.

    `libqnn_executorch_backend.so`, which loads them, is ExecuTorch's and comes with the runner.
    """
    arch = soc.htp_arch
    return (
        "libQnnHtp.so",
        f"libQnnHtp{arch}Stub.so",
        "libQnnHtpPrepare.so",
        "libQnnSystem.so",
        f"libQnnHtp{arch}Skel.so",
    )


def too_old(version: str | None, place: str, soc: QualcommSoc) -> Blocker | None:
    """The blocker for a QNN that is too old for the SoC; None if it is new enough, or not known."""
    least = soc.least_sdk
    if version is None or version_numbers(version)[:2] >= least:
        return None
    wanted = dotted(least)
    why = (
        f"{soc.name} (HTP {soc.htp_arch}) needs QNN {wanted} or newer, and the one in {place} is "
        f"{short_version(version)}"
    )
    if version_numbers(PINNED_VERSION)[:2] < least:
        why += f"; {PINNED_VERSION}, which ExecuTorch downloads, is too old as well"
    return Blocker(f"QNN {wanted}", why, how_to_get(wanted))


def absent_libraries(kit: DeployKit, soc: QualcommSoc) -> Blocker | None:
    """The blocker for a kit without a library for the SoC; None if it has all."""
    absent = [name for name in required_libraries(soc) if name not in kit.libraries]
    if not absent:
        return None
    arch = soc.htp_arch
    what = f"libraries for HTP {arch}"
    is_new = kit.version is None or version_numbers(kit.version)[:2] >= LEAST_SDK[arch]
    if arch in kit.htp_archs or (is_new and not isinstance(kit.origin, Aar)):
        names = " and no ".join(kit.where(name, arch) for name in absent)
        return Blocker(what, f"{kit} is incomplete: there is no {names}", _whole_again(kit))
    wanted = dotted(LEAST_SDK[arch])
    known = ", ".join(kit.htp_archs)
    others = f"it has those for {known}" if known else "it has none for any HTP"
    newer = "" if is_new else f"; {wanted} has them"
    return Blocker(
        what,
        f"{soc.name} has HTP {arch}, for which {kit} has no libraries ({others}){newer}",
        f"{how_to_get(wanted)}\n{NAME_AN_AAR}",
    )


def _whole_again(kit: DeployKit) -> str:
    if isinstance(kit.origin, Aar):
        return f"Take another archive, or an SDK:\n{how_to_get()}\n{NAME_AN_AAR}"
    return f"Unpack all of the SDK again, or use another:\nexport {VARIABLE}=/path/to/qairt/VERSION"
