"""The folder of an attempt as one file, and back, without leaving its folder."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import folder_files, new_folder

LIMIT_BYTES = 4 << 30
"""What the records of one attempt may take on the coordinator's disk."""


def pack(folder: Path, archive: Path) -> None:
    """Writes the regular files of a folder to an archive."""
    with tarfile.open(archive, "w:gz", compresslevel=3) as tar:
        for name in folder_files(folder):
            path = folder / name
            if not path.is_symlink():
                tar.add(path, name, recursive=False)


def unpack(archive: Path, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Fills a new folder from an archive of another host; it appears complete or not at all.

    Raises:
        UsageError: The archive has something else than files below it, is too large or is damaged.
    """
    try:
        with new_folder(folder) as work, tarfile.open(archive, "r:gz") as tar:
            left_bytes = limit_bytes
            for member in tar:
                left_bytes -= member.size
                if left_bytes < 0:
                    raise UsageError(f"the records take more than {limit_bytes} bytes")
                _extract(tar, member, work)
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(f"the records arrived damaged: {error}") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    name = safe_relative(member.name)
    source = tar.extractfile(member) if member.isreg() else None
    if source is None:
        raise UsageError(f"{member.name!r} in the records is no file")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("xb") as stream:
        shutil.copyfileobj(source, stream)


def safe_relative(name: str) -> PurePosixPath:
    """A path of another host that stays below the folder that it is joined to.

    Raises:
        UsageError: It does not, or names the folder itself.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise UsageError(f"the path {name!r} leads out of its folder")
    return path
