"""Which failures torch.export's other mode cures, and the second attempt in it.

Strict mode follows the model's bytecode (TorchDynamo), the other runs its Python. An attempt costs
as much as an export, so there is a second one only where the first failed in a way that the other
mode cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import WorkerError, first_line

Made = TypeVar("Made")

# By what the exception says: why strict mode fares better.
_STRICT_CURES = {
    # The tensor occurs twice, as a buffer and as a constant; seen with torch 2.13 and the static
    # cache of transformers. TorchDynamo identifies the two as one object.
    "expected compiled_fn to be GraphModule": "the model also reaches a buffer through an object "
    "that is not a module, such as a static cache",
    # TorchDynamo traces NumPy's functions as operators of torch.
    ".numpy() is not supported for tensor subclasses": "the model computes with NumPy",
}
# What fails in strict mode after TorchDynamo has followed the model.
_PLAIN_CURES = {
    "_checkpoint_context_fn": "the model uses activation checkpointing",
}
_ON_VALUES = re.compile(r"data-dependent|\.item\(\)|dynamic shape operator", re.IGNORECASE)


def in_either_mode(
    spec: ExportSpec, work: Callable[[ExportSpec], Made], tell: Callable[[str], None]
) -> tuple[Made, str | None]:
    """Does the work as the spec says, and once more in torch.export's other mode where that helps.

    Returns the result, and a sentence for the user when that took the other mode.
    """
    try:
        return work(spec), None
    except WorkerError as error:
        why = cured_by_other_mode(error, strict=spec.strict)
        if why is None:
            raise
        first = error.failure
    tell(f"tracing again with {_option(not spec.strict)}: {why}")
    try:
        made = work(spec.model_copy(update={"strict": not spec.strict}))
    except WorkerError as error:
        # The second says what the model needs there.
        message = (
            f"{error.failure.message} (with {_option(not spec.strict)}; with "
            f"{_option(spec.strict)}: {first.message})"
        )
        failure = error.failure.model_copy(update={"message": message})
        raise WorkerError(failure) from error
    return made, (
        f"Traced with {_option(not spec.strict)}: {why}, and torch.export fails on that with "
        f"{_option(spec.strict)}. Put strict: {str(not spec.strict).lower()} under export: in the "
        "recipe to save that attempt."
    )


def cured_by_other_mode(error: BaseException, *, strict: bool) -> str | None:
    """Why the other mode fares better after an exception; None when it does not."""
    cures = _PLAIN_CURES if strict else _STRICT_CURES
    for current in _chain(error):
        for text, why in cures.items():
            if text in str(current):
                return why
        if strict and (reason := _not_followed(current)):
            return reason
    return None


def _not_followed(error: BaseException) -> str | None:
    """What TorchDynamo alone cannot do."""
    # UserError is about the model's inputs and shapes; both modes refuse those.
    names = {kind.__name__ for kind in type(error).__mro__}
    if "TorchDynamoException" not in names or "UserError" in names:
        return None
    if _ON_VALUES.search(str(error)):
        return None
    return f"TorchDynamo cannot follow the model ({first_line(error)})"


def _option(strict: bool) -> str:
    return f"export.strict={str(strict).lower()}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__
