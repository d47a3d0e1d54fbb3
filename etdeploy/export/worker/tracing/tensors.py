"""Inputs and outputs: flattened, named, checked, compared and written."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etdeploy.export.protocol import FailureKind
from etdeploy.export.worker.failures import WorkerError, describe, describe_errors, fail
from etdeploy.export.worker.tracing.structure import ExampleInputs, by_parameter, dotted, leaves
from etdeploy.program.folder import Stored, TensorFile
from etdeploy.program.model import PlainValue
from etdeploy.program.quality import OutputLoss, measure_distance

_LONGEST_NAME = 48
_IMAGE_DIMENSIONS = 4
_INT64 = range(-(2**63), 2**63)
_INPUT_REMEDY = (
    "Fix the value in a wrapper module, or pass it as a tensor, a number, a boolean or None."
)
_OUTPUT_REMEDY = (
    "Let a wrapper module return tensors, alone or in tuples, lists and dicts. A dataclass of\n"
    "tensors needs torch.export.register_dataclass."
)


@dataclass(frozen=True)
class NamedValue:
    """An input or output by its name: a tensor, or a plain value that a program can hold."""

    name: str
    value: torch.Tensor | bool | int | float | None


Values = list[NamedValue]


def flat_inputs(module: torch.nn.Module, call: ExampleInputs) -> Values:
    """The values of nested inputs, in the order of the program's inputs."""
    values = _flat(by_parameter(module, call), "input")
    for value in values:
        if isinstance(value.value, float) and not math.isfinite(value.value):
            raise _refused("inputs", "input", value.name, value.value)
    return values


def run_eagerly(
    module: torch.nn.Module, call: ExampleInputs, what: str, given: str = "the example inputs"
) -> Values:
    """The flattened outputs of one call; the module's buffers and the inputs stay as they are."""
    with (
        torch.no_grad(),
        buffers_restored(module.buffers()),
        describe_errors("model-raised", f"{what} raised, when called with {given},"),
    ):
        copy = copied(call)
        outputs = copy.on(module)
    _check_unwritten(module, copy)
    # Copies, since an output may share memory with a buffer that is now restored.
    return [NamedValue(v.name, _detached(v.value)) for v in _flat(outputs, "output")]


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _check_unwritten(module: torch.nn.Module, call: ExampleInputs) -> None:
    for path, leaf in leaves(by_parameter(module, call)):
        # torch counts the writes; a fresh copy has none.
        if isinstance(leaf, torch.Tensor) and leaf._version:
            raise fail(
                "inputs",
                f"the model writes into its input {dotted(path, 'input')}; every further run on "
                "the device would start from other values",
                remedy="Let forward work on a copy: x = x.clone()",
            )


def copied(call: ExampleInputs) -> ExampleInputs:
    """The same inputs with copies of their tensors: a model may write into its inputs."""
    trees = ((call.args), dict(call.keywords))
    args, keywords = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, trees)
    return ExampleInputs(args, keywords)


def laid_out(call: ExampleInputs, like: ExampleInputs | None = None) -> ExampleInputs:
    """The inputs, themselves if possible, with strides that ExecuTorch knows."""
    flat, structure = pytree.tree_flatten((call.args, dict(call.keywords)))
    models = pytree.tree_leaves((like.args, dict(like.keywords))) if like else []
    if len(models) != len(flat):
        models = [None] * len(flat)
    made = [
        with_strides(leaf, by_pixel=is_by_pixel(model))
        for leaf, model in zip(flat, models, strict=True)
    ]
    if all(new is old for new, old in zip(made, flat, strict=True)):
        return call
    return ExampleInputs(*pytree.tree_unflatten(made, structure))


def is_by_pixel(value: object) -> bool:
    """Whether the values of an image lie by pixel, with strides by which ExecuTorch knows that."""
    return (
        _is_strided(value)
        and value.dim() == _IMAGE_DIMENSIONS
        and value.shape[1] > 1
        and value.stride() == _strides(value, torch.channels_last)
    )


def with_strides(value: Any, *, by_pixel: bool = False) -> Any:
    """A tensor in that order, itself if it is; anything else as it is.

    ExecuTorch sorts dimensions by their strides, so those of dimensions of size 1 count, which
    PyTorch's `contiguous` leaves as they are.
    """
    if not _is_strided(value) or (by_pixel and is_by_pixel(value)):
        return value
    images = by_pixel and value.dim() == _IMAGE_DIMENSIONS
    order = torch.channels_last if images else torch.contiguous_format
    if value.stride() == _strides(value, order):
        return value
    return value.detach().clone(memory_format=order)


def lay_out_weights(module: torch.nn.Module) -> bool:
    """Gives the weights and buffers strides by channel; whether one had others.

    ExecuTorch's passes expect them so: those of a model in `torch.channels_last` are not.
    """
    changed = False
    for tensor in (*module.parameters(), *module.buffers()):
        if not torch.nn.parameter.is_lazy(tensor):
            data = tensor.data
            tensor.data = with_strides(data)
            changed = changed or tensor.data.stride() != data.stride()
    return changed


def _is_strided(value: object) -> TypeGuard[torch.Tensor]:
    if not isinstance(value, torch.Tensor) or is_traceable_wrapper_subclass(value):
        return False
    return value.layout == torch.strided and not value.is_nested


