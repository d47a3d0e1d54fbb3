"""The model of a spec, ready to be exported."""

from __future__ import annotations

import copy
import inspect
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etdeploy.export.methods import first_method
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.examples import EXAMPLES, Example
from etdeploy.export.worker.failures import describe, describe_errors, fail
from etdeploy.export.worker.loading.files import load_exported, load_weights
from etdeploy.export.worker.loading.user_code import check_arguments, load_custom_ops, load_function
from etdeploy.export.worker.tracing.structure import (
    ExampleInputs,
    by_parameter,
    fixed_size,
    input_values,
)
from etdeploy.program.folder import FORWARD


@dataclass(frozen=True)
class MethodSource:
    """A method of the program: a model with what torch.export needs to trace it.

    Attributes:
        module: In evaluation mode; its forward is the method.
        dynamic_shapes: As torch.export takes them; None when all are fixed.
        calibration: Returns calibration inputs; None when there are only the example inputs.
        exported: The program that a `.pt2` held; `module` is made from it.
        notes: Sentences for the user about the inputs.
        is_text: Whether it is a method of a language model, which is formulated for backends
            already: rewrites leave it as it is.
        ranges_from: Another method with the same operators on other lengths, whose ranges of
            activations apply to this one, too; None if it is calibrated itself.
        caches: Of a language model with a static cache, how many of the last inputs, and of the
            last outputs, are keys and values; 0 for others.
    """

    module: torch.nn.Module
    inputs: ExampleInputs
    dynamic_shapes: Any = None
    calibration: Callable[[], Iterable[Any]] | None = None
    exported: torch.export.ExportedProgram | None = None
    notes: tuple[str, ...] = ()
    is_text: bool = False
    ranges_from: str | None = None
    caches: int = 0


def load_sources(spec: ExportSpec) -> dict[str, MethodSource]:
    """Loads or makes the model."""
    prepare(spec)
    if spec.example:
        sources = {FORWARD: _from_example(spec)}
    elif spec.exported:
        sources = {FORWARD: _from_exported(Path(spec.exported))}
    else:
        sources = _from_factory(spec)
    return with_calibration(spec, sources)


def with_calibration(spec: ExportSpec, sources: dict[str, MethodSource]) -> dict[str, MethodSource]:
    """The methods with the user's function for calibration; refuses a recipe's missing method."""
    _require_method(spec, sources)
    if not spec.calibration:
        return sources
    return {
        name: replace(source, calibration=_calibrating(spec, name, sources))
        for name, source in sources.items()
    }


def prepare(spec: ExportSpec) -> None:
    """What comes before any model: seeds, and the recipe's own operators."""
    _seed(spec.seed)
    if spec.custom_ops:
        load_custom_ops(Path(spec.custom_ops))


def _require_method(spec: ExportSpec, methods: Iterable[str]) -> None:
    """Refuse a recipe's method that is not there, before the slow steps."""
    names = list(methods)
    if spec.method and spec.method not in names:
        raise fail(
            "factory-result",
            f"the program has no method {spec.method!r}; it has {', '.join(names)}",
            remedy=f"--set benchmark.method={first_method(names)}",
            file=spec.place("benchmark", "method"),
        )


def _seed(seed: int) -> None:
    import numpy as np

    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _from_example(spec: ExportSpec) -> MethodSource:
    make = EXAMPLES[spec.example or ""]
    check_arguments(make, spec.arguments, f"the example {spec.example}")
    try:
        example: Example = make(**spec.arguments)
    except ValueError as error:
        raise fail(
            "arguments", f"the example {spec.example} refuses its arguments: {error}"
        ) from error
    return MethodSource(
        example.module.eval(), ExampleInputs(example.inputs), calibration=example.calibration
    )


def _from_exported(path: Path) -> MethodSource:
    program = load_exported(path)
    if program.example_inputs is None:
        raise fail(
            "exported-file",
            "the exported program carries no example inputs",
            remedy="Save what torch.export.export(module, inputs) returns, as it is.",
            file=str(path),
        )
    inputs, keywords = program.example_inputs
    module = program.module()
    shapes = _open_shapes(program, module)
    return MethodSource(module, ExampleInputs(tuple(inputs), keywords), shapes, exported=program)


def _open_shapes(program: torch.export.ExportedProgram, module: torch.nn.Module) -> Any:
    """The dynamic shapes of an exported program, as torch.export takes them.

    Quantization traces it again, and what is not asked for then becomes the example's size.
    """
    ranges = program.range_constraints

    def dim(size: Any) -> Any:
        if fixed_size(size) is not None:
            return None
        bounds = ranges.get(size.node.expr)
        upper = int(bounds.upper) if bounds and bounds.upper.is_Integer else None
        return torch.export.Dim.AUTO(min=int(bounds.lower) if bounds else None, max=upper)

    shapes = [
        {index: dim(size) for index, size in enumerate(value.shape)}
        if isinstance(value, torch.Tensor)
        else None
        for value in input_values(program)
    ]
    args, keywords = pytree.tree_unflatten(shapes, program.call_spec.in_spec)
    return by_parameter(module, ExampleInputs(args, keywords))


