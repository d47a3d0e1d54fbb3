"""Seeds the random numbers of torch and NumPy as soon as something imports them.

The user's file is run before either is imported, so that its mistakes are seen early; it may draw
random numbers itself, right after an import of its own.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Around = Callable[[str], AbstractContextManager[None]]


def seed_at_import(seed: int, around: Around) -> None:
    """Seeds Python's random numbers now, torch's and NumPy's after their import."""
    random.seed(seed)
    acts: dict[str, Callable[[Any], object]] = {
        "torch": lambda torch: torch.manual_seed(seed),
        "numpy": lambda numpy: numpy.random.seed(seed % 2**32),
    }
    for name, act in acts.items():
        if name in sys.modules:
            act(sys.modules[name])
        else:
            sys.meta_path.insert(0, _FirstImport(name, act, around))


class _FirstImport:
    """An entry of `sys.meta_path` that acts once, when its module has been imported."""

    def __init__(self, name: str, act: Callable[[Any], object], around: Around) -> None:
        self._name, self._act, self._around = name, act, around

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            # Of this one loader, which stays what other code takes it for.
            vars(spec.loader)["exec_module"] = self._acting(spec.loader.exec_module)
        return spec

    def _acting(self, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            with self._around(self._name):
                execute(module)
            self._act(module)

        return exec_module
