"""What a factory returned: a model with its example inputs, or one for each method."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.export.worker.failures import described, fail
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.program.folder import FORWARD

_RETURNS = (
    "(module, example_inputs), (module, example_inputs, dynamic_shapes) or "
    "(module, args, kwargs, dynamic_shapes)"
)
# A part of file names, of arguments of the runner, and of names in an app.
_METHOD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


@dataclass(frozen=True)
class Returned:
    """A module with example inputs and dynamic shapes, as torch.export takes them."""

    module: torch.nn.Module
    inputs: ExampleInputs
    dynamic_shapes: Any = None


def methods_returned(made: object, name: str) -> dict[str, Returned]:
    """The methods that a factory returned, in its order; a single one is `forward`.

    Args:
        made: What the factory returned.
        name: Of the factory.

    Raises:
        WorkerError: It is nothing that torch.export takes.
    """
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

    Raises:
        WorkerError: It has neither such a method nor a forward.
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
            f"{described(module)} is to be the method {name}, and has neither a method of that "
            "name nor a forward",
        )
    return module


def _checked(made: object, what: str) -> Returned:
    if not isinstance(made, tuple | list) or len(made) not in (2, 3, 4):
        raise fail("factory-result", f"{what} {described(made)}, not {_RETURNS}")
    if not isinstance(made[0], torch.nn.Module):
        raise fail(
            "factory-result",
            f"{what} {described(made[0])} in place of the torch.nn.Module; it returns {_RETURNS}",
        )
    if len(made) < 4:
        return Returned(made[0], _example_call(made[1], what), made[2] if len(made) == 3 else None)
    return Returned(made[0], _both_calls(made[1], made[2], what), made[3])


def _example_call(inputs: object, what: str) -> ExampleInputs:
    call = as_call(inputs)
    if call is None:
        raise fail(
            "factory-result",
            f"{what} {described(inputs)} as example inputs; they are a tuple, also when there is "
            "only one, or a dict of inputs by keyword",
            remedy="return module, (x,)",
        )
    return call


def _both_calls(args: object, keywords: object, what: str) -> ExampleInputs:
    if isinstance(args, tuple | list) and (isinstance(keywords, Mapping) or keywords is None):
        return ExampleInputs(tuple(args), dict(keywords or {}))
    raise fail(
        "factory-result",
        f"{what} {described(args)} and {described(keywords)} as args and kwargs; they are a tuple "
        "and a dict, as torch.export takes them",
        remedy="return module, (x,), {'mask': mask}, None",
    )


def as_call(inputs: object) -> ExampleInputs | None:
    """A tuple or list as positional inputs, a dict as inputs by keyword; None for anything else."""
    if isinstance(inputs, Mapping):
        return ExampleInputs((), dict(inputs))
    return ExampleInputs(tuple(inputs)) if isinstance(inputs, tuple | list) else None
