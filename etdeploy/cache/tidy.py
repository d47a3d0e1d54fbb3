"""The parts of the cache, and their removal; never of one that a run is using.

programs/KEY  runners/KEY  wheels/KEY     entries: can be removed while other runs are active,
parcels/KEY  fetched/DIGEST               unless one of them has marked the entry
builds/NAME  sources/VERSION  zig         the rest: removed only while no other run is active
kits/KEY  references/KEY  bundles/DIGEST  state/RECIPE/DEVICE  logs/FILE

A part is first renamed under its locks, then deleted without them: no run ever finds half of it,
and none waits for the deletion.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.cache.folder import CacheKind, require_ours
from etdeploy.cache.workspace import Workspace, use_lock
from etdeploy.core.files.basic import find_disk_full, remove_tree, tree_size, write_atomic
from etdeploy.core.files.locks import try_lock

ENTRIES = (CacheKind.PROGRAMS, CacheKind.RUNNERS, CacheKind.WHEELS, CacheKind.PARCELS,
           CacheKind.FETCHED)  # fmt: skip
KINDS = (
    *ENTRIES,
    CacheKind.BUILDS,
    CacheKind.SOURCES,
    CacheKind.ZIG,
    CacheKind.KITS,
    CacheKind.STATE,
    CacheKind.BUNDLES,
    CacheKind.TRACES,
    CacheKind.REFERENCES,
    CacheKind.LOGS,
)
UNUSED_DAYS = 30
_DIGEST = re.compile(r"[0-9a-f]{32,64}")
_SIZES = "sizes.json"


@dataclass(frozen=True)
class Unit:
    """A part of the cache that is removed as a whole.

    Attributes:
        kind: The folder of the cache that contains it.
        name: Its path in that folder; empty for the whole folder.
        path: Where it is.
        last_use_s: In seconds since 1970.
        size_bytes: What its removal frees.
    """

    kind: CacheKind
    name: str
    path: Path
    last_use_s: float
    size_bytes: int = 0

    @property
    def is_entry(self) -> bool:
        """Whether runs mark it individually; else it stays while any other run is active."""
        return self.kind in ENTRIES


def find_units(workspace: Workspace) -> list[Unit]:
    """All parts of the cache, the least recently used first."""
    found = [*_entries(workspace), *_build_parts(workspace), *_small_parts(workspace)]
    return sorted(_measured(workspace.root, found), key=lambda unit: unit.last_use_s)


def unused_units(workspace: Workspace, units: list[Unit]) -> list[Unit]:
    """Those not used for 30 days, and entries that no recipe's last run used."""
    since_s = time.time() - UNUSED_DAYS * 24 * 3600
    live = [u for u in units if u.kind == CacheKind.STATE and u.last_use_s >= since_s]
    named = {name for unit in live for name in _named_entries(workspace.root, unit.path)}
    return [
        unit
        for unit in units
        if unit.last_use_s < since_s or (unit.is_entry and f"{unit.kind}/{unit.name}" not in named)
    ]


def _entries(workspace: Workspace) -> Iterator[Unit]:
    for kind in ENTRIES:
        for path in _children(workspace.root / kind):
            # One from before uses were noted was used when it was made.
            used_s = _date(use_lock(workspace.locks, kind, path.name)) or _date(path)
            yield Unit(kind, path.name, path, used_s)


def _build_parts(workspace: Workspace) -> list[Unit]:
    """Build folders, and what builds use: the clones and zig's cache."""
    builds = [
        Unit(CacheKind.BUILDS, p.name, p, max(_lock_date(workspace, "builds", p.name), _date(p)))
        for p in _children(workspace.folder(CacheKind.BUILDS))
    ]
    last_s = max((unit.last_use_s for unit in builds), default=0.0)
    for path in _children(workspace.folder(CacheKind.SOURCES)):
        locked_s = _lock_date(workspace, "sources", path.name.removeprefix("v"))
        builds.append(Unit(CacheKind.SOURCES, path.name, path, max(last_s, locked_s, _date(path))))
    zig = workspace.folder(CacheKind.ZIG)
    if zig.is_dir():
        builds.append(Unit(CacheKind.ZIG, "", zig, max(last_s, _date(zig))))
    return builds


