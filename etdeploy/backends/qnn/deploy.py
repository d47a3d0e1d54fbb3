"""Qualcomm's libraries that go to a phone: of the SDK, or of the AAR that the user names."""

from __future__ import annotations

import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from etdeploy.backends.qnn.facts import (
    BUILD_ID,
    LEAST_SDK,
    QualcommSoc,
    dotted,
    short_version,
    version_numbers,
)
from etdeploy.backends.qnn.sdk import (
    ANDROID_LIBRARIES,
    DEPLOYING,
    SDK_VARIABLE,
    QnnSdk,
    find_sdk,
    how_to_get,
    no_sdk_reason,
)
from etdeploy.backends.values import Workstation
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.files.basic import not_regular, open_regular
from etdeploy.core.hashing import sha256_file, stat_signature

AAR_VARIABLE = "QNN_RUNTIME_AAR"
COORDINATES = "com.qualcomm.qti:qnn-runtime"
AAR_FOLDER = "jni/arm64-v8a"
_MAIN = "libQnnHtp.so"
_LIBRARY = re.compile(rf"{AAR_FOLDER}/(libQnn(?:Htp\w*|System)\.so)")
_OTHER = re.compile(rf"jni/([^/]+)/{re.escape(_MAIN)}")
# A whole release has 0.3 GB. An archive with much more is made to fill a disk.
_MOST_BYTES = 2_000_000_000
_CHUNK_BYTES = 1 << 20
# An ELF file's e_machine, for arm64.
_MACHINE, _AARCH64 = slice(18, 20), b"\xb7\x00"
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError)


@dataclass(frozen=True)
class Aar:
    """An AAR with QNN's libraries for phones; `version` is None if its libQnnHtp.so has none."""

    path: Path
    version: str | None
    libraries: tuple[str, ...]


def read_aar(path: Path) -> Aar | Blocker:
    """Reads what an AAR contains; nothing is unpacked."""
    if not path.is_file():
        kind = not_regular(path) if path.exists() else None
        return _unusable(f"names {path}, which {f'is {kind}' if kind else 'does not exist'}")
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
                return _unusable(f"names {path}, {_without(archive)}")
            wrong = _wrong(found)
            if wrong:
                return _unusable(f"names {path}, {wrong}")
            with archive.open(found[_MAIN]) as stream:
                head = stream.read(20)
                if head[:4] != b"\x7fELF" or head[_MACHINE] != _AARCH64:
                    return _unusable(
                        f"names {path}, whose {AAR_FOLDER}/{_MAIN} is not a library for arm64"
                    )
                version = _version(stream)
    except _DAMAGED as error:
        return _unusable(f"names {path}, which cannot be read as an AAR (a zip archive): {error}")
    return Aar(path, version, tuple(sorted(found)))


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with open_regular(path) as stream, zipfile.ZipFile(stream) as archive:
        yield archive


def _without(archive: zipfile.ZipFile) -> str:
    others = sorted({m[1] for name in archive.namelist() if (m := _OTHER.fullmatch(name))})
    if others:
        return f"which has QNN's libraries for {', '.join(others)} and none for arm64-v8a"
    return f"which has no {AAR_FOLDER}/{_MAIN}: it is not {COORDINATES}"


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
                with (
                    archive.open(f"{AAR_FOLDER}/{name}") as source,
                    (folder / name).open("wb") as to,
                ):
                    shutil.copyfileobj(source, to)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError) as error:
        raise BuildError(
            f"{AAR_VARIABLE} names {aar.path}, which is damaged: {error}", remedy=_REMEDY
        ) from error


_REMEDY = (
    f"Download {COORDINATES} (an .aar) from Maven again, and\n"
    f"export {AAR_VARIABLE}=/path/to/qnn-runtime-VERSION.aar"
)


def _unusable(what_it_names: str) -> Blocker:
    return Blocker("QNN for phones", f"{AAR_VARIABLE} {what_it_names}", _REMEDY)


_SKEL = re.compile(r"libQnnHtp(V\d+)Skel\.so")


