"""Digests of files, remembered while the files stay untouched."""

from __future__ import annotations

import json
import time
from pathlib import Path

from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import sha256_file, stamp

# A file written this recently could change again without a new date on a coarse clock.
_SETTLED_NS = 2_000_000_000


class FileDigests:
    """SHA-256 by path, so that large weights are not read again in each run.

    Args:
        store: Where size, dates, inode and digest of each file are kept.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._known = _read(store)
        self._changed = False

    def of(self, path: str | Path) -> str | None:
        """The file's digest; None when it cannot be read."""
        name = str(path)
        try:
            now = list(stamp(Path(name)))
            known = self._known.get(name)
            if known and known[0] == now:
                return str(known[1])
            digest = sha256_file(Path(name))
        except OSError:
            return None
        if time.time_ns() - max(now[1], now[2]) > _SETTLED_NS:
            self._known[name] = [now, digest]
            self._changed = True
        return digest

    def save(self) -> None:
        """Saves new digests for the next run."""
        if self._changed:
            write_atomic(self._store, json.dumps(self._known))
            self._changed = False


def _read(store: Path) -> dict[str, list[object]]:
    try:
        content = json.loads(store.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
