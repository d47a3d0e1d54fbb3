"""Looks at an APK: where its files are, how its libraries are aligned, and what takes its room."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from etdeploy.apps.android.app import ApkParts
from etdeploy.apps.android.parts.archive import PAGE_BYTES, WORD_BYTES
from etdeploy.core.errors import BuildError

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_MODEL = "assets/model/"
_NATIVE = "lib/"
_ELF_64 = b"\x7fELF\x02\x01"
_LOAD = 1
# Only processors of 64 bits have pages of 16 KB.
_ABIS_64 = ("arm64-v8a", "x86_64")


@dataclass(frozen=True)
class Placed:
    """A file of an APK.

    Attributes:
        name: Its path there.
        offset: Where its bytes begin in the APK.
        stored: Whether they are not compressed.
        size_bytes: What it takes in the APK, with what aligns it.
    """

    name: str
    offset: int
    stored: bool
    size_bytes: int


def placed_files(apk: Path) -> tuple[Placed, ...]:
    """Every file of an APK with its place, which only its local header tells.

    Raises:
        zipfile.BadZipFile: It is no APK.
    """
    with apk.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        return tuple(_placed(stream, info) for info in archive.infolist())


def apk_parts(apk: Path) -> ApkParts:
    """What takes the room of an APK; headers and signatures count as other."""
    files = placed_files(apk)
    model = sum(file.size_bytes for file in files if file.name.startswith(_MODEL))
    native = sum(file.size_bytes for file in files if file.name.startswith(_NATIVE))
    other = apk.stat().st_size - model - native
    return ApkParts(model_bytes=model, native_bytes=native, other_bytes=other)


def apk_problems(apk: Path) -> Iterator[str]:
    """What keeps an APK from being installed, or its files from being mapped, as sentences."""
    with zipfile.ZipFile(apk) as archive:
        for file in placed_files(apk):
            yield from _placed_wrong(file)
            if file.name.startswith(_NATIVE) and file.name.split("/")[1] in _ABIS_64:
                with archive.open(file.name) as stream:
                    least = least_load_alignment(stream)
                if least is not None and least < PAGE_BYTES:
                    yield (
                        f"{file.name} is linked for pages of {least} bytes: on a phone with pages "
                        f"of {PAGE_BYTES} it is not loaded"
                    )


def require_sound(apk: Path) -> None:
    """Raises unless the files of an APK are where Android maps them.

    Raises:
        BuildError: They are not, or the APK cannot be read.
    """
    try:
        wrong = [problem for file in placed_files(apk) for problem in _placed_wrong(file)]
    except (OSError, zipfile.BadZipFile, struct.error) as error:
        raise BuildError(
            f"the APK that was built cannot be read: {error}", place=str(apk)
        ) from error
    if wrong:
        raise BuildError(
            f"the APK that was built does not do: {'; '.join(wrong)}",
            place=str(apk),
            remedy="Install newer build tools: sdkmanager 'build-tools;36.0.0'",
        )


def least_load_alignment(library: IO[bytes]) -> int | None:
    """The least alignment of what is loaded of an ELF library; None for no ELF of 64 bits.

    Source: System V ABI, "Object files": the ELF header and the program headers.
    """
    head = library.read(64)
    if head[:6] != _ELF_64 or len(head) < 64:
        return None
    begin, size, number = _program_headers(head)
    table = library.read(max(0, begin - 64 + size * number))[begin - 64 :]
    found = [
        struct.unpack_from("<Q", table, i * size + 48)[0]
        for i in range(len(table) // size if size else 0)
        if struct.unpack_from("<L", table, i * size)[0] == _LOAD
    ]
    return min(found, default=None)


def _program_headers(head: bytes) -> tuple[int, int, int]:
    (begin,) = struct.unpack_from("<Q", head, 32)
    size, number = struct.unpack_from("<HH", head, 54)
    return begin, size, number


def _placed_wrong(file: Placed) -> Iterator[str]:
    if file.name.startswith(_NATIVE) and file.stored and file.offset % PAGE_BYTES:
        yield f"{file.name} begins at {file.offset}, which is no multiple of {PAGE_BYTES}"
    if file.name.endswith((".pte", "resources.arsc")):
        if not file.stored:
            yield f"{file.name} is compressed, so it cannot be mapped"
        elif file.offset % WORD_BYTES:
            yield f"{file.name} begins at {file.offset}, which is no multiple of {WORD_BYTES}"


def _placed(stream: IO[bytes], info: zipfile.ZipInfo) -> Placed:
    stream.seek(info.header_offset)
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(stream.read(_LOCAL_HEADER.size))
    return Placed(
        name=info.filename,
        offset=info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes,
        stored=info.compress_type == zipfile.ZIP_STORED,
        size_bytes=info.compress_size + extra_bytes,
    )
