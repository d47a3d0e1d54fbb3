"""Writes an APK: a zip archive in which what is mapped into memory begins at a whole page."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from etdeploy.apps.android.app import BESIDE
from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import BuildError
from etdeploy.core.files.disk import naming

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
class Entry:
    """A file of an APK.

    Attributes:
        name: Its path there.
        content: Its bytes, or the file with them.
        aligned: What its place is a multiple of, if it is stored; 0 for one that is compressed.
    """

    name: str
    content: bytes | Path
    aligned: int = 0


def asset_entry(name: str, content: Path) -> Entry:
    """An asset: a program is stored at a whole page, so that it can be mapped."""
    aligned = PAGE_BYTES if name.endswith(".pte") else WORD_BYTES
    return Entry(f"assets/{name}", content, aligned if name.endswith(_STORED) else 0)


def library_entry(abi: str, name: str, content: Path, *, extracted: bool) -> Entry:
    """A native library: loaded from the APK itself unless the installer extracts it."""
    return Entry(f"lib/{abi}/{name}", content, 0 if extracted else PAGE_BYTES)


def entries_of(apk: Path) -> list[Entry]:
    """The entries of an archive that a tool wrote; what it stored stays stored."""
    with zipfile.ZipFile(apk) as archive:
        return [
            Entry(
                info.filename,
                archive.read(info),
                WORD_BYTES if info.compress_type == zipfile.ZIP_STORED else 0,
            )
            for info in archive.infolist()
        ]


def write_archive(path: Path, entries: Iterable[Entry]) -> None:
    """Writes the archive; a name that comes twice keeps its first entry.

    Raises:
        OSError: A file cannot be read, or the archive cannot be written.
        BuildError: It would be larger than Android reads.
    """
    try:
        with naming(path), zipfile.ZipFile(path, "w", allowZip64=False) as archive:
            _write_all(archive, entries)
    except zipfile.LargeZipFile as error:
        raise BuildError(f"the app would be larger than 2 GiB: {error}", remedy=BESIDE) from error


def _write_all(archive: zipfile.ZipFile, entries: Iterable[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        checkpoint()
        if entry.name not in seen:
            seen.add(entry.name)
            _write(archive, entry)


def _write(archive: zipfile.ZipFile, entry: Entry) -> None:
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
    """An extra field after which a multiple of `aligned` is reached.

    Args:
        begin: Where the field itself begins in the file.
        aligned: The multiple, which the field also tells.
    """
    empty = struct.calcsize("<HHH")
    zeros = -(begin + empty) % aligned
    return struct.pack("<HHH", _ALIGNMENT_FIELD, 2 + zeros, aligned) + bytes(zeros)
