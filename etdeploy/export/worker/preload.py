"""What the preloaded worker imports before it forks, and whether a fork of it is safe."""

from __future__ import annotations

import ctypes
import importlib
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import OUR_PACKAGE, system_folders

# What every export imports. The last two stand in functions of ExecuTorch.
_ALWAYS = (
    "torch",
    "executorch.exir",
    "etdeploy.export.worker.pipeline",
    "executorch.devtools.backend_debug",
    "executorch.devtools.etrecord",
)
_PT2E = ("torchao.quantization.pt2e.quantize_pt2e",)
_SCHEMES = {
    "int8_static": _PT2E,
    "int8_dynamic": _PT2E,
    "8a4w": _PT2E,
    "16a8w": _PT2E,
    "16a4w": _PT2E,
    "16a4w_block": _PT2E,
    "8da4w": ("torchao.quantization.quant_api",),
    "8da8w": ("torchao.quantization.quant_api",),
}
# Pinned before the user's code runs, in every worker; see `loading/paths.py`.
_PINNED = "executorch"
_OMP_PAUSE_HARD = 2


class UnfitError(Exception):
    """A fork of this process would not be safe, or not be what a new process is."""


@dataclass(frozen=True)
class Preloaded:
    """What was imported that a new worker would not have imported before the user's code runs.

    Attributes:
        modules: Their names.
        before: Names of the modules that every worker has by then.
    """

    modules: frozenset[str]
    before: frozenset[str] = frozenset()

    def met_beside(self, spec: ExportSpec, working: Path) -> Path | None:
        """A file or folder of the user that is called like one of the modules.

        If the user's code puts that folder in front of `sys.path`, a new process would import the
        user's module under that name, and a fork the one that is there already.
        """
        if not spec.runs_user_code:
            return None
        names = _packages(self.modules) - _packages(self.before) - {_PINNED}
        files = [Path(path).parent for path in spec.named_files().values()]
        for folder in dict.fromkeys((working, *files)):
            with suppress(OSError):
                for entry in sorted(folder.iterdir()):
                    if entry.name.partition(".")[0] in names and _is_module(entry):
                        return entry
        return None


def preload(before: Collection[str], needs: Iterable[tuple[str | None, str | None]]) -> Preloaded:
    """Imports what exports need.

    Args:
        before: Names of the modules that every worker has when the user's code runs.
        needs: Backends with quantisation schemes.

    Raises:
        UnfitError: What was imported is not an installed package.
        ImportError: PyTorch or ExecuTorch cannot be imported.
    """
    for name in _ALWAYS:
        importlib.import_module(name)
    for backend, scheme in sorted({(b or "", s or "") for b, s in needs}):
        try:
            _prepare(backend, scheme)
        except Exception:  # the export that needs it will say so, with what to do
            traceback.print_exc()
    _require_installed()
    return Preloaded(frozenset(sys.modules) - frozenset(before), frozenset(before))


def _prepare(backend: str, scheme: str) -> None:
    from etdeploy.export.worker.backends.base import lowering_for

    for name in _SCHEMES.get(scheme, ()):
        importlib.import_module(name)
    with no_progress_bar():
        lowering_for(backend).preload(scheme)


def _packages(modules: Iterable[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def _is_module(path: Path) -> bool:
    """Whether an import may find it; a folder without that file comes after any module."""
    return path.suffix in (".py", ".so", ".pyc") or (path / "__init__.py").is_file()


def _require_installed() -> None:
    """Only files of the user's code are watched; files of installed packages have a version."""
    fixed = (*system_folders(), OUR_PACKAGE)
    files = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    for name, file in files.items():
        # Modules without a file may carry any text there: torch.ops has "_ops.py".
        if file is None or not (Path(file).is_absolute() and Path(file).is_file()):
            continue
        if not any(Path(file).resolve().is_relative_to(folder) for folder in fixed):
            raise UnfitError(f"{name} comes from {file}, which is not an installed package")


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Keeps tqdm, with which torch.fx counts, from starting a thread that looks after its bars."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    before, tqdm.monitor_interval = tqdm.monitor_interval, 0
    try:
        yield
    finally:
        tqdm.monitor_interval = before


def end_openmp_threads() -> None:
    """Ends the pool of threads, for which a child would wait in vain; the next loop makes another.

    `omp_pause_resource_all` came with OpenMP 5.0.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    libraries = {path for line in lines if "omp" in Path(path := line.split()[-1]).name}
    for path in libraries:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_pause_resource_all(_OMP_PAUSE_HARD)
