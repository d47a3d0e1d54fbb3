"""What compiles for QNN on this machine, and runs programs in Qualcomm's simulator.

It is the SDK that the user names; else Qualcomm's Python package, or an SDK that ExecuTorch has
downloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from etdeploy.backends.qnn.kits.compiler import CompileKit, compile_problem, rejects
from etdeploy.backends.qnn.kits.deploy import find_deploy_kit
from etdeploy.backends.qnn.kits.package import (
    PACKAGE,
    QNN_VERSION,
    QnnPackage,
    find_package,
    get_package,
)
from etdeploy.backends.qnn.kits.sdk import (
    COMPILING,
    VARIABLE,
    QnnSdk,
    downloads_folder,
    find_sdk,
    how_to_get,
)
from etdeploy.backends.qnn.socs import QUALCOMM_SOCS
from etdeploy.backends.qnn.versions import is_newer
from etdeploy.backends.values import Workstation
from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.blocker import Blocker
from etdeploy.core.hashing import sha256_bytes


def find_compile_kit(station: Workstation, soc: str | None = None) -> CompileKit | Blocker:
    """What compiles here.

    An SDK that the user names is the user's choice, unless its compiler is known not to work with
    ExecuTorch, and the package is there: its libraries may still go to the phone. Without a name,
    the package comes before ExecuTorch's downloads, unless its programs would be too new for the
    libraries that go to the phone: older ones load no newer program.

    Args:
        station: This machine.
        soc: What is compiled for; None or an unknown one leaves it out of account.
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
