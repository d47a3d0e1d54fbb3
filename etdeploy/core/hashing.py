"""Digests of files and values."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etdeploy.core.cancel import checkpoint
from etdeploy.core.files.basic import PACKAGE, open_regular

_CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """The SHA-256 of a regular file in hexadecimal; OSError for anything else."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_read(path: Path, take: Callable[[bytes], object] = len) -> str:
    """The SHA-256 of a regular file that may be large."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK):
            checkpoint()
            digest.update(chunk)
            take(chunk)
    return digest.hexdigest()


def sha256_parts(path: Path, part_bytes: int) -> tuple[str, tuple[str, ...]]:
    """The SHA-256 of a regular file, and of each of its parts, from the same bytes.

    Args:
        path: The file.
        part_bytes: Size of all parts but the last; a multiple of 1 MiB.
    """
    whole = hashlib.sha256()
    parts: list[str] = []
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK):
            part, left = hashlib.sha256(), part_bytes
            while chunk:
                whole.update(chunk)
                part.update(chunk)
                left -= len(chunk)
                chunk = stream.read(min(_CHUNK, left))
            parts.append(part.hexdigest())
            checkpoint()
    return whole.hexdigest(), tuple(parts)


def sha256_bytes(data: bytes) -> str:
    """The SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """A SHA-256 of a JSON value that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256_bytes(text.encode())


def stat_signature(path: Path) -> tuple[int, int, int, int]:
    """Size, mtime, ctime (ns) and inode: equal stamps mean an untouched file."""
    info = path.stat()
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


@functools.cache
def code_digest(*parts: str, package: Path = PACKAGE) -> str:
    """A digest of the Python files of parts of etdeploy, read once per process.

    It is part of the key of what these parts make: a release with other rules makes it again.
    """
    files = sorted(path for part in parts for path in (package / part).rglob("*.py"))
    return digest_json({p.relative_to(package).as_posix(): sha256_file(p) for p in files})
