"""Finds and checks Qualcomm's QNN SDK. Files are read, nothing is started.

sdk.yaml                        `version: 2.37.0.250724175447`
include/QNN/                    headers; QnnSdkBuildId.h has the version too
lib/x86_64-linux-clang/         compiles programs here
lib/aarch64-android/            runs them on the phone's CPU side
lib/hexagon-v79/unsigned/       runs them on the HTP, one folder for each architecture
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.qnn.versions import PINNED_VERSION, VERSION, short_version, version_numbers
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import read_text
from etdeploy.core.values import ReasonedChoice

VARIABLE = "QNN_SDK_ROOT"
# ExecuTorch's own downloader keeps the SDK in one of these (scripts/download_qnn_sdk.py).
_STAGING_VARIABLE = "QNN_STAGING_DIR"
_CACHE_VARIABLE = "XDG_CACHE_HOME"

_DOWNLOADER = "executorch.backends.qualcomm.scripts.download_qnn_sdk"

HOST_LIBRARIES = "lib/x86_64-linux-clang"
ANDROID_LIBRARIES = "lib/aarch64-android"
_HEADERS = "include/QNN"
_SKELS = "lib/hexagon-v*/unsigned"
_BUILD_ID = "include/QNN/QnnSdkBuildId.h"
COMPILER = "libQnnHtp.so"
# ExecuTorch's adaptor reads the compiler's output with it.
READER = "libQnnSystem.so"
# What each purpose needs of an SDK.
COMPILING = (f"{HOST_LIBRARIES}/{COMPILER}",)
BUILDING = (_HEADERS,)
DEPLOYING = (ANDROID_LIBRARIES, _SKELS)
_PARTS = (*BUILDING, *COMPILING, *DEPLOYING)
_DOWNLOADS = "ExecuTorch's downloads"


@dataclass(frozen=True)
class QnnSdk:
    """An SDK on this machine.

    Attributes:
        root: Its folder, as QNN_SDK_ROOT names it.
        version: As it reports, for example 2.37.0.250724175447.
        from_: Where it was found: the variable, or ExecuTorch's download folder.
    """

    root: Path
    version: str
    from_: str

    @property
    def number(self) -> str:
        """The short version, 2.37.0."""
        return short_version(self.version)

    @property
    def host_libraries(self) -> Path:
        """The libraries that compile programs on Linux x86_64."""
        return self.root / HOST_LIBRARIES

    @property
    def htp_archs(self) -> tuple[str, ...]:
        """The HTP architectures that it has libraries for, oldest first."""
        folders = (folder.parent.name for folder in self.root.glob(_SKELS))
        return tuple(sorted((f.removeprefix("hexagon-").upper() for f in folders), key=_number))


def find_sdk(
    environ: Mapping[str, str], home: Path, parts: tuple[str, ...] = _PARTS
) -> QnnSdk | Blocker:
    """The SDK that QNN_SDK_ROOT names, or else the newest that ExecuTorch has downloaded.

    The variable is the user's choice: if it names no SDK, that is reported and no other is used
    instead.
    """
    named = environ.get(VARIABLE)
    if named:
        return _judge(Path(named).expanduser().absolute(), VARIABLE, parts)
    downloads = downloads_folder(environ, home)
    judged = [_judge(folder, _DOWNLOADS, parts) for folder in downloads.glob("sdk-*")]
    whole = [sdk for sdk in judged if isinstance(sdk, QnnSdk)]
    if whole:
        return max(whole, key=lambda sdk: version_numbers(sdk.version))
    if judged:
        return next(m for m in judged if isinstance(m, Blocker))
    return _missing(f"{VARIABLE} is not set, and there is none in {downloads}")


def how_to_get(version: str | None = None) -> str:
    """The commands that install an SDK."""
    if version is None:
        return (
            f"{sys.executable} -m {_DOWNLOADER}   (downloads {PINNED_VERSION}, as an export "
            f"with ExecuTorch alone would)\n"
            f"or unpack one from Qualcomm and export {VARIABLE}=/path/to/qairt/{PINNED_VERSION}"
        )
    return (
        f"Download QNN {version} or newer (Qualcomm AI Runtime SDK) from Qualcomm, unpack it and\n"
        f"export {VARIABLE}=/path/to/qairt/{version}"
    )


def is_any_sdk(environ: Mapping[str, str], home: Path) -> bool:
    """Whether there is something to judge: QNN_SDK_ROOT, or a folder of ExecuTorch's downloader."""
    return bool(environ.get(VARIABLE)) or any(downloads_folder(environ, home).glob("sdk-*"))


