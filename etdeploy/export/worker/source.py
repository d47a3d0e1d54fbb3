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
from etdeploy.export.worker.custom_ops import load_custom_ops
from etdeploy.export.worker.examples import EXAMPLES, Example
from etdeploy.export.worker.failures import (
    WorkerError,
    blaming,
    described,
    exception_text,
    fail,
)
from etdeploy.export.worker.structure import fixed_size, input_values
from etdeploy.export.worker.user_code import check_arguments, load_function
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
    if keywords:
        raise _keyword_inputs(keywords)
    return Source(program.module(), tuple(inputs), _open_shapes(program), exported=program)


def _open_shapes(program: torch.export.ExportedProgram) -> Any:
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
    positional, _ = pytree.tree_unflatten(shapes, program.call_spec.in_spec)
    return positional


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


def _checked_result(made: object, name: str) -> tuple[torch.nn.Module, Inputs, Any]:
    expected = "(module, example_inputs) or (module, example_inputs, dynamic_shapes)"
    if not isinstance(made, tuple | list) or len(made) not in (2, 3):
        raise fail(
            "factory-result", f"the factory {name} returned {described(made)}, not {expected}"
        )
    module, inputs = made[0], made[1]
    if not isinstance(module, torch.nn.Module):
        raise fail(
            "factory-result",
            f"the factory {name} returned {described(module)} in place of the torch.nn.Module; "
            f"it returns {expected}",
        )
    if isinstance(inputs, Mapping):
        raise _keyword_inputs(inputs)
    if not isinstance(inputs, tuple | list):
        raise fail(
            "factory-result",
            f"the factory {name} returned {described(inputs)} as example inputs; they are a "
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