def _strides(tensor: torch.Tensor, order: torch.memory_format) -> tuple[int, ...]:
    return tuple(torch.empty(tensor.shape, device="meta", memory_format=order).stride())


def write_values(folder: Path, name: str, values: Values) -> tuple[Stored, ...]:
    """Writes tensors as `name/0.logits.bin` and so on: raw little-endian contiguous bytes."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    return tuple(_written(folder, name, i, value) for i, value in enumerate(values))


def _written(folder: Path, name: str, index: int, value: NamedValue) -> Stored:
    tensor = value.value
    if not isinstance(tensor, torch.Tensor):
        return plain(value)
    path = f"{name}/{index}{_suffix(value.name)}.bin"
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    (folder / path).write_bytes(data.numpy().tobytes())
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorFile(path=path, dtype=dtype, shape=tuple(tensor.shape), name=value.name)


def _suffix(name: str) -> str:
    """A part of a file's name; names of the model's own can hold anything, a slash too."""
    if re.fullmatch(r"(input|output)_\d+", name):
        return ""
    return "." + re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:_LONGEST_NAME]


def plain(value: NamedValue) -> PlainValue:
    """A value that is not a tensor, as it is stored."""
    number = value.value
    if number is None:
        return PlainValue(kind="None", name=value.name)
    if isinstance(number, bool):
        return PlainValue(kind="Bool", value=number, name=value.name)
    if isinstance(number, int):
        return PlainValue(kind="Int", value=number, name=value.name)
    if not isinstance(number, float):
        raise TypeError(f"{value.name} is a tensor")
    finite = number if math.isfinite(number) else None
    return PlainValue(kind="Double", value=finite, name=value.name)


def misfit(name: str, have: Any, want: Any, sizes: Sequence[range]) -> str | None:
    """What is wrong with an input, as an object: `torch.int64 [1, 8] for ids, not ...`."""
    if not isinstance(want, torch.Tensor):
        same = have == want and type(have) is type(want)
        return None if same else f"{have!r} for {name}, which is fixed at {want!r}"
    wanted = f"{want.dtype} [{', '.join(map(_size_text, sizes))}]"
    if not isinstance(have, torch.Tensor):
        return f"{describe(have)} for {name}, not {wanted}"
    fits = len(have.shape) == len(sizes) and all(
        n in of for n, of in zip(have.shape, sizes, strict=True)
    )
    if fits and have.dtype == want.dtype:
        return None
    return f"{have.dtype} {list(have.shape)} for {name}, not {wanted}"


def _size_text(sizes: range) -> str:
    if len(sizes) == 1:
        return str(sizes.start)
    return (
        f"{sizes.start} or more" if sizes.stop == sys.maxsize else f"{sizes.start} to {sizes[-1]}"
    )


def losses(reference: Values, other: Values) -> tuple[OutputLoss, ...]:
    """How far each tensor of `other` is from the same one of `reference`."""
    return tuple(
        _loss(a.name, a.value, b.value)
        for a, b in zip(reference, other, strict=True)
        if isinstance(a.value, torch.Tensor) and isinstance(b.value, torch.Tensor)
    )


def _loss(name: str, reference: torch.Tensor, other: torch.Tensor) -> OutputLoss:
    is_float = reference.is_floating_point()
    have, want = (t.double().numpy() if is_float else t.numpy() for t in (other, reference))
    found = measure_distance(have, want)
    noise, signal = found.rms_error, found.rms
    return OutputLoss(
        name=name,
        cosine_similarity=found.cosine_similarity if is_float else None,
        sqnr_db=20 * math.log10(signal / noise) if is_float and signal and noise else None,
        max_abs_error=found.max_abs_error,
        equal_percent=None if is_float or not have.size else 100 * float((have == want).mean()),
        undefined=found.odd_places,
    )


@contextmanager
def buffers_restored(buffers: Iterable[torch.Tensor]) -> Iterator[None]:
    """Undoes what a call writes into buffers of a module, such as a cache.

    The exported program starts from the buffers that the module has at export.
    """
    before = [(buffer, buffer.detach().clone()) for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _flat(tree: object, what: str) -> Values:
    kind: FailureKind = "inputs" if what == "input" else "outputs"
    values = []
    for path, leaf in leaves(tree):
        name = dotted(path, what)
        if isinstance(leaf, torch.Tensor):
            _check_dense(kind, f"{what} {name}", leaf)
        elif not (leaf is None or isinstance(leaf, bool | float) or _is_int64(leaf)):
            raise _refused(kind, what, name, leaf)
        values.append(NamedValue(name, leaf))
    return values


def _is_int64(leaf: object) -> bool:
    return isinstance(leaf, int) and leaf in _INT64


def _check_dense(kind: FailureKind, what: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
        raise fail(
            kind,
            f"the {what} is a {tensor.layout} tensor of {tensor.dtype}; a program takes and gives "
            "dense tensors of plain numbers",
        )


def _refused(kind: FailureKind, what: str, name: str, leaf: object) -> WorkerError:
    is_value = isinstance(leaf, int | float | str)
    shown = f"{describe(leaf)}, {leaf!r}" if is_value else describe(leaf)
    verb, remedy = ("take", _INPUT_REMEDY) if what == "input" else ("give", _OUTPUT_REMEDY)
    return fail(
        kind,
        f"the {what} {name} is {shown}; a program can {verb} tensors, numbers of 64 bits, booleans "
        "and None",
        remedy=remedy,
    )
