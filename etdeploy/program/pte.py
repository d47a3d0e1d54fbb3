"""The layout of a `.pte` file: a FlatBuffer, followed by data segments.

    byte 0   offset of the root table     4   file identifier "ET12"
         8   extended header: "eh00", its length (u32), size of the FlatBuffer (u64),
             where segments begin (u64), size of all segments (u64, in headers of 32 bytes)

Sources: schema/program.fbs and exir/_serialize/_program.py of the ExecuTorch wheel.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import open_regular
from etdeploy.core.flatbuffer import CorruptError

FILE_IDENTIFIER = b"ET12"
_HEADER = struct.Struct("<4sIQQ")
_HEADER_MAGIC = b"eh00"
_HEADER_AT = 8
_SMALLEST = 8
_COPY_FIRST = "Name a file. Save what comes through a pipe first: cat > model.pte"

# Files that people name by mistake: offset, magic bytes, what it is, what to do.
_OTHER_FILES: tuple[tuple[int, bytes, str, str], ...] = (
    (
        0,
        b"PK\x03\x04",
        "a zip archive, such as a PyTorch checkpoint or torch.export file",
        "Export it first: name it in a recipe as model.exported (.pt2) or as model.weights.",
    ),
    (
        0,
        b"version https://git-lfs",
        "a Git LFS pointer, not the file itself",
        "Fetch the file: git lfs pull",
    ),
    (
        4,
        b"BP",
        "a bundled program, a .pte with test cases around it",
        "Give the plain .pte that it was made from.",
    ),
    (
        4,
        b"FT01",
        "a tensor data file (.ptd), which goes with a program",
        "Give the .pte that it belongs to.",
    ),
    (4, b"ED00", "an ETDump, the trace of a run", "Give the .pte that was run."),
    (0, b"<!", "a web page, perhaps in place of a download that failed", "Download it again."),
    (0, b"<html", "a web page, perhaps in place of a download that failed", "Download it again."),
)


@dataclass(frozen=True)
class PteFile:
    """The parts of a file in memory.

    Attributes:
        flatbuffer: The program's FlatBuffer.
        segments: All bytes from where segments begin; empty when there are none.
        size_bytes: Of the file.
    """

    flatbuffer: memoryview
    segments: memoryview
    size_bytes: int

    def segment(self, offset: int, size: int) -> memoryview:
        """One segment's bytes.

        Raises:
            CorruptError: It reaches beyond the end of the file.
        """
        if offset + size > len(self.segments):
            missing = offset + size - len(self.segments)
            raise CorruptError(f"a data segment ends {missing} bytes after the end of the file")
        return self.segments[offset : offset + size]


def map_pte(path: Path) -> PteFile:
    """Maps a program into memory, without reading it, and splits it into its parts.

    Raises:
        UsageError: It is missing, a folder, unreadable, empty, another kind of file or truncated.
    """
    try:
        if path.is_dir():
            raise UsageError(
                "this is a folder, not a program", place=str(path), remedy=_in_folder(path)
            )
        with open_regular(path) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            if size_bytes < _SMALLEST:
                raise _too_small(path, size_bytes)
            # Unmapped with the last view of it: closing it explicitly would need all of them.
            mapped = mmap(stream.fileno(), 0, access=ACCESS_READ)
    except FileNotFoundError:
        raise UsageError(
            "there is no such file",
            place=str(path),
            remedy=f"Look around it: ls {quoted(path.parent)}",
        ) from None
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}",
            place=str(path),
            remedy=_COPY_FIRST if error.errno == errno.EINVAL else None,
        ) from error
    return _split(path, memoryview(mapped))


def damaged(path: Path, problem: str) -> UsageError:
    """The error for a damaged program file."""
    return UsageError(
        f"the program is damaged: {problem}",
        place=str(path),
        remedy="Copy or download it again and compare digests (sha256sum), or export it again.",
    )


def _split(path: Path, view: memoryview) -> PteFile:
    head = bytes(view[:64])
    if head[4:8] != FILE_IDENTIFIER:
        raise _other_file(path, head)
    header = head[_HEADER_AT : _HEADER_AT + 32]
    if not header.startswith(_HEADER_MAGIC):
        return PteFile(view, view[len(view) :], len(view))  # files from before segments
    if len(header) < 32:
        raise _cut_short(path, 64, len(view))
    _, length, program_size, base = _HEADER.unpack_from(header)
    segments_size = int.from_bytes(header[24:32], "little") if length >= 32 else 0
    expected = max(program_size, base + segments_size if base else 0)
    if expected > len(view):
        raise _cut_short(path, expected, len(view))
    if program_size < _SMALLEST or (base and base < program_size):
        raise damaged(path, "its header contradicts itself")
    return PteFile(view[:program_size], view[base or len(view) :], len(view))


def _cut_short(path: Path, expected: int, actual: int) -> UsageError:
    return UsageError(
        f"the program is truncated: its header says {expected:,} bytes, the file has {actual:,}; "
        "it was probably copied or downloaded incompletely",
        place=str(path),
        remedy="Copy or download it again and compare digests (sha256sum), or export it again.",
    )


def _too_small(path: Path, size_bytes: int) -> UsageError:
    what = "the file is empty" if size_bytes == 0 else f"{size_bytes} bytes are not a program"
    return UsageError(
        what, place=str(path), remedy="Export the program again; a full disk may have cut it off."
    )


def _other_file(path: Path, head: bytes) -> UsageError:
    for at, magic, what, remedy in _OTHER_FILES:
        if head[at : at + len(magic)] == magic:
            return UsageError(f"this is {what}", place=str(path), remedy=remedy)
    found = head[4:8]
    if found[:2] == b"ET" and found[2:].isdigit():
        return UsageError(
            f"the program has file format {found.decode()}; this version reads "
            f"{FILE_IDENTIFIER.decode()}",
            place=str(path),
            remedy="Export it again with the ExecuTorch version that `etdeploy doctor` shows.",
        )
    return UsageError(
        f"this is not an ExecuTorch program: bytes 4 to 7 are {found!r}, "
        f"a .pte has {FILE_IDENTIFIER!r}",
        place=str(path),
        remedy="Name a .pte file, such as one from `etdeploy export`.",
    )


def _in_folder(path: Path) -> str:
    programs = sorted(p for p in path.glob("*.pte") if p.is_file())
    return f"Name the file, such as {quoted(programs[0])}" if programs else "Name a .pte file."
