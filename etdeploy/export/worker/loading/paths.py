"""Where imports come from: installed packages first, then the user's folders.

A folder with ExecuTorch's sources, as `git clone` makes it, often lies in the working folder or
beside the model. ExecuTorch's wheel is a namespace package: such a folder would take precedence, or
be mixed with it. So the user's folders are not on `sys.path`, but searched after all of it.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import etdeploy

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAMESPACE = "executorch"
_PACKAGE = str(Path(etdeploy.__file__).parent)


class UserFolders:
    """Finds modules in the user's folders when nothing else has found them.

    The first of the folders, real paths, that has a module provides it.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As an entry of `sys.meta_path`; submodules are found by their package's own path."""
        return PathFinder.find_spec(name, self.folders) if path is None else None

    def hidden(self, name: str) -> Path | None:
        """The user's own module, where an installed one of that name was imported in its place."""
        top = name.partition(".")[0]
        taken = getattr(sys.modules.get(top), "__spec__", None)
        own = _place(self.find_spec(top))
        return Path(own) if taken and own and own != _place(taken) else None


user_folders = UserFolders()


def add_user_folder(folder: Path) -> None:
    """Makes modules in a folder importable, after everything that is installed.

    That also holds where PYTHONPATH names the folder. The working folder is added first and stays
    the last to be searched.
    """
    real = os.path.realpath(folder)
    sys.path[:] = _not_in_front(sys.path, real)
    if user_folders not in sys.meta_path:
        sys.meta_path.append(user_folders)
        _write_bytecode_for_installed_modules_only()
    if real not in user_folders.folders:
        user_folders.folders.insert(max(len(user_folders.folders) - 1, 0), real)


def pin_installed() -> None:
    """Fixes where ExecuTorch's namespace package is.

    A namespace package follows every later change of `sys.path`, and many model files begin with
    `sys.path.insert(0, ...)`.
    """
    installed = [p for p in sys.path if os.path.realpath(p) not in user_folders.folders]
    spec = PathFinder.find_spec(_NAMESPACE, installed)
    if _NAMESPACE in sys.modules or spec is None or spec.has_location:
        return
    module = importlib.util.module_from_spec(spec)
    module.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_NAMESPACE] = module


def _write_bytecode_for_installed_modules_only() -> None:
    """Keeps `__pycache__` out of the user's folders: git counts it as a change there."""
    write = SourceFileLoader.set_data
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = {*map(sysconfig.get_path, names), site.getusersitepackages(), _PACKAGE}
    installed = tuple(f"{os.path.realpath(place)}{os.sep}" for place in places)

    def set_data(
        self: SourceFileLoader, path: str, data: ReadableBuffer, *, _mode: int = 0o666
    ) -> None:
        if os.path.realpath(path).startswith(installed):
            write(self, path, data, _mode=_mode)

    SourceFileLoader.set_data = set_data  # type: ignore[method-assign]


def _not_in_front(entries: Sequence[str], folder: str) -> list[str]:
    """The path without a folder before Python's own library, where installed packages follow."""
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    real = [os.path.realpath(entry) for entry in entries]
    end = real.index(library) if library in real else len(real)
    return [entry for i, entry in enumerate(entries) if i >= end or real[i] != folder]


def _place(spec: ModuleSpec | None) -> str | None:
    """The file of a module; the folder of a package without `__init__.py`."""
    if spec is None or spec.has_location:
        return spec.origin if spec else None
    return next(iter(spec.submodule_search_locations or ()), spec.origin)
