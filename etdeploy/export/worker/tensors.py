"""Inputs and outputs: flattened, checked, compared and written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from etdeploy.export.protocol import FailureKind
from etdeploy.export.worker.failures import blaming, described, fail
from etdeploy.program.folder import TensorFile

Tensors = list[torch.Tensor]


def flat_inputs(inputs: tuple[Any, ...]) -> Tensors:
    """The tensors of nested inputs, in the order of the program's inputs.

    Raises:
        WorkerError: A leaf is not a dense tensor on the CPU.
    """
    return _flat(inputs, "inputs", "example input", _FIXED_VALUE)


_FIXED_VALUE = (
    "A program's runner is given tensors only. Fix the value in a wrapper module, or pass it as a\n"
    "tensor: torch.tensor(value)"
)


def run_eagerly(module: torch.nn.Module, inputs: tuple[Any, ...], what: str) -> Tensors:
    """The flattened outputs of one call; the module's buffers and the inputs stay as they are.

    Args:
        module: The model.
        inputs: Positional.
        what: How a message calls the model.

    Raises:
        WorkerError: The model raises or writes into an input, or an output is not a tensor.
    """
    with (
        torch.no_grad(),
        _buffers_restored(module),
        blaming("model-raised", f"{what} raised, when called with the example inputs,"),
    ):
        given = copied(inputs)
        outputs = module(*given)
    _check_unwritten(given)
    remedy = "Wrap the model in a module whose forward returns tensors only."
    # Copies, since an output may share memory with a buffer that is now restored.
    return [t.detach().clone() for t in _flat(outputs, "outputs", "output", remedy)]


def _check_unwritten(inputs: tuple[Any, ...]) -> None:
    for index, leaf in enumerate(pytree.tree_leaves(inputs)):
        # torch counts the writes; a fresh copy has none.
        if isinstance(leaf, torch.Tensor) and leaf._version:
            raise fail(
                "inputs",
                f"the model writes into its input {index}; every further run on the device would "
                "start from other values",
                remedy="Let forward work on a copy: x = x.clone()",
            )


def copied(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Nested inputs with copies of their tensors: a model may write into its inputs."""
    result: tuple[Any, ...] = pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, inputs)
    return result


def write_tensors(folder: Path, name: str, tensors: Tensors) -> tuple[TensorFile, ...]:
    """Writes `name/0.bin` and so on: raw little-endian contiguous bytes."""
    (folder / name).mkdir()
    files = []
    for index, tensor in enumerate(tensors):
        path = f"{name}/{index}.bin"
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        (folder / path).write_bytes(data.numpy().tobytes())
        dtype = str(tensor.dtype).removeprefix("torch.")
        files.append(TensorFile(path=path, dtype=dtype, shape=tuple(tensor.shape)))
    return tuple(files)


def distances(reference: Tensors, other: Tensors) -> list[dict[str, Any]]:
    """How far outputs are from those of the reference, one entry for each output.

    `max_abs_error` is the largest absolute difference of any element; `cosine_similarity` that of
    the flattened tensors, 1 where both are zero.
    """
    return [
        {"output": index, **_distance(a.double().flatten(), b.double().flatten())}
        for index, (a, b) in enumerate(zip(reference, other, strict=True))
    ]


def _distance(a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    if not a.numel():
        return {"max_abs_error": 0.0, "cosine_similarity": 1.0}
    norms = (a.norm() * b.norm()).item()
    cosine = (a @ b).item() / norms if norms else float(torch.equal(a, b))
    return {"max_abs_error": (a - b).abs().max().item(), "cosine_similarity": cosine}


@contextmanager
def _buffers_restored(module: torch.nn.Module) -> Iterator[None]:
    """Undoes what a call writes into the module's buffers, such as a cache.

    The exported program starts from the buffers that the module has at export.
    """
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _flat(tree: object, kind: FailureKind, what: str, remedy: str) -> Tensors:
    leaves: Tensors = pytree.tree_leaves(tree)
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            raise fail(
                kind,
                f"{what} {index} is {_leaf(leaf)}; it must be a tensor",
                remedy=remedy,
            )
        if leaf.layout != torch.strided or leaf.is_complex() or leaf.is_quantized:
            raise fail(
                kind,
                f"{what} {index} is a {leaf.layout} tensor of {leaf.dtype}; a program takes and "
                "gives dense tensors of plain numbers",
            )
    return leaves


def _leaf(leaf: object) -> str:
    plain = isinstance(leaf, bool | int | float | str)
    return f"{described(leaf)}, {leaf!r}" if plain else described(leaf)