def downloads_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Where ExecuTorch's downloader keeps SDKs."""
    staging = environ.get(_STAGING_VARIABLE)
    if staging:
        return Path(staging)
    cache = environ.get(_CACHE_VARIABLE)
    return (Path(cache) if cache else home / ".cache") / "executorch" / "qnn"


def _judge(root: Path, from_: str, parts: tuple[str, ...]) -> QnnSdk | Blocker:
    if not root.is_dir():
        return _missing(f"{from_} names {root}, which is not a folder")
    absent = [part for part in parts if not any(root.glob(part))]
    if absent:
        return _incomplete(root, from_, absent)
    versions = list(_versions(root))
    if not versions:
        return _missing(
            f"the QNN SDK in {root} does not say its version: neither sdk.yaml nor {_BUILD_ID} "
            "has it",
            _unpack_again(root, from_),
        )
    if len({version_numbers(v) for v in versions}) > 1:
        return _missing(
            f"the QNN SDK in {root} is mixed from two: sdk.yaml says {versions[0]} and {_BUILD_ID} "
            f"{versions[1]}",
            "Unpack each version into a separate folder.",
        )
    return QnnSdk(root, versions[0], from_)


def _incomplete(root: Path, from_: str, absent: list[str]) -> Blocker:
    inner = next((p.parent for p in _inner_sdks(root)), None)
    if inner:
        return _missing(
            f"{from_} names {root}, and the QNN SDK lies below it", f"export {VARIABLE}={inner}"
        )
    if not any(next(root.glob(part), None) for part in _PARTS):
        return _missing(f"{from_} names {root}, which is not a QNN SDK: there is no {_HEADERS}")
    return _missing(
        f"the QNN SDK in {root} is incomplete: there is no {' and no '.join(absent)}",
        _unpack_again(root, from_),
    )


def _unpack_again(root: Path, from_: str) -> str:
    if from_ == _DOWNLOADS:
        # The downloader accepts any non-empty folder as a complete SDK.
        return f"rm -r {shlex.quote(str(root))}\n{how_to_get()}"
    return unpack_again()


def unpack_again() -> str:
    """The remedy for an SDK of which files are missing."""
    return f"Unpack all of the SDK again, and export {VARIABLE}=/path/to/qairt/VERSION"


def _inner_sdks(root: Path) -> Iterator[Path]:
    """The version files of SDKs in a folder that an archive was unpacked into."""
    for pattern in ("*/sdk.yaml", "qairt/*/sdk.yaml", "*/qairt/*/sdk.yaml"):
        yield from sorted(root.glob(pattern), reverse=True)


def _versions(root: Path) -> Iterator[str]:
    """The version by each file that has it."""
    for name, pattern in (
        ("sdk.yaml", r"^version:\s*[\"']?v?([\d.]+)"),
        (_BUILD_ID, r"QNN_SDK_BUILD_ID\s+\"v?([\d.]+)"),
    ):
        found = re.search(pattern, read_text(root / name), re.MULTILINE)
        if found and VERSION.fullmatch(found[1]):
            yield found[1]


def _number(htp_arch: str) -> int:
    digits = htp_arch.removeprefix("V")
    return int(digits) if digits.isdigit() else 0


def _missing(why: str, remedy: str | None = None) -> Blocker:
    return Blocker("the QNN SDK", why, remedy or how_to_get())


def find_headers(station: Workstation) -> QnnSdk | Blocker:
    """The SDK whose headers a build uses."""
    return find_sdk(station.environ, station.home, BUILDING)


def headers_problem(station: Workstation) -> Blocker | None:
    """The blocker for a build without headers; None if there are some."""
    found = find_headers(station)
    if not isinstance(found, Blocker):
        return None
    why = found.why
    if not is_any_sdk(station.environ, station.home):
        why = (
            f"{VARIABLE} is not set, and there is no SDK in "
            f"{downloads_folder(station.environ, station.home)}"
        )
    return Blocker(
        found.what,
        "building ExecuTorch's part for QNN needs the headers of Qualcomm's SDK, which neither "
        f"its package nor its AAR has: {why}",
        found.remedy if is_any_sdk(station.environ, station.home) else how_to_get(),
    )


def sdk_option(sdk: QnnSdk | Blocker) -> ReasonedChoice:
    """The cmake variable for the SDK's headers.

    It is always set: without it, ExecuTorch's CMakeLists.txt downloads an SDK itself.
    """
    if isinstance(sdk, Blocker):
        return ReasonedChoice(name="QNN_SDK_ROOT", reason=f"headers of the QNN SDK: {sdk.why}")
    return ReasonedChoice(
        name="QNN_SDK_ROOT",
        value=str(sdk.root),
        reason=f"headers of QNN {sdk.number}, found by {sdk.from_}",
    )