def _small_parts(workspace: Workspace) -> Iterator[Unit]:
    for recipe in _children(workspace.folder(CacheKind.STATE)):
        for path in _children(recipe):
            if recipe.name != "export":
                used_s = max(_lock_date(workspace, "state", recipe.name, path.name), _date(path))
                yield Unit(CacheKind.STATE, f"{recipe.name}/{path.name}", path, used_s)
    for kind in (CacheKind.KITS, CacheKind.TRACES, CacheKind.REFERENCES):
        for path in _children(workspace.folder(kind)):
            used_s = _date(use_lock(workspace.locks, kind, path.name)) or _date(path)
            yield Unit(kind, path.name, path, used_s)
    for path in _children(workspace.folder(CacheKind.BUNDLES)):
        if _DIGEST.fullmatch(path.name):
            yield Unit(CacheKind.BUNDLES, path.name, path, _date(path))
    logs = workspace.folder(CacheKind.LOGS)
    for path in logs.glob("*.log"):
        yield Unit(CacheKind.LOGS, path.name, path, _date(path))


def _children(folder: Path) -> list[Path]:
    """The folders in a folder, without those that are being made or removed (with a dot)."""
    try:
        return [p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")]
    except OSError:
        return []


def _lock_date(workspace: Workspace, *parts: str) -> float:
    # Written each time the lock is taken.
    return _date(workspace.lock_path(*parts).with_suffix(".pid"))


def _date(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _measured(root: Path, units: list[Unit]) -> Iterator[Unit]:
    """The units with their sizes; one that was not used since it was measured is not read again.

    A clone of ExecuTorch has about 100,000 files.
    """
    known = _read(root / _SIZES)
    sizes = known if isinstance(known, dict) else {}
    fresh: dict[str, Any] = {}
    for unit in units:
        name = f"{unit.kind}/{unit.name}"
        noted = sizes.get(name)
        fresh[name] = (
            noted
            if isinstance(noted, list) and len(noted) == 2 and noted[0] == unit.last_use_s
            else [unit.last_use_s, _size(unit)]
        )
        yield Unit(unit.kind, unit.name, unit.path, unit.last_use_s, fresh[name][1])
    if fresh != sizes:
        try:
            write_atomic(root / _SIZES, json.dumps(fresh))
        except OSError:  # On a full disk, the next run measures again.
            return


def _size(unit: Unit) -> int:
    if unit.kind != CacheKind.BUNDLES:
        return tree_size(unit.path)
    # Each content has a name in the store, and one in each bundle that contains it.
    infos = [path.lstat() for path in unit.path.rglob("*") if path.is_file()]
    return sum(info.st_size for info in infos if info.st_nlink <= 2)


def _named_entries(root: Path, state: Path) -> Iterator[str]:
    """The entry, like `programs/KEY`, of each path into the cache that a state's values name."""
    for path in state.glob("*.json"):
        for text in _strings(_read(path)):
            if text.startswith(f"{root}/"):
                parts = Path(text).relative_to(root).parts
                if len(parts) > 1:
                    yield f"{parts[0]}/{parts[1]}"


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


_GONE = ".gone"
# A run does not wait longer than about this for the cache to become small enough.
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class CacheRemoval:
    """What was removed, and what stays because a run uses it."""

    removed: tuple[Unit, ...] = ()
    kept: tuple[Unit, ...] = ()

    @property
    def freed_bytes(self) -> dict[str, int]:
        """The bytes freed, by kind."""
        freed: dict[str, int] = {}
        for unit in self.removed:
            freed[unit.kind] = freed.get(unit.kind, 0) + unit.size_bytes
        return freed


def remove_units(
    workspace: Workspace, units: Iterable[Unit], until_s: float | None = None
) -> CacheRemoval:
    """Removes those parts that no run is using.

    Args:
        workspace: The cache.
        units: Parts of that cache.
        until_s: The time (of `time.monotonic`) after which no further part is removed.
    """
    require_ours(workspace.root)
    removed: list[Unit] = []
    kept: list[Unit] = []
    for unit in units:
        if until_s is not None and time.monotonic() > until_s:
            break
        with _unused(workspace, unit) as free:
            if not free:
                kept.append(unit)
            elif _take_away(workspace.root, unit.path):
                removed.append(unit)
        _empty(workspace.root / _GONE)
    if any(unit.kind == CacheKind.BUNDLES for unit in removed):
        _drop_contents(workspace)
    return CacheRemoval(tuple(removed), tuple(kept))


def remove_kind(workspace: Workspace, kind: CacheKind) -> CacheRemoval:
    """Removes all of one kind; while other runs are active, only what they do not use."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a part of the cache")
    require_ours(workspace.root)
    folder = workspace.root / kind
    if not folder.is_symlink() and not folder.is_dir():
        return CacheRemoval()
    whole = Unit(kind, "", folder, 0.0, tree_size(folder))
    with alone(workspace) as free:
        if free:
            _take_away(workspace.root, folder)
            _drop_locks(workspace.locks, kind)
    _empty(workspace.root / _GONE)
    if free:
        return CacheRemoval((whole,))
    return remove_units(workspace, [unit for unit in find_units(workspace) if unit.kind == kind])


def keep_below(workspace: Workspace, limit_bytes: int) -> CacheRemoval:
    """Removes the least recently used parts until the cache has at most `limit_bytes`.

    Keeps what this run has used, and the state of recipes, which is small. What cannot be removed
    within a few seconds is left to the next run.
    """
    units = find_units(workspace)
    excess_bytes = sum(unit.size_bytes for unit in units) - limit_bytes
    chosen = []
    for unit in units:
        if excess_bytes <= 0:
            break
        if unit.kind != CacheKind.STATE and unit.last_use_s < workspace.uses.begun_s:
            chosen.append(unit)
            excess_bytes -= unit.size_bytes
    if not chosen:
        return CacheRemoval()
    return remove_units(workspace, chosen, time.monotonic() + _PATIENCE_S)


@contextmanager
def alone(workspace: Workspace) -> Iterator[bool]:
    """Yields whether no other run is active; if so, none can start while the block runs."""
    mine = workspace.uses.is_live
    free = workspace.uses.is_alone()
    try:
        yield free
    finally:
        if mine:
            workspace.uses.share()
        else:
            workspace.uses.release_live()


@contextmanager
def _unused(workspace: Workspace, unit: Unit) -> Iterator[bool]:
    """Yields whether no run is using the part; if so, none can start to while the block runs."""
    use = use_lock(workspace.locks, unit.kind, unit.name)
    if workspace.uses.has(use):
        yield False
        return
    with ExitStack() as locks:
        if unit.is_entry:
            free = locks.enter_context(try_lock(use))
        else:
            free = locks.enter_context(alone(workspace))
        if unit.is_entry or unit.kind == CacheKind.BUILDS:
            # Held by a run that is making the part.
            made = workspace.lock_path(unit.kind, unit.name)
            free = free and locks.enter_context(try_lock(made))
        yield free


def _take_away(root: Path, path: Path) -> bool:
    """Renames the part so that no run finds it; False if another run was faster."""
    gone = root / _GONE
    try:
        gone.mkdir(exist_ok=True)
        path.rename(gone / secrets.token_hex(8))
    except FileNotFoundError:
        return False
    except OSError as error:
        if find_disk_full(error) is None:
            raise
        remove_tree(path)  # A full disk may have no room for a new name.
    return True


def _drop_locks(locks: Path, kind: str) -> None:
    """Deletes the lock files of one kind; nobody holds them, since no other run is active."""
    for path in (*locks.glob(f"use-{kind}-*"), *locks.glob(f"{kind}-*")):
        path.unlink(missing_ok=True)


def _empty(gone: Path) -> None:
    """Deletes the renamed parts, also those of a run that was killed before it could."""
    for path in gone.glob("*"):
        remove_tree(path)


def _drop_contents(workspace: Workspace) -> None:
    """Deletes the contents that are no longer in any bundle."""
    bundles = workspace.folder(CacheKind.BUNDLES)
    with alone(workspace) as free:
        if not free:
            return
        needed = {
            (info.st_dev, info.st_ino)
            for folder in bundles.iterdir()
            if folder.name not in ("store", "stamps", "runs")
            for path in folder.rglob("*")
            if path.is_file()
            # Without hard links, a bundle has symbolic links.
            for info in (path.stat(),)
        }
        for content in (bundles / "store").glob("[!.]*"):
            info = content.stat()
            if (info.st_dev, info.st_ino) not in needed:
                content.unlink()
                (bundles / "stamps" / content.name).unlink(missing_ok=True)
