"""Writes an APK: a zip archive in which memory-mapped files begin at a whole page."""

from __future__ import annotations

import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from etdeploy.apps.android.app import BESIDE
from etdeploy.apps.android.tools import Library
from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import annotate_oserror, inside, write_atomic

# Android 15 and newer may have pages of 16 KB.
PAGE_BYTES = 16384
WORD_BYTES = 4
# Equal inputs give equal archives.
_DATE = (1981, 1, 1, 1, 1, 2)
_CHUNK_BYTES = 1 << 20
_LOCAL_HEADER_BYTES = 30
# What is stored of the assets, as the projects' build files say: it is mapped, or read in place.
_STORED = (".pte", ".bin")
# The extra field by which Android's tools know how an entry is aligned, and keep it.
_ALIGNMENT_FIELD = 0xD935


@dataclass(frozen=True)
class ApkEntry:
    """A file of an APK: its path there, and its bytes or the file with them.

    A stored one begins at a multiple of `aligned`; 0 compresses it.
    """

    name: str
    content: bytes | Path
    aligned: int = 0


def asset_entry(name: str, content: Path) -> ApkEntry:
    """An asset: a program is stored at a whole page, so that it can be mapped."""
    aligned = PAGE_BYTES if name.endswith(".pte") else WORD_BYTES
    return ApkEntry(f"assets/{name}", content, aligned if name.endswith(_STORED) else 0)


def library_entry(abi: str, name: str, content: Path, *, extracted: bool) -> ApkEntry:
    """A native library: loaded from the APK itself unless the installer extracts it."""
    return ApkEntry(f"lib/{abi}/{name}", content, 0 if extracted else PAGE_BYTES)


def read_entries(apk: Path) -> list[ApkEntry]:
    """The entries of an archive that a tool wrote; what it stored stays stored."""
    with zipfile.ZipFile(apk) as archive:
        return [
            ApkEntry(
                info.filename,
                archive.read(info),
                WORD_BYTES if info.compress_type == zipfile.ZIP_STORED else 0,
            )
            for info in archive.infolist()
        ]


def write_archive(path: Path, entries: Iterable[ApkEntry]) -> None:
    """Writes the archive; a name that comes twice keeps its first entry."""
    try:
        with annotate_oserror(path), zipfile.ZipFile(path, "w", allowZip64=False) as archive:
            seen: set[str] = set()
            for entry in entries:
                checkpoint()
                if entry.name not in seen:
                    seen.add(entry.name)
                    _write(archive, entry)
    except zipfile.LargeZipFile as error:
        raise BuildError(f"the app would be larger than 2 GiB: {error}", remedy=BESIDE) from error


def _write(archive: zipfile.ZipFile, entry: ApkEntry) -> None:
    info = zipfile.ZipInfo(entry.name, _DATE)
    info.compress_type = zipfile.ZIP_STORED if entry.aligned else zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    if entry.aligned:
        assert archive.fp is not None  # noqa: S101 - it is open
        begin = archive.fp.tell() + _LOCAL_HEADER_BYTES + len(entry.name.encode())
        info.extra = _padding(begin, entry.aligned)
    _copy(archive, info, entry.content)
    # Only the local header needs it: not also the directory at the end.
    info.extra = b""


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, content: bytes | Path) -> None:
    if isinstance(content, bytes):
        archive.writestr(info, content)
        return
    # zipfile decides by it whether the entry needs the larger header.
    info.file_size = content.stat().st_size
    with content.open("rb") as source, archive.open(info, "w") as target:
        while chunk := source.read(_CHUNK_BYTES):
            checkpoint()
            target.write(chunk)


def _padding(begin: int, aligned: int) -> bytes:
    """An extra field after which a multiple of `aligned` is reached."""
    empty = struct.calcsize("<HHH")
    zeros = -(begin + empty) % aligned
    return struct.pack("<HHH", _ALIGNMENT_FIELD, 2 + zeros, aligned) + bytes(zeros)


_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


def unpack_libraries(libraries: Sequence[Library], abis: Sequence[str], folder: Path) -> None:
    """Writes `NAME.jar`, `NAME.pro` and `ABI/*.so` of each library into a folder."""
    for library in libraries:
        with _library_errors(library.path):
            if library.path.suffix == ".jar":
                # A jar is a library whole; what it keeps is in META-INF, where R8 finds it.
                (folder / f"{library.name}.jar").write_bytes(library.path.read_bytes())
            else:
                _unpack_aar(library, abis, folder)


@contextmanager
def _library_errors(library: Path) -> Iterator[None]:
    """Turn the errors of a damaged library into one that names it."""
    try:
        yield
    except (*_DAMAGED, OSError) as error:
        raise BuildError(
            f"{library} cannot be read as an Android library: {error}",
            remedy="Remove the file, and fetch it again.",
        ) from error