@dataclass(frozen=True)
class DeployKit:
    """Libraries for Android phones with arm64, by name their paths in an SDK or an AAR."""

    version: str | None
    origin: QnnSdk | Aar
    libraries: Mapping[str, str]

    def __str__(self) -> str:
        """For messages: `the QNN SDK 2.37.0 in /opt/qairt`."""
        if isinstance(self.origin, Aar):
            return f"{self.origin.path} ({self.number})"
        return f"the QNN SDK {self.origin.number} in {self.origin.root}"

    @property
    def place(self) -> Path:
        """The folder of the SDK, or the AAR."""
        return self.origin.path if isinstance(self.origin, Aar) else self.origin.root

    @property
    def identity(self) -> str:
        """What tells it from another, also from another file of the same name."""
        if isinstance(self.origin, Aar):
            size_bytes, modified_ns, *_ = stat_signature(self.origin.path)
            return f"{self.number} in {self.place}, {size_bytes} bytes of {modified_ns}"
        return f"{self.version} in {self.place}"

    @property
    def number(self) -> str:
        """`QNN 2.37.0`, or that the version is not known."""
        return f"QNN {short_version(self.version)}" if self.version else "an unknown version of QNN"

    @property
    def htp_archs(self) -> tuple[str, ...]:
        """The generations of the HTP that it has libraries for, oldest first."""
        found = (_SKEL.fullmatch(name) for name in self.libraries)
        return tuple(sorted((m[1] for m in found if m), key=lambda arch: int(arch[1:])))

    def where(self, name: str, htp_arch: str) -> str:
        """Where a library of that name belongs, for a message about one that is absent."""
        if isinstance(self.origin, Aar):
            return f"{AAR_FOLDER}/{name}"
        skel = f"lib/hexagon-{htp_arch.lower()}/unsigned"
        return f"{skel if _SKEL.fullmatch(name) else ANDROID_LIBRARIES}/{name}"

    def paths(self, names: Iterable[str]) -> tuple[Path, ...]:
        """The files, for a bundle; an AAR is unpacked into the cache."""
        if isinstance(self.origin, Aar):
            folder = unpack_aar(self.origin, Workspace.default())
            return tuple(folder / name for name in names)
        return tuple(self.origin.root / self.libraries[name] for name in names)


def find_deploy_kit(station: Workstation, least: str | None = None) -> DeployKit | Blocker:
    """The AAR that the user names, or else the SDK; remedies name the `least` version of an AAR.

    An AAR is named for the libraries alone, and an SDK also for its compiler and its headers: so
    who sets both wants the AAR's libraries.
    """
    named = station.environ.get(AAR_VARIABLE)
    if named:
        aar = read_aar(Path(named).expanduser().absolute())
        if isinstance(aar, Blocker):
            return aar
        return DeployKit(aar.version, aar, {name: f"{AAR_FOLDER}/{name}" for name in aar.libraries})
    sdk = find_sdk(station.environ, station.home, DEPLOYING)
    if isinstance(sdk, Blocker):
        absent = no_sdk_reason(station, AAR_VARIABLE)
        why = f"Qualcomm's libraries for phones are not here: {absent}" if absent else sdk.why
        return Blocker("QNN for phones", why, f"{sdk.remedy}\n{name_an_aar(least)}")
    files = (path for folder in DEPLOYING for path in sdk.root.glob(f"{folder}/libQnn*.so"))
    found = {path.name: path.relative_to(sdk.root).as_posix() for path in files if path.is_file()}
    return DeployKit(sdk.version, sdk, found)


def name_an_aar(version: str | None = None) -> str:
    """The remedy that gets the libraries alone: of a version or newer, or of any."""
    which = f"{COORDINATES} {version} or newer" if version else COORDINATES
    return (
        f"or download {which} (an .aar with these libraries alone) from Maven, and\n"
        f"export {AAR_VARIABLE}=/path/to/qnn-runtime-VERSION.aar"
    )


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
        f"{how_to_get(wanted)}\n{name_an_aar(wanted)}",
    )


def _whole_again(kit: DeployKit) -> str:
    if isinstance(kit.origin, Aar):
        return f"Take another archive, or an SDK:\n{how_to_get()}\n{name_an_aar()}"
    return (
        "Unpack all of the SDK again, or use another:\n"
        f"export {SDK_VARIABLE}=/path/to/qairt/VERSION"
    )
