"""The cache: content-addressed entries that are verified before they are used.

    programs/<key>/   exported programs         runners/<key>/   built runners
    wheels/<key>/     unpacked foreign wheels   state/<name>/    one run's values and logs
    sources/<version>/  clones of ExecuTorch    builds/<name>/   build folders, which keep growing
    kits/<key>/       device makers' libraries  traces/<key>/    traces that were read
    parcels/<key>/    what a night measures     fetched/<digest>/  a file of another host's parcel
    references/<key>/ texts of a model before quantization
    locks/            one file per shared resource

An entry is a folder with a manifest of digests. It is built under a temporary name, under a lock,
and renamed into place; on use it is compared with its manifest, and built again if it differs.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from etdeploy.cache.folder import LOCKS, CacheKind, limit_bytes, prepare_cache
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import (
    CACHE_VARIABLE,
    folder_files,
    new_folder,
    sweep,
    tree_size,
    write_atomic,
)
from etdeploy.core.files.locks import downgrade_lock, exclusive, open_shared, try_upgrade_lock
from etdeploy.core.hashing import sha256_file, stat_signature
from etdeploy.core.values import Progress, silent

_LIVE = "live.lock"


def use_lock(locks: Path, kind: str, key: str) -> Path:
    """The file whose lock marks an entry, and whose date is the date of its last use."""
    return locks / f"use-{kind}-{key}.lock"


class UseMarks:
    """The marks of one run.

    Attributes:
        begun_s: When the run began, in seconds since 1970.
    """

    def __init__(self, locks: Path) -> None:
        self.begun_s = time.time()
        self._locks = locks
        self._handles: dict[Path, int] = {}
        self._mutex = threading.Lock()
        weakref.finalize(self, _close, self._handles)

    def mark(self, kind: str, key: str) -> None:
        """Records the use of an entry, which may not exist yet.

        If the run is marked itself, the entry stays marked until `release`.
        """
        path = use_lock(self._locks, kind, key)
        if self.is_live:
            self._mark(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def mark_live(self) -> None:
        """Marks the run as active, to keep everything that is not marked individually."""
        self._mark(self._locks / _LIVE)

    def has(self, path: Path) -> bool:
        """Whether this run has marked the file."""
        return path in self._handles

    @property
    def is_live(self) -> bool:
        """Whether this run has marked itself."""
        return self.has(self._locks / _LIVE)

    def is_alone(self) -> bool:
        """Whether no other run is active; if so, none can start until `share` or `release_live`."""
        self.mark_live()
        return try_upgrade_lock(self._handles[self._locks / _LIVE])

    def share(self) -> None:
        """Lets other runs start."""
        downgrade_lock(self._handles[self._locks / _LIVE])

    def release_live(self) -> None:
        """Removes the mark of this run; others may start."""
        with self._mutex:
            handle = self._handles.pop(self._locks / _LIVE, None)
        if handle is not None:
            os.close(handle)

    def release(self) -> None:
        """Removes all marks."""
        with self._mutex:
            _close(self._handles)

    def _mark(self, path: Path) -> None:
        with self._mutex:
            if path not in self._handles:
                handle = open_shared(path)
                self._handles[path] = handle
                os.utime(handle)


def _close(handles: dict[Path, int]) -> None:
    while handles:
        os.close(handles.popitem()[1])


_MANIFEST = ".manifest.json"
_STAMPS = ".stamps.json"
_KEY = ".key"
# What an entry contains besides its content.
NOTES = (_MANIFEST, _STAMPS, _KEY)
# Where files and folders are first written under a temporary name.
_WRITTEN_ASIDE = (
    "programs", "runners", "wheels", "kits", "sources", "traces", "parcels", "fetched",
    "bundles", "bundles/store", "bundles/stamps",
)  # fmt: skip


def is_intact(folder: Path, key: str = "") -> bool:
    """Whether `fill_folder` made the folder with that key, and every file is what it stored.

    Files with the same size, dates and inode as at the last check are not read again.
    """
    manifest = _read_json(folder / _MANIFEST)
    if not isinstance(manifest, dict) or (key and _read_json(folder / _KEY) != key):
        return False
    stamps = {
        name: list(stat_signature(folder / name)) for name in manifest if (folder / name).is_file()
    }
    if stamps.keys() != manifest.keys():
        return False
    known = _read_json(folder / _STAMPS)
    known = known if isinstance(known, dict) else {}
    changed = [name for name, value in stamps.items() if known.get(name) != value]
    if any(sha256_file(folder / name) != manifest[name] for name in changed):
        return False
    if changed:
        write_atomic(folder / _STAMPS, json.dumps(stamps))
    return True


def fill_folder(
    folder: Path,
    make: Callable[[Path], None],
    key: str = "",
    digests: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Replace a folder by what `make` writes into an empty one, with notes for `is_intact`.

    Files with known `digests` are not read.
    """
    with new_folder(folder) as work:
        make(work)
        names = folder_files(work)
        manifest = {name: digests.get(name) or sha256_file(work / name) for name in names}
        write_atomic(work / _MANIFEST, json.dumps(manifest, indent=1))
        if key:
            write_atomic(work / _KEY, json.dumps(key))