def _unpack_aar(library: Library, abis: Sequence[str], folder: Path) -> None:
    with zipfile.ZipFile(library.path) as archive:
        names = archive.namelist()
        if "classes.jar" not in names:
            raise ValueError("it has no classes.jar")
        if any(name.startswith("res/") and not name.endswith("/") for name in names):
            raise BuildError(
                f"{library.path} has resources, which only Gradle merges into an app",
                remedy="Build it with Gradle: --set app.build=gradle",
            )
        _extract(archive, "classes.jar", folder / f"{library.name}.jar")
        if "proguard.txt" in names:
            _extract(archive, "proguard.txt", folder / f"{library.name}.pro")
        for name in _native(names, abis, library):
            target = inside(folder, name.removeprefix("jni/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            _extract(archive, name, target)


def _native(names: Sequence[str], abis: Sequence[str], library: Library) -> Iterator[str]:
    """The native libraries for the ABIs; a library may have none at all."""
    found = [n for n in names if n.startswith("jni/") and n.endswith(".so") and n.count("/") == 2]
    for abi in abis:
        each = [name for name in found if name.startswith(f"jni/{abi}/")]
        if found and not each:
            known = ", ".join(sorted({name.split("/")[1] for name in found}))
            raise BuildError(
                f"{library.path} has native libraries for {known} and none for {abi}",
                remedy=f"Build the app for these: --set app.abis=[{known}]",
            )
        yield from each


def _extract(archive: zipfile.ZipFile, name: str, target: Path) -> None:
    with archive.open(name) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file)


def unpack_native_module(aar: Path, abi: str, folder: Path) -> None:
    """Writes an AAR's headers and its libraries for an ABI into a folder; known files stay."""
    with _library_errors(aar), zipfile.ZipFile(aar) as archive:
        names = [n for n in archive.namelist() if _is_in_module(n, abi) and not n.endswith("/")]
        if not names:
            raise ValueError(f"it has no headers and no libraries for {abi}")
        for name in names:
            target = inside(folder, name)
            content = archive.read(name)
            # An unchanged header keeps its date, so that nothing is compiled again.
            if not target.is_file() or target.read_bytes() != content:
                write_atomic(target, content)


def _is_in_module(name: str, abi: str) -> bool:
    return name.startswith(f"jni/{abi}/") or (
        name.startswith("prefab/modules/") and "/include/" in name
    )


_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_NATIVE = "lib/"
_ELF_64 = b"\x7fELF\x02\x01"
_LOAD = 1
# Only processors of 64 bits have pages of 16 KB.
_ABIS_64 = ("arm64-v8a", "x86_64")


@dataclass(frozen=True)
class Placed:
    """A file of an APK, and where its bytes begin."""

    name: str
    offset: int
    stored: bool


def placed_files(apk: Path) -> tuple[Placed, ...]:
    """Every file of an APK with its place, which only its local header has."""
    with apk.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        return tuple(_placed(stream, info) for info in archive.infolist())


def apk_problems(apk: Path) -> Iterator[str]:
    """Problems that prevent installing an APK or mapping its files, as sentences."""
    with zipfile.ZipFile(apk) as archive:
        for file in placed_files(apk):
            yield from _misplacements(file)
            if file.name.startswith(_NATIVE) and file.name.split("/")[1] in _ABIS_64:
                with archive.open(file.name) as stream:
                    least = least_load_alignment(stream)
                if least is not None and least < PAGE_BYTES:
                    yield (
                        f"{file.name} is linked for pages of {least} bytes: on a phone with pages "
                        f"of {PAGE_BYTES} it is not loaded"
                    )


def require_sound(apk: Path) -> None:
    """Raises unless the files of an APK are where Android maps them."""
    try:
        wrong = [problem for file in placed_files(apk) for problem in _misplacements(file)]
    except (OSError, zipfile.BadZipFile, struct.error) as error:
        raise BuildError(f"the built APK cannot be read: {error}", place=str(apk)) from error
    if wrong:
        raise BuildError(
            f"the built APK is unusable: {'; '.join(wrong)}",
            place=str(apk),
            remedy="Install newer build tools: sdkmanager 'build-tools;36.0.0'",
        )


def least_load_alignment(library: IO[bytes]) -> int | None:
    """The least alignment of a library's loaded segments; None unless it is a 64-bit ELF file.

    Source: System V ABI, "Object files": the ELF header and the program headers.
    """
    head = library.read(64)
    if head[:6] != _ELF_64 or len(head) < 64:
        return None
    (begin,) = struct.unpack_from("<Q", head, 32)
    size, number = struct.unpack_from("<HH", head, 54)
    table = library.read(max(0, begin - 64 + size * number))[begin - 64 :]
    found = [
        struct.unpack_from("<Q", table, i * size + 48)[0]
        for i in range(len(table) // size if size else 0)
        if struct.unpack_from("<L", table, i * size)[0] == _LOAD
    ]
    return min(found, default=None)


def _misplacements(file: Placed) -> Iterator[str]:
    if file.name.startswith(_NATIVE) and file.stored and file.offset % PAGE_BYTES:
        yield f"{file.name} begins at {file.offset}, which is not a multiple of {PAGE_BYTES}"
    if file.name.endswith((".pte", "resources.arsc")):
        if not file.stored:
            yield f"{file.name} is compressed, so it cannot be mapped"
        elif file.offset % WORD_BYTES:
            yield f"{file.name} begins at {file.offset}, which is not a multiple of {WORD_BYTES}"


def _placed(stream: IO[bytes], info: zipfile.ZipInfo) -> Placed:
    stream.seek(info.header_offset)
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    return Placed(
        name=info.filename,
        offset=info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes,
        stored=info.compress_type == zipfile.ZIP_STORED,
    )
