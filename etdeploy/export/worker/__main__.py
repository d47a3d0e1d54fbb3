"""The worker: exports what a spec says into a folder; `start.py` begins it."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from etdeploy.export.protocol import FAILURE_FILE, SOURCES_FILE, progress_line
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.loading.paths import add_user_folder, pin_installed
from etdeploy.export.worker.loading.recorder import FileRecorder
from etdeploy.export.worker.loading.user_code import run_user_files

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


def main(arguments: list[str], preloaded: Collection[str] = ()) -> int:
    """Runs the export; a failure is described in `failure.json` beside the spec."""
    spec_path, folder = Path(arguments[0]), Path(arguments[1])
    # Warnings of the libraries are not about the user's recipe; they belong in the log.
    warnings.simplefilter("default")
    add_user_folder(Path.cwd())
    pin_installed()
    try:
        spec, recorder = ExportSpec.load(spec_path), FileRecorder(preloaded)
        seed_at_import(spec.seed, recorder.ignoring)
        _tell(f"loading {spec.source}", 0.02)
        with recorder.recording():
            run_user_files(spec)  # before the seconds that the imports below take
        if spec.hf:  # so that a hub which does not give the model is told at once
            from etdeploy.export.worker.language.fetch import fetch

            fetch(spec, _tell)
        if spec.is_finished:
            from etdeploy.export.worker.own_exporter import run_finished

            sources = run_finished(spec, folder, _tell)
        elif spec.llm_config is not None:
            from etdeploy.export.worker.own_exporter import run_own_exporter

            sources = run_own_exporter(spec, folder, _tell)
        else:
            from etdeploy.export.worker.pipeline import run

            sources = run(spec, folder, _tell, recorder)
        sources.save(spec_path.with_name(SOURCES_FILE))
    except BaseException as error:  # a factory may even raise SystemExit
        traceback.print_exc()
        from etdeploy.export.worker.failures import failure_of

        failure_of(error).save(spec_path.with_name(FAILURE_FILE))
        return 1
    return 0


def _tell(text: str, fraction: float) -> None:
    # One write of one line, so that output of other threads and of C++ cannot split it.
    os.write(1, f"{progress_line(text, fraction)}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
