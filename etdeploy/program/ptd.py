"""The tensor data files (`.ptd`) of a program whose weights are outside of it.

    byte 0   offset of the root table     4   file identifier "FT01"
         8   header: "FH01", its length (u32), offset and size of the FlatBuffer (u64 each),
             where segments begin, size of all segments (u64 each)

Sources: extension/flat_tensor/serialize/flat_tensor.fbs and flat_tensor_header.h of ExecuTorch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from mmap import ACCESS_READ, mmap
from pathlib import Path

from etdeploy.core.console import count, listed
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import open_regular
from etdeploy.core.flatbuffer import CorruptError, FlatBuffer

SUFFIX = ".ptd"
_IDENTIFIER = b"FT01"
_HEADER = struct.Struct("<4sIQQQQ")
_HEADER_MAGIC = b"FH01"
_HEADER_AT = 8
# Slots of the tables, named as in the schema.
_NAMED_DATA, _KEY = 2, 0


def data_keys(path: Path) -> frozenset[str]:
    """The names of the weights in a file.

    Raises:
        UsageError: It is not such a file, or it is truncated or damaged.
    """
    try:
        with open_regular(path) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            view = memoryview(mmap(stream.fileno(), 0, access=ACCESS_READ)) if size_bytes else b""
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", place=str(path)) from error
    if len(view) < _HEADER_AT + _HEADER.size or bytes(view[4:8]) != _IDENTIFIER:
        raise UsageError(
            "this is not a tensor data file (.ptd)",
            place=str(path),
            remedy="Copy or download it again, or move it away from the program.",
        )
    magic, _, offset, size, base, data = _HEADER.unpack_from(view, _HEADER_AT)
    if magic != _HEADER_MAGIC or max(offset + size, base + data) > len(view):
        raise UsageError(
            f"the tensor data file is truncated: its header says {base + data:,} bytes, the file "
            f"has {len(view):,}",
            place=str(path),
            remedy="Copy or download it again and compare digests (sha256sum).",
        )
    try:
        # The header is inside of the FlatBuffer, whose root is found from the file's beginning.
        root = FlatBuffer(memoryview(view)[: offset + size]).root()
        return frozenset(named.string(_KEY) for named in root.tables(_NAMED_DATA))
    except CorruptError as error:
        raise UsageError(f"the tensor data file is damaged: {error}", place=str(path)) from error


def find_data(program: Path, wanted: Iterable[str], folder: Path) -> tuple[Path, ...]:
    """The files of a folder that have the weights which a program names.

    Raises:
        UsageError: Weights are in none of the files, or in several.
    """
    missing, found = set(wanted), dict[Path, frozenset[str]]()
    files = sorted(folder.glob(f"*{SUFFIX}")) if missing else []
    for path in files:
        keys = data_keys(path) & set(wanted)
        if keys:
            found[path] = keys
        missing -= keys
    if missing:
        names = listed(sorted(missing), counts=True)
        there = ", ".join(path.name for path in files)
        raise UsageError(
            f"{count(len(missing), 'weight')} of the program are outside of it, and in "
            f"{f'none of {there}' if there else 'no .ptd file beside it'}: {names}",
            place=str(program),
            remedy=f"Put the .ptd files that were made with the program into {folder}",
        )
    for path, keys in found.items():
        other = next((o for o, theirs in found.items() if o != path and theirs & keys), None)
        if other:
            raise UsageError(
                f"{path.name} and {other.name} both have weights of the program, such as "
                f"{sorted(keys & found[other])[0]}",
                place=str(program),
                remedy="Keep beside the program only the files that belong to it.",
            )
    return tuple(found)