# A file written this recently could change again without a new date on a coarse clock.
_SETTLED_NS = 2_000_000_000


class FileDigests:
    """SHA-256 by path, so that large weights are not read again in each run."""

    def __init__(self, store: Path) -> None:
        self._store = store
        known = _read_json(store)
        self._known: dict[str, list[object]] = known if isinstance(known, dict) else {}
        self._changed = False

    def of(self, path: str | Path) -> str | None:
        """The file's digest; None when it cannot be read."""
        name = str(path)
        try:
            now = list(stat_signature(Path(name)))
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


@dataclass(frozen=True)
class CacheEntry:
    """One folder of the cache; `kind` and `key` name it."""

    kind: CacheKind
    key: str
    path: Path
    uses: UseMarks = field(compare=False, repr=False)

    def is_sound(self) -> bool:
        """Whether the entry is intact.

        It counts as used now; while the workspace is `in_use`, nobody removes it.
        """
        # Before the check, so that nobody removes it afterwards.
        self.uses.mark(self.kind, self.key)
        return is_intact(self.path)

    def digests(self) -> dict[str, str]:
        """SHA-256 of each file by its path in the entry."""
        manifest = _read_json(self.path / _MANIFEST)
        return dict(manifest) if isinstance(manifest, dict) else {}


@dataclass(frozen=True)
class Workspace:
    """The cache folder of this user."""

    root: Path
    uses: UseMarks = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uses", UseMarks(self.locks))

    @property
    def locks(self) -> Path:
        """The folder of the lock files."""
        return self.root / LOCKS

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While the block runs, nothing that it uses is removed from the cache."""
        self.uses.mark_live()
        try:
            yield
        finally:
            self.uses.release()

    @classmethod
    def default(cls) -> Workspace:
        """`ETDEPLOY_CACHE_DIR`, or the platform's user cache."""
        chosen = os.environ.get(CACHE_VARIABLE)
        if chosen:
            try:
                return cls(Path(chosen).expanduser().resolve())
            except (OSError, RuntimeError, ValueError) as error:  # ~nobody, a loop of links
                raise UsageError(
                    f"this is not a folder: {error}",
                    place=f"{CACHE_VARIABLE}={chosen}",
                    remedy=f"export {CACHE_VARIABLE}=/path/to/a/folder",
                ) from error
        from platformdirs import user_cache_path

        return cls(user_cache_path("etdeploy"))

    @classmethod
    def opened(cls) -> Workspace:
        """The default one, created if missing, and checked to be usable."""
        workspace = cls.default()
        # A wrong limit is reported now, and not after the work.
        limit_bytes()
        prepare_cache(workspace.root)
        return workspace

    def folder(self, kind: CacheKind) -> Path:
        """Where everything of a kind is."""
        return self.root / kind

    def entry(self, kind: CacheKind, key: str) -> CacheEntry:
        """Names an entry; nothing is created."""
        return CacheEntry(kind, key, self.folder(kind) / key, self.uses)

    def obtain(
        self,
        entry: CacheEntry,
        build: Callable[[Path], None],
        progress: Progress = silent,
        usable: Callable[[Path], bool] = lambda _: True,
        digests: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Makes sure that `entry` is sound; if it is not, `build(folder)` fills it.

        Args:
            entry: The entry that is needed.
            build: Fills an empty folder.
            progress: Called if another process holds the entry.
            usable: Whether this release can read what is in a sound folder.
            digests: SHA-256 of files that `build` does not change, by their paths in the folder.

        Returns:
            True if it was built now, False if it was already there.
        """
        with exclusive(
            self.lock_path(entry.kind, entry.key), f"{entry.kind} {entry.key[:12]}", progress
        ):
            if entry.is_sound() and usable(entry.path):
                return False
            fill_folder(entry.path, build, digests=digests)
            return True

    def lock_path(self, *parts: str) -> Path:
        """The lock file of a shared resource."""
        safe = "-".join(parts).replace("/", "_").replace(":", "_")
        return self.locks / f"{safe}.lock"

    def state(self, name: str) -> Path:
        """The folder of one recipe on one device: stage values and logs."""
        return self.folder(CacheKind.STATE) / name

    def sweep(self, state: Path) -> None:
        """Deletes what killed runs left half-written, but nothing that a run is using."""
        for name in _WRITTEN_ASIDE:
            sweep(self.root / name)
        sweep(state)

    def size_bytes(self) -> dict[str, int]:
        """Bytes below each kind of entry."""
        if not self.root.is_dir():
            return {}
        return {
            kind.name: tree_size(kind) for kind in sorted(self.root.glob("[!.]*")) if kind.is_dir()
        }


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
