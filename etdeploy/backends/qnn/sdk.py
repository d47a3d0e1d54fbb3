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
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.backends.qnn.facts import (
    PINNED_VERSION,
    QUALCOMM_SOCS,
    VERSION,
    QualcommSoc,
    dotted,
    short_version,
    version_numbers,
)
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import read_text

SDK_VARIABLE = "QNN_SDK_ROOT"
# ExecuTorch's own downloader keeps the SDK in one of these (scripts/download_qnn_sdk.py).
_STAGING_VARIABLE = "QNN_STAGING_DIR"
_CACHE_VARIABLE = "XDG_CACHE_HOME"

_DOWNLOADER = "executorch.backends.qualcomm.scripts.download_qnn_sdk"

HOST_LIBRARIES = "lib/x86_64-linux-clang"
ANDROID_LIBRARIES = "lib/aarch64-android"
_HEADERS = "include/QNN"
SKELS = "lib/hexagon-v*/unsigned"
_BUILD_ID = "include/QNN/QnnSdkBuildId.h"
COMPILER = "libQnnHtp.so"
# ExecuTorch's adaptor reads the compiler's output with it.
READER = "libQnnSystem.so"
# What each purpose needs of an SDK.
COMPILING = (f"{HOST_LIBRARIES}/{COMPILER}",)
BUILDING = (_HEADERS,)
DEPLOYING = (ANDROID_LIBRARIES, SKELS)
_PARTS = (*BUILDING, *COMPILING, *DEPLOYING)
_DOWNLOADS = "ExecuTorch's downloads"


@dataclass(frozen=True)
class QnnSdk:
    """An SDK on this machine, found by the variable or in ExecuTorch's downloads (`from_`)."""

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
        folders = (folder.parent.name for folder in self.root.glob(SKELS))
        return tuple(sorted((f.removeprefix("hexagon-").upper() for f in folders), key=_number))


def find_sdk(
    environ: Mapping[str, str], home: Path, parts: tuple[str, ...] = _PARTS
) -> QnnSdk | Blocker:
    """The SDK that QNN_SDK_ROOT names, or else the newest that ExecuTorch has downloaded.

    The variable is the user's choice: if it names no SDK, that is reported and no other is used
    instead.
    """
    named = environ.get(SDK_VARIABLE)
    if named:
        return _judge(Path(named).expanduser().absolute(), SDK_VARIABLE, parts)
    downloads = downloads_folder(environ, home)
    judged = [_judge(folder, _DOWNLOADS, parts) for folder in downloads.glob("sdk-*")]
    whole = [sdk for sdk in judged if isinstance(sdk, QnnSdk)]
    if whole:
        return max(whole, key=lambda sdk: version_numbers(sdk.version))
    if judged:
        return next(m for m in judged if isinstance(m, Blocker))
    return _missing(f"{SDK_VARIABLE} is not set, and there is none in {downloads}")


def how_to_get(version: str | None = None) -> str:
    """The commands that install an SDK: of a version, or for a SoC that is not known here."""
    if version is None:
        return "\n".join((_how_to_download(), *_EXCEPTIONS))
    return (
        f"Download QNN {version} or newer (Qualcomm AI Runtime SDK) from Qualcomm, unpack it and\n"
        f"export {SDK_VARIABLE}=/path/to/qairt/{version}"
    )


def _how_to_download() -> str:
    return (
        f"{sys.executable} -m {_DOWNLOADER}   (downloads {PINNED_VERSION}, as an export "
        f"with ExecuTorch alone would)\n"
        f"or unpack one from Qualcomm and export {SDK_VARIABLE}=/path/to/qairt/{PINNED_VERSION}"
    )


def newer_sdk(soc: str | None) -> str | None:
    """The SDK that a SoC needs, if it is newer than the one that ExecuTorch downloads."""
    facts = QUALCOMM_SOCS.get(soc or "")
    least = facts.least_sdk if facts else (0, 0)
    return dotted(least) if least > version_numbers(PINNED_VERSION)[:2] else None


# The SoCs that need a newer one, by the version.
_EXCEPTIONS = tuple(
    f"For {', '.join(socs)} take QNN {version} or newer from Qualcomm."
    for version in sorted({v for v in map(newer_sdk, QUALCOMM_SOCS) if v})
    if (socs := [name for name in QUALCOMM_SOCS if newer_sdk(name) == version])
)


def for_soc(blocker: Blocker, soc: str | None) -> Blocker:
    """The blocker, with a remedy that names the SDK that a known SoC needs, and no other."""
    if soc not in QUALCOMM_SOCS:
        return blocker
    newer = newer_sdk(soc)
    wanted = how_to_get(newer) if newer else _how_to_download()
    return replace(blocker, remedy=blocker.remedy.replace(how_to_get(), wanted))


def no_sdk_reason(station: Workstation, *other_variables: str) -> str | None:
    """Why no SDK can be examined; None if a variable names one or ExecuTorch downloaded one."""
    downloads = downloads_folder(station.environ, station.home)
    if station.environ.get(SDK_VARIABLE) or any(downloads.glob("sdk-*")):
        return None
    names = " nor ".join((SDK_VARIABLE, *other_variables))
    unset = f"neither {names} is set" if other_variables else f"{names} is not set"
    return f"{unset}, and there is no SDK in {downloads}"


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
            f"{from_} names {root}, and the QNN SDK lies below it", f"export {SDK_VARIABLE}={inner}"
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
    return f"Unpack all of the SDK again, and export {SDK_VARIABLE}=/path/to/qairt/VERSION"


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
    absent = no_sdk_reason(station)
    return Blocker(
        found.what,
        "building ExecuTorch's part for QNN needs the headers of Qualcomm's SDK, which neither "
        f"its package nor its AAR has: {absent or found.why}",
        how_to_get() if absent else found.remedy,
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
