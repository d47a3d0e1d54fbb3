"""Functions of the user, from files and modules, and operators that these register."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from etdeploy.export.cache import module_file
from etdeploy.export.needs import missing_function
from etdeploy.export.protocol import FailureKind
from etdeploy.export.spec import CodeReference, ExportSpec
from etdeploy.export.worker.failures import describe, describe_errors, exception_text, fail
from etdeploy.export.worker.loading.paths import add_user_folder


def check_arguments(function: Callable[..., Any], arguments: dict[str, Any], what: str) -> None:
    """Refuse arguments that the function does not take, before it is called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some callables written in C have none
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        names = ", ".join(signature.parameters) or "none"
        raise fail(
            "arguments",
            f"{what} cannot be called with model.arguments: {error}; its arguments are: {names}",
        ) from error


def run_user_files(spec: ExportSpec) -> None:
    """Runs the files that a spec names, as far as that takes nothing but Python."""
    if spec.custom_ops:
        if not spec.custom_ops.endswith(".py"):
            return  # a library registers the operators that the other files may refer to
        run_file(Path(spec.custom_ops), "custom-ops")
    for key, reference in spec.functions().items():
        load_function(reference, key)


def load_function(reference: CodeReference, key: str) -> Callable[..., Any]:
    """The function that a recipe names; its module is run for that."""
    module = run_file(Path(reference.file)) if reference.file else _module(reference, key)
    place = reference.file or getattr(module, "__file__", None)
    function = getattr(module, reference.name, None)
    if function is None:
        raise fail(
            "factory-missing",
            missing_function(reference, key, _functions_of(module)),
            file=place,
        )
    if not callable(function):
        raise fail(
            "factory-missing",
            f"{key} names {reference}, which is {describe(function)} and cannot be called",
            file=place,
        )
    return function  # type: ignore[no-any-return]


def _functions_of(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]


def _module(reference: CodeReference, key: str) -> ModuleType:
    name = reference.module or ""
    try:
        found = module_file(name) is not None or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        raise fail(
            "factory-missing",
            f"{key} names the module {name!r}, which cannot be imported by {sys.executable} from "
            f"{Path.cwd()}",
            remedy="Install the package there, or name the file: file.py:function",
        )
    with describe_errors("factory-raised", f"importing {name} raised"):
        return importlib.import_module(name)


def run_file(path: Path, kind: FailureKind = "factory-raised") -> ModuleType:
    """Runs a Python file as a module, once; files beside it can be imported, as from a script."""
    if path in _ran:
        return _ran[path]
    add_user_folder(path.parent)
    known = sys.modules.get(path.stem)
    if known and getattr(known, "__file__", None) == str(path):
        return known  # another file of the user imported it
    # Under its own name where that is free, so that helpers can import it too.
    name = path.stem if _is_free(path) else f"_model_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise fail("factory-missing", "the file cannot be loaded as Python code", file=str(path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with describe_errors(kind, f"importing {path.name} raised"):
        spec.loader.exec_module(module)
    _ran[path] = module
    return module


_ran: dict[Path, ModuleType] = {}


def _is_free(path: Path) -> bool:
    """Whether no other module has the name of a file; one may be installed and not imported yet."""
    if path.stem in sys.modules or "." in path.stem:
        return False
    found = importlib.util.find_spec(path.stem)
    return found is None or found.origin == os.path.realpath(path)


_UNDEFINED = re.compile(r"undefined symbol: (\S+)|Symbol not found: (\S+)")


def load_custom_ops(path: Path) -> None:
    """Runs the Python file, or loads the shared library, that registers operators."""
    if path.suffix == ".py":
        run_file(path, "custom-ops")
        return
    import torch  # after the user's own file, which need not wait for it

    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        version = str(torch.__version__).partition("+")[0]
        # torch says only that loading failed; the loader's message is the cause.
        cause = error.__cause__ or error
        missing = _UNDEFINED.search(str(cause))
        why = (
            f"it refers to {missing[1] or missing[2]}, which neither it nor PyTorch {version} has; "
            "the usual cause is that it was built for another PyTorch"
            if missing
            else exception_text(cause)
        )
        raise fail(
            "custom-ops",
            f"the library of custom operators cannot be loaded: {why}",
            remedy=f"Build it with the headers and the libraries of PyTorch {version}, for "
            "this machine.",
            file=str(path),
        ) from error
