"""The model of a spec, ready to be exported."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from etdeploy.export.cache import module_file
from etdeploy.export.spec import CodeReference, ExportSpec
from etdeploy.export.worker.examples import EXAMPLES, Example
from etdeploy.export.worker.failures import WorkerError, blaming, exception_text, fail
from etdeploy.export.worker.weights import load_weights

Inputs = tuple[Any, ...]


@dataclass(frozen=True)
class Source:
    """A model with what torch.export needs to trace it.

    Attributes:
        module: In evaluation mode.
        inputs: Example inputs, positional.
        dynamic_shapes: As torch.export takes them; None when all are fixed.
        calibration: Gives calibration inputs; None when there are only the example inputs.
        exported: The program that a `.pt2` held; `module` is made from it.
    """

    module: torch.nn.Module
    inputs: Inputs
    dynamic_shapes: Any = None
    calibration: Callable[[], Iterable[Inputs]] | None = None
    exported: torch.export.ExportedProgram | None = None


def load_source(spec: ExportSpec) -> Source:
    """Loads or makes the model.

    Raises:
        WorkerError: It cannot be had.
    """
    _seed(spec.seed)
    if spec.example:
        source = _from_example(spec)
    elif spec.exported:
        source = _from_exported(Path(spec.exported))
    else:
        source = _from_factory(spec)
    if spec.calibration:
        function = _function(spec.calibration, "export.calibration")
        return Source(
            source.module, source.inputs, source.dynamic_shapes, function, source.exported
        )
    return source


def _seed(seed: int) -> None:
    import numpy as np

    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _from_example(spec: ExportSpec) -> Source:
    make = EXAMPLES[spec.example or ""]
    _check_arguments(make, spec.arguments, f"the example {spec.example}")
    try:
        example: Example = make(**spec.arguments)
    except ValueError as error:
        raise fail(
            "arguments", f"the example {spec.example} refuses its arguments: {error}"
        ) from error
    return Source(example.module.eval(), example.inputs, calibration=example.calibration)


def _from_exported(path: Path) -> Source:
    try:
        program = torch.export.load(path)
    except MemoryError:
        raise
    except Exception as error:
        raise fail(
            "exported-file",
            f"the exported program cannot be read ({exception_text(error)}); it is damaged, or "
            f"another version of PyTorch than {torch.__version__} wrote it",
            remedy="Write it again with torch.export.save, in the environment of etdeploy.",
            file=str(path),
        ) from error
    if program.example_inputs is None:
        raise fail(
            "exported-file",
            "the exported program carries no example inputs",
            remedy="Save what torch.export.export(module, inputs) returns, as it is.",
            file=str(path),
        )
    inputs, keywords = program.example_inputs
    if keywords:
        raise _keyword_inputs(keywords)
    return Source(program.module(), tuple(inputs), exported=program)


def _from_factory(spec: ExportSpec) -> Source:
    if spec.python is None:
        raise ValueError("the spec names no model source")
    factory = _function(spec.python, "model.python")
    name = spec.python.name
    _check_arguments(factory, spec.arguments, f"the factory {name}")
    with blaming("factory-raised", f"the factory {name} raised"):
        made = factory(**spec.arguments)
    module, inputs, shapes = _checked_result(made, name)
    if spec.weights:
        load_weights(module, Path(spec.weights))
    return Source(module.eval(), inputs, shapes)


def _checked_result(made: object, name: str) -> tuple[torch.nn.Module, Inputs, Any]:
    expected = "(module, example_inputs) or (module, example_inputs, dynamic_shapes)"
    if not isinstance(made, tuple | list) or len(made) not in (2, 3):
        raise fail(
            "factory-result", f"the factory {name} returned {_described(made)}, not {expected}"
        )
    module, inputs = made[0], made[1]
    if not isinstance(module, torch.nn.Module):
        raise fail(
            "factory-result",
            f"the factory {name} returned {_described(module)} in place of the torch.nn.Module; "
            f"it returns {expected}",
        )
    if isinstance(inputs, Mapping):
        raise _keyword_inputs(inputs)
    if not isinstance(inputs, tuple | list):
        raise fail(
            "factory-result",
            f"the factory {name} returned {_described(inputs)} as example inputs; they are a "
            "tuple, also when there is only one",
            remedy="return module, (x,)",
        )
    return module, tuple(inputs), made[2] if len(made) == 3 else None


def _keyword_inputs(keywords: Mapping[str, Any]) -> WorkerError:
    return fail(
        "inputs",
        f"the example inputs are given by keyword ({', '.join(map(str, keywords))}); a program "
        "takes its inputs by position",
        remedy="Return a tuple of positional inputs, and wrap the model where its forward needs "
        "keywords.",
    )


def _described(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _check_arguments(function: Callable[..., Any], arguments: dict[str, Any], what: str) -> None:
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


def _function(reference: CodeReference, key: str) -> Callable[..., Any]:
    module = _module_of_file(Path(reference.file)) if reference.file else _module(reference, key)
    place = reference.file or getattr(module, "__file__", None)
    function = getattr(module, reference.name, None)
    if function is None:
        functions = [
            name
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        ]
        raise fail(
            "factory-missing",
            f"{key} names {reference}, but there is no {reference.name!r} there"
            + (f"; it has {', '.join(functions)}" if functions else ""),
            file=place,
        )
    if not callable(function):
        raise fail(
            "factory-missing",
            f"{key} names {reference}, which is {_described(function)} and cannot be called",
            file=place,
        )
    return function  # type: ignore[no-any-return]


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
    with blaming("factory-raised", f"importing {name} raised"):
        return importlib.import_module(name)


def _module_of_file(path: Path) -> ModuleType:
    """Runs a Python file as a module; files beside it can be imported, as from a script."""
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise fail("factory-missing", "the file cannot be loaded as Python code", file=str(path))
    known = sys.modules.get(path.stem)
    if known and getattr(known, "__file__", None) == str(path):
        return known
    module = importlib.util.module_from_spec(spec)
    # Under its own name where that is free, so that helpers can import it too.
    sys.modules[f"_model_file_{path.stem}" if known else path.stem] = module
    with blaming("factory-raised", f"importing {path.name} raised"):
        spec.loader.exec_module(module)
    return module
