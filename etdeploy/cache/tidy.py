"""Removes parts of the cache, but never one that a run is using.

A part is first renamed under its locks, then deleted without them: no run ever finds half of it,
and none waits for the deletion.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from etdeploy.cache.folder import CacheKind, require_ours
from etdeploy.cache.units import KINDS, Unit, find_units
from etdeploy.cache.workspace import Workspace, use_lock
from etdeploy.core.files.basic import no_room_in, tree_size
from etdeploy.core.files.leftovers import remove_tree
from etdeploy.core.files.locks import if_free

_GONE = ".gone"
# A run does not wait longer than about this for the cache to become small enough.
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class CacheRemoval:
    """What was removed, and what was kept because a run is using it."""

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

    Raises:
        UsageError: The folder is not a cache of ours; nothing was removed.
        OSError: Something cannot be removed.
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
    """Removes all of one kind; while other runs are active, only what they do not use.

    Raises:
        ValueError: There is no such kind.
        UsageError: The folder is not a cache of ours; nothing was removed.
        OSError: Something cannot be removed.
    """
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

    Raises:
        OSError: Something cannot be removed.
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
            free = locks.enter_context(if_free(use))
        else:
            free = locks.enter_context(alone(workspace))
        if unit.is_entry or unit.kind == CacheKind.BUILDS:
            # Held by a run that is making the part.
            made = workspace.lock_path(unit.kind, unit.name)
            free = free and locks.enter_context(if_free(made))
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
        if no_room_in(error) is None:
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
