"""Inputs and outputs of methods as NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etdeploy.bench.method_process import MethodCall
from etdeploy.core.errors import RunError, UsageError
from etdeploy.core.files.basic import inside
from etdeploy.program.folder import Provenance, Stored, TensorFile
from etdeploy.program.inspect import describe_tensor
from etdeploy.program.model import Method, PlainValue, Program, TensorInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

Inputs = "Mapping[str, Any] | Sequence[Any] | NDArray[Any]"


def find_method(program: Program, name: str | None, default: str) -> Method:
    """Return a method of a program; without a name, the one that the recipe runs."""
    methods = {method.name: method for method in program.methods}
    wanted = name or (default if default in methods else next(iter(methods)))
    if wanted not in methods:
        raise UsageError(
            f"the program has no method {wanted!r}", remedy=f"Its methods: {', '.join(methods)}"
        )
    return methods[wanted]


def input_names(method: Method, provenance: Provenance) -> tuple[str, ...]:
    """Return the names of a method's inputs; `input_N` where the model's code gives none."""
    return _names(method.inputs, _values_of(method, provenance, "inputs"), "input")


def _values_of(method: Method, provenance: Provenance, key: str) -> Sequence[Stored]:
    known = provenance
    if provenance.methods:
        if method.name not in provenance.methods:
            return ()
        known = provenance.of(method.name)
    elif provenance.method != method.name:
        return ()
    found: Sequence[Stored] = getattr(known, key) or next(
        (getattr(each, key) for each in known.sets), ()
    )
    return found


def _names(infos: Sequence[Any], stored: Sequence[Stored], otherwise: str) -> tuple[str, ...]:
    known = [each.name for each in stored] if len(stored) == len(infos) else []
    names = tuple((known[i] if known else "") or f"{otherwise}_{i}" for i in range(len(infos)))
    return (
        names
        if len(set(names)) == len(names)
        else tuple(f"{otherwise}_{i}" for i in range(len(infos)))
    )


def prepare_inputs(
    method: Method, provenance: Provenance, given: Any, *, allow_nan: bool
) -> tuple[tuple[Stored, ...], dict[str, bytes]]:
    """Check the inputs of a call; return them as the runner reads them, with their files.

    Raises:
        UsageError: A name, dtype or shape is not the method's, or a value is NaN.
    """
    names = input_names(method, provenance)
    values = _by_name(method, names, given)
    stored: list[Stored] = []
    files: dict[str, bytes] = {}
    for index, (name, info) in enumerate(zip(names, method.inputs, strict=True)):
        if isinstance(info, TensorInfo):
            array = _checked(name, info, values[name], allow_nan=allow_nan)
            path = f"input-{index}.bin"
            files[path] = array.tobytes()
            stored.append(TensorFile(path=path, dtype=info.dtype, shape=array.shape, name=name))
        elif info is not None:
            stored.append(_plain(name, info, values.get(name, info.value)))
        else:
            raise UsageError(f"the input {name} is of a kind that a session cannot pass")
    return tuple(stored), files


def _by_name(method: Method, names: Sequence[str], given: Any) -> Mapping[str, Any]:
    """The inputs by name: a mapping as it is, or one for each tensor in their order."""
    tensors = [n for n, i in zip(names, method.inputs, strict=True) if isinstance(i, TensorInfo)]
    if not isinstance(given, Mapping):
        several = list(given) if isinstance(given, list | tuple) else [given]
        if len(several) == 1 == len(tensors) or len(several) == len(tensors):
            return dict(zip(tensors, several, strict=True))
        if len(several) == len(names):
            return dict(zip(names, several, strict=True))
        if len(tensors) == 1 and isinstance(given, list):
            return {tensors[0]: given}
        raise UsageError(
            f"{len(several)} inputs are given, and method {method.name} takes {len(tensors)}",
            remedy=_signature(method, names),
        )
    unknown = [str(name) for name in given if name not in names]
    missing = [name for name in tensors if name not in given]
    if unknown or missing:
        what = [f"has no input {', '.join(unknown)}"] if unknown else []
        what += [f"needs {', '.join(missing)}"] if missing else []
        raise UsageError(
            f"method {method.name} {' and '.join(what)}", remedy=_signature(method, names)
        )
    return given


def _signature(method: Method, names: Sequence[str]) -> str:
    inputs = zip(names, method.inputs, strict=True)
    return "\n".join(f"{name}: {describe_tensor(info)}" for name, info in inputs)


def _checked(name: str, info: TensorInfo, value: Any, *, allow_nan: bool) -> NDArray[Any]:
    import numpy as np

    wanted = describe_tensor(info)
    if info.dtype not in np.sctypeDict:
        raise UsageError(f"NumPy has no {info.dtype}, which the input {name} takes ({wanted})")
    dtype = np.dtype(info.dtype)
    try:
        # Lists and numbers of Python have no dtype of their own.
        array = np.asarray(value) if hasattr(value, "dtype") else np.asarray(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"the input {name} cannot be made {wanted}: {error}") from error
    if array.dtype != dtype:
        raise UsageError(
            f"the input {name} is {array.dtype} {list(array.shape)}, and the method takes {wanted}",
            remedy=f"Convert it: {name}.astype({info.dtype!r})",
        )
    fits = len(array.shape) == len(info.shape) and all(
        size == most or (info.dynamic and size <= most)
        for size, most in zip(array.shape, info.shape, strict=True)
    )
    if not fits:
        raise UsageError(
            f"the input {name} has the shape {list(array.shape)}, and the method takes {wanted}",
            remedy="Resize or pad it, or export the model for other sizes: export.dynamic_shapes"
            if not info.dynamic
            else "Each size may be at most that of the program.",
        )
    if not allow_nan and array.dtype.kind == "f" and (undefined := int(np.isnan(array).sum())):
        raise UsageError(
            f"the input {name} has {undefined:,} NaN of {array.size:,} numbers",
            remedy="Find out where they come from; or pass them on: allow_nan=True",
        )
    return np.ascontiguousarray(array)


def _plain(name: str, info: PlainValue, value: Any) -> PlainValue:
    """A number is part of the program: no other value may be given."""
    if value != info.value:
        raise UsageError(
            f"the input {name} is {info.value!r} in the program, and not {value!r}",
            remedy=f"Leave {name} out, or export the model with that value.",
        )
    return info


def read_outputs(call: MethodCall, method: Method, provenance: Provenance) -> dict[str, Any]:
    """Return the outputs of a call by their names: arrays, and numbers as they are."""
    import numpy as np

    names = _names(call.results.outputs, _values_of(method, provenance, "expected"), "output")
    found: dict[str, Any] = {}
    for name, output in zip(names, call.results.outputs, strict=True):
        if output.path is None:
            found[name] = output.value
            continue
        shape = output.shape or ()
        content = inside(call.folder, output.path).read_bytes()
        dtype = np.dtype("uint16" if output.dtype == "bfloat16" else output.dtype)
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise RunError(
                f"the output {name} has {len(content)} bytes", place=str(Path(output.path))
            )
        array = np.frombuffer(content, dtype).reshape(shape)
        if output.dtype == "bfloat16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        found[name] = array
    return found