def _from_factory(spec: ExportSpec) -> dict[str, MethodSource]:
    if spec.python is None:
        raise ValueError("the spec names no model source")
    factory = load_function(spec.python, "model.python")
    name = spec.python.name
    check_arguments(factory, spec.arguments, f"the factory {name}")
    with describe_errors("factory-raised", f"the factory {name} raised"):
        made = factory(**spec.arguments)
    found = methods_returned(made, name)
    modules = list({id(each.module): each.module for each in found.values()}.values())
    if spec.weights:
        load_weights(_only(modules), Path(spec.weights))
    for module in modules:
        module.eval()
    return {key: replace(each, module=method_of(each.module, key)) for key, each in found.items()}


def _only(modules: list[torch.nn.Module]) -> torch.nn.Module:
    if len(modules) > 1:
        raise fail(
            "weights",
            f"model.weights is for one module, and the methods have {len(modules)}",
            remedy="Load the weights in the factory, and give it their path: model.arguments",
        )
    return modules[0]


def _calibrating(
    spec: ExportSpec, method: str, methods: Iterable[str]
) -> Callable[[], Iterable[Any]]:
    """The user's function for calibration inputs of one method."""
    if spec.calibration is None:
        raise ValueError("the spec names no function for calibration")
    function = load_function(spec.calibration, "export.calibration")
    if _takes_method(function):
        return partial(function, method=method)
    if len(names := list(methods)) > 1:
        raise fail(
            "calibration",
            f"export.calibration names {spec.calibration}, which has no parameter called method: "
            f"it is called for each of {', '.join(names)}",
            remedy=f"def {spec.calibration.name}(method): ...",
        )
    return function


def _takes_method(function: Callable[..., Any]) -> bool:
    try:
        return "method" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some callables written in C have none
        return False


_RETURNS = (
    "(module, example_inputs), (module, example_inputs, dynamic_shapes) or "
    "(module, args, kwargs, dynamic_shapes)"
)
# A part of file names, of arguments of the runner, and of names in an app.
_METHOD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


def methods_returned(made: object, name: str) -> dict[str, MethodSource]:
    """The methods that a factory returned, in its order; a single one is `forward`."""
    if not isinstance(made, Mapping):
        return {FORWARD: _checked(made, f"the factory {name} returned")}
    if not made:
        raise fail("factory-result", f"the factory {name} returned a dict without methods")
    for key in made:
        if not isinstance(key, str) or not _METHOD_NAME.fullmatch(key):
            raise fail(
                "factory-result",
                f"the factory {name} returned a dict with the key {key!r}; a dict has methods by "
                "name: letters, digits and underscores, at most 48",
                remedy="For inputs by keyword: return module, {'x': x}",
            )
    return {
        key: _checked(of, f"the factory {name} returned, for {key},") for key, of in made.items()
    }


def method_of(module: torch.nn.Module, name: str) -> torch.nn.Module:
    """The module with its own method of that name as its forward; itself if it has none.

    torch.export traces forward alone. The copy has the same parameters, buffers and submodules, as
    the same objects under the same names.
    """
    own = inspect.getattr_static(type(module), name, None)
    if inspect.isfunction(own) and not hasattr(torch.nn.Module, name):
        view = copy.copy(module)
        # Of the original, whose forward it may call.
        vars(view)["forward"] = getattr(module, name)
        return view
    if getattr(type(module), "forward", None) is torch.nn.Module.forward:
        raise fail(
            "factory-result",
            f"{describe(module)} is to be the method {name}, and has neither a method of that "
            "name nor a forward",
        )
    return module


def _checked(made: object, what: str) -> MethodSource:
    if not isinstance(made, tuple | list) or len(made) not in (2, 3, 4):
        raise fail("factory-result", f"{what} {describe(made)}, not {_RETURNS}")
    if not isinstance(made[0], torch.nn.Module):
        raise fail(
            "factory-result",
            f"{what} {describe(made[0])} in place of the torch.nn.Module; it returns {_RETURNS}",
        )
    if len(made) < 4:
        shapes = made[2] if len(made) == 3 else None
        return MethodSource(made[0], _example_call(made[1], what), shapes)
    return MethodSource(made[0], _both_calls(made[1], made[2], what), made[3])


def _example_call(inputs: object, what: str) -> ExampleInputs:
    call = as_call(inputs)
    if call is None:
        raise fail(
            "factory-result",
            f"{what} {describe(inputs)} as example inputs; they are a tuple, also when there is "
            "only one, or a dict of inputs by keyword",
            remedy="return module, (x,)",
        )
    return call


def _both_calls(args: object, keywords: object, what: str) -> ExampleInputs:
    if isinstance(args, tuple | list) and (isinstance(keywords, Mapping) or keywords is None):
        return ExampleInputs(tuple(args), dict(keywords or {}))
    raise fail(
        "factory-result",
        f"{what} {describe(args)} and {describe(keywords)} as args and kwargs; they are a tuple "
        "and a dict, as torch.export takes them",
        remedy="return module, (x,), {'mask': mask}, None",
    )


def as_call(inputs: object) -> ExampleInputs | None:
    """A tuple or list as positional inputs, a dict as inputs by keyword; None for anything else."""
    if isinstance(inputs, Mapping):
        return ExampleInputs((), dict(inputs))
    return ExampleInputs(tuple(inputs)) if isinstance(inputs, tuple | list) else None
