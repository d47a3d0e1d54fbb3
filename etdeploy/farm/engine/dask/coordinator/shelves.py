"""The coordinator's files: parcels that hosts may read, and records that they send."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import open_regular
from etdeploy.core.files.leftovers import remove_tree
from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.dask.archive import LIMIT_BYTES, safe_relative, unpack
from etdeploy.farm.engine.dask.wire import CHUNK_BYTES, Key
from etdeploy.farm.model import Parcel

_INCOMING = ".incoming"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


class Parcels:
    """The files of parcels by digest: the only ones that a host may read."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}

    def add(self, parcel: Parcel) -> None:
        """Lets hosts read the files of a parcel."""
        for name, digest in parcel.files.items():
            self._paths[digest] = Path(parcel.folder) / safe_relative(name)

    def read(self, digest: str, offset: int) -> bytes:
        """At most a chunk of a file; empty at its end.

        Raises:
            UsageError: It is in no parcel of this night, or the offset is none.
            OSError: It cannot be read.
        """
        path = self._paths.get(digest)
        if path is None or offset < 0:
            raise UsageError("only files of parcels can be read")
        with open_regular(path) as stream:
            stream.seek(offset)
            return stream.read(CHUNK_BYTES)


class Records:
    """Archives of attempts that hosts send in chunks, and the folders that they become."""

    def __init__(self, results: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._results = results
        self._limit_bytes = limit_bytes
        self.clear()

    def store(self, key: Key, offset: int, data: bytes) -> int:
        """Appends a chunk if it is the next one.

        Returns:
            How many bytes are there now: where the host goes on.

        Raises:
            UsageError: The archive would be too large.
            OSError: There is no room.
        """
        path = self._incoming(key)
        have_bytes = path.stat().st_size if path.exists() else 0
        if offset != have_bytes:
            return have_bytes
        if have_bytes + len(data) > self._limit_bytes:
            self.drop(key)
            raise UsageError(f"the records take more than {self._limit_bytes} bytes")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:
            stream.write(data)
        return have_bytes + len(data)

    def finish(self, key: Key, digest: str) -> Path:
        """Unpacks an archive that is complete.

        Returns:
            The folder with the files of the attempt.

        Raises:
            UsageError: It did not arrive as it was sent, or does not stay in its folder.
            OSError: There is no room.
        """
        path = self._incoming(key)
        try:
            if not path.is_file() or sha256_file(path) != digest:
                raise UsageError("the records did not arrive as they were sent")
            folder = self._results / _folder_name(key)
            unpack(path, folder, self._limit_bytes)
            return folder
        finally:
            self.drop(key)

    def drop(self, key: Key) -> None:
        """Deletes what has arrived of an archive."""
        self._incoming(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Deletes what was cut."""
        remove_tree(self._results / _INCOMING)

    def _incoming(self, key: Key) -> Path:
        return self._results / _INCOMING / f"{_folder_name(key)}.tar.gz"


def _folder_name(key: Key) -> str:
    visit, attempt = key
    plain = visit if _PLAIN.fullmatch(visit) else hashlib.sha256(visit.encode()).hexdigest()[:16]
    return f"{plain}-attempt-{attempt}"
