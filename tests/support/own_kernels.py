"""Etdeploy's own kernels, for programs that run in a Python process by ExecuTorch's package."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path

from etdeploy.core.files.basic import resource_folder

_DEFINED = ("C10_USING_CUSTOM_GENERATED_MACROS", "ET_EVENT_TRACER_ENABLED", "HAS_threadpool")
_LIBRARIES = ("executorch", "executorch_threadpool")


def load_own_kernels(folder: Path, options: Sequence[str] = (), *, llama: bool = False) -> None:
    """Compiles and registers them, once in a process.

    Args:
        folder: For the shared library.
        options: More for the compiler.
        llama: Whether those that stand in for ExecuTorch's are among them; a process that has
            these, too, would end.
    """
    import executorch.runtime  # noqa: F401 - its libraries first: one registry for all

    built = folder / "own_kernels.so"
    found = importlib.util.find_spec("executorch")
    assert found is not None
    package = Path((found.submodule_search_locations or [])[0])
    headers = package / "include"
    argv = ["c++", "-std=c++17", "-O3", "-Wno-psabi", "-fPIC", "-shared", "-o", str(built)]
    argv += [f"-D{name}" for name in _DEFINED]
    argv += [f"-I{headers}", f"-I{headers}/executorch/runtime/core/portable_type/c10"]
    sources = sorted((resource_folder("templates") / "runner" / "kernels").glob("*.cpp"))
    argv += [*options, *(str(each) for each in sources if llama or each.stem != "llama")]
    argv += [f"-L{package}/lib", f"-Wl,-rpath,{package}/lib", *(f"-l{n}" for n in _LIBRARIES)]
    subprocess.run(argv, check=True)
    ctypes.CDLL(str(built))
