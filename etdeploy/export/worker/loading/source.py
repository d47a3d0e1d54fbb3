"""The model of a spec, ready to be exported."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.examples import EXAMPLES, Example
from etdeploy.export.worker.failures import (
    blaming,
    described,
    exception_text,
    fail,
)
from etdeploy.export.worker.loading.custom_ops import load_custom_ops
from etdeploy.export.worker.loading.user_code import check_arguments, load_function
from etdeploy.export.worker.loading.weights import load_weights
from etdeploy.export.worker.tracing.structure import Call, by_parameter, fixed_size, input_values

_RETURNS = (
    "(module, example_inputs), (module, example_inputs, dynamic_shapes) or "
    "(module, args, kwargs, dynamic_shapes)"
)


@dataclass(frozen=True)
class Source:
    """A model with what torch.export needs to trace it.

    Attributes:
        module: In evaluation mode.
        inputs: Example inputs.
        dynamic_shapes: As torch.export takes them; None when all are fixed.
        calibration: Returns calibration inputs; None when there are only the example inputs.
        exported: The program that a `.pt2` held; `module` is made from it.
    """

    module: torch.nn.Module
    inputs: Call
    dynamic_shapes: Any = None
    calibration: Callable[[], Iterable[Any]] | None = None
    exported: torch.export.ExportedProgram | None = None


def load_source(spec: ExportSpec) -> Source:
    """Loads or makes the model.

    Raises:
        WorkerError: It cannot be loaded or made.
    """
    _seed(spec.seed)
    if spec.custom_ops:
        load_custom_ops(Path(spec.custom_ops))
    if spec.example:
        source = _from_example(spec)
    elif spec.exported:
        source = _from_exported(Path(spec.exported))
    else:
        source = _from_factory(spec)
    if spec.calibration:
        function = load_function(spec.calibration, "export.calibration")
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
    check_arguments(make, spec.arguments, f"the example {spec.example}")
    try:
        example: Example = make(**spec.arguments)
    except ValueError as error:
        raise fail(
            "arguments", f"the example {spec.example} refuses its arguments: {error}"
        ) from error
    return Source(example.module.eval(), Call(example.inputs), calibration=example.calibration)


def _from_exported(path: Path) -> Source:
    try:
        program = torch.export.load(path)
    except MemoryError:
        raise
    except Exception as error:
        raise fail(
            "exported-file",
            f"the exported program cannot be read ({exception_text(error)}); it is damaged, or "
            f"another version of PyTorch than {_torch_version()} wrote it",
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
    module = program.module()
    shapes = _open_shapes(program, module)
    return Source(module, Call(tuple(inputs), keywords), shapes, exported=program)


def _open_shapes(program: torch.export.ExportedProgram, module: torch.nn.Module) -> Any:
    """The dynamic shapes of an exported program, as torch.export takes them.

    Quantisation traces it again, and what is not asked for then becomes the example's size.
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
    return by_parameter(module, Call(args, keywords))


def _torch_version() -> str:
    return str(torch.__version__).partition("+")[0]  # without the name of the build


def _from_factory(spec: ExportSpec) -> Source:
    if spec.python is None:
        raise ValueError("the spec names no model source")
    factory = load_function(spec.python, "model.python")
    name = spec.python.name
    check_arguments(factory, spec.arguments, f"the factory {name}")
    with blaming("factory-raised", f"the factory {name} raised"):
        made = factory(**spec.arguments)
    module, inputs, shapes = _checked_result(made, name)
    if spec.weights:
        load_weights(module, Path(spec.weights))
    return Source(module.eval(), inputs, shapes)


def _checked_result(made: object, name: str) -> tuple[torch.nn.Module, Call, Any]:
    if not isinstance(made, tuple | list) or len(made) not in (2, 3, 4):
        raise fail(
            "factory-result", f"the factory {name} returned {described(made)}, not {_RETURNS}"
        )
    if not isinstance(made[0], torch.nn.Module):
        raise fail(
            "factory-result",
            f"the factory {name} returned {described(made[0])} in place of the torch.nn.Module; "
            f"it returns {_RETURNS}",
        )
    if len(made) < 4:
        return made[0], _example_call(made[1], name), made[2] if len(made) == 3 else None
    return made[0], _both_calls(made[1], made[2], name), made[3]


def _example_call(inputs: object, name: str) -> Call:
    call = as_call(inputs)
    if call is None:
        raise fail(
            "factory-result",
            f"the factory {name} returned {described(inputs)} as example inputs; they are a "
            "tuple, also when there is only one, or a dict of inputs by keyword",
            remedy="return module, (x,)",
        )
    return call


def _both_calls(args: object, keywords: object, name: str) -> Call:
    if isinstance(args, tuple | list) and (isinstance(keywords, Mapping) or keywords is None):
        return Call(tuple(args), dict(keywords or {}))
    raise fail(
        "factory-result",
        f"the factory {name} returned {described(args)} and {described(keywords)} as args and "
        "kwargs; they are a tuple and a dict, as torch.export takes them",
        remedy="return module, (x,), {'mask': mask}, None",
    )


def as_call(inputs: object) -> Call | None:
    """A tuple or list as positional inputs, a dict as inputs by keyword; None for anything else."""
    if isinstance(inputs, Mapping):
        return Call((), dict(inputs))
    return Call(tuple(inputs)) if isinstance(inputs, tuple | list) else None
