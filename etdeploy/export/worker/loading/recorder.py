"""Records which files the user's code reads, so that a change of one exports again."""

from __future__ import annotations

import importlib.metadata
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etdeploy.core.hashing import sha256_file, stat_signature
from etdeploy.export.protocol import ModelSources
from etdeploy.export.worker.failures import OUR_PACKAGE, system_folders

_SYSTEM = ("/proc", "/sys", "/dev")
# What every export imports; their versions are in the key of every program.
_TOOLS = ("torch", "torchgen", "functorch", "torchao", "executorch", "etdeploy")
# No digest of any file: such an entry never holds, so the next run exports again.
_CHANGED = "changed during the export"


class FileRecorder:
    """Sees, through an audit hook, each file that Python code opens while it is recording.

    Files that native code opens by itself are not seen; a user names those under `model.weights` or
    `model.arguments`. Files that the process wrote itself are not sources. Nobody sees whether the
    user's code imports a module that is `preloaded`, so it counts as if it did.
    """

    def __init__(self, preloaded: Collection[str] = ()) -> None:
        self._recording = False
        self._opened: dict[str, tuple[int, int, int, int]] = {}
        self._written: set[str] = set()
        # PYTHONPYCACHEPREFIX: compiled modules of all folders.
        compiled = [Path(os.path.realpath(sys.pycache_prefix))] if sys.pycache_prefix else []
        self._excluded = (*system_folders(), OUR_PACKAGE, *map(Path, _SYSTEM), *compiled)
        self._modules = {m for m in preloaded if m.partition(".")[0] not in _TOOLS}
        self._ignored: set[str] = set()
        sys.addaudithook(self._hear)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records while the user's code runs."""
        before = set(sys.modules)
        self._recording = True
        try:
            yield
        finally:
            self._recording = False
            self._modules |= set(sys.modules) - before - self._ignored

    @contextmanager
    def ignoring(self, module: str) -> Iterator[None]:
        """Records nothing while a tool is imported, even if the user's code imports it first."""
        recording, before = self._recording, set(sys.modules)
        self._recording = False
        try:
            yield
        finally:
            self._recording = recording
            self._ignored |= {module, *(set(sys.modules) - before)}

    def sources(self) -> ModelSources:
        """What was read, with current digests."""
        files = {name: _digest(name, seen) for name, seen in self._opened.items()}
        for path in self._module_files():
            files.setdefault(str(path), sha256_file(path))
        present = {name: digest for name, digest in files.items() if digest}
        return ModelSources(
            files=dict(sorted(present.items())), distributions=_distributions(self._modules)
        )

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._recording or event != "open":
            return
        self._recording = False  # what happens here is not the user's
        try:
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike):
                self._note(os.path.realpath(os.fsdecode(path)), flags)
        except (OSError, ValueError):
            return  # not a file, or an unreadable one: the user's own open will say so
        finally:
            self._recording = True

    def _note(self, name: str, flags: int) -> None:
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._written.add(name)
            self._opened.pop(name, None)
        elif name not in self._written and name not in self._opened and self._is_source(name):
            self._opened[name] = stat_signature(Path(name))

    def _is_source(self, name: str) -> bool:
        path = Path(name)
        return (
            stat.S_ISREG(path.stat().st_mode)
            and path.parent.name != "__pycache__"
            and not self._is_system(path)
        )

    def _is_system(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._excluded)

    def _module_files(self) -> Iterator[Path]:
        for name in self._modules:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and Path(file).is_file() and not self._is_system(Path(file).resolve()):
                yield Path(file).resolve()


def _digest(name: str, seen: tuple[int, int, int, int]) -> str | None:
    """Of a file that was opened; None when it is gone, as temporary files are."""
    try:
        digest = sha256_file(Path(name))
        return digest if stat_signature(Path(name)) == seen else _CHANGED
    except OSError:
        return None


def _distributions(modules: Iterable[str]) -> dict[str, str]:
    """Versions of the installed distributions that the modules came from."""
    top_level = {name.partition(".")[0] for name in modules}
    if not top_level:
        return {}  # what follows reads the metadata of every installed package
    owners = importlib.metadata.packages_distributions()
    names = {owner for top in top_level for owner in owners.get(top, ())}
    return {name: importlib.metadata.version(name) for name in sorted(names)}
