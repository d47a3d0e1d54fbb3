"""Qualcomm's libraries for Android phones as an AAR: com.qualcomm.qti:qnn-runtime, from Maven.

    jni/arm64-v8a/   libQnnHtp.so, libQnnSystem.so, and a stub and a skel for each HTP

It is a zip archive, which the user downloads and names. It has no headers, so a runner cannot be
built with it.
"""

from __future__ import annotations

import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from etdeploy.backends.qnn.versions import BUILD_ID
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.files.basic import not_regular, open_regular
from etdeploy.core.hashing import sha256_file, stamp

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
    return _read(path, stamp(path))


def unpack_aar(aar: Aar, workspace: Workspace) -> Path:
    """The folder of the cache with its libraries, unpacked if it is not there yet.

    Raises:
        BuildError: The archive is damaged; nothing of it is kept.
    """
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
