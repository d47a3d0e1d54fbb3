"""Digests of files and values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from etdeploy.core.files.basic import open_regular

_CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """The SHA-256 of a regular file in hexadecimal; OSError for anything else."""
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    """The SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """A SHA-256 of a JSON value that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256_bytes(text.encode())


def stamp(path: Path) -> tuple[int, int, int, int]:
    """Size, mtime, ctime (ns) and inode: equal stamps mean an untouched file."""
    info = path.stat()
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino
