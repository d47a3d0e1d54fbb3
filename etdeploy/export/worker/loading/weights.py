"""State dicts from files, read without running any code that they might carry."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from etdeploy.core.commands import python_command
from etdeploy.core.files.basic import open_regular
from etdeploy.export.worker.failures import WorkerError, described, exception_text, fail

_SHOWN = 8

# Data types by their names in the safetensors format.
_SAFETENSORS_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def load_weights(module: torch.nn.Module, path: Path) -> None:
    """Loads a state dict into the module."""
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    own = module.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    shapes = [
        f"{name} is {list(state[name].shape)}, the module has {list(own[name].shape)}"
        for name in own
        if name in state and own[name].shape != state[name].shape
    ]
    problems = [
        f"{title}: {_some(names)}"
        for title, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", shapes),
        )
        if names
    ]
    if problems:
        raise fail(
            "weights",
            "the weights do not fit the factory's module; " + "; ".join(problems),
            remedy="Name the weights of this very module, or let model.arguments make the module "
            "that they are of.",
            file=str(path),
        )
    module.load_state_dict(state)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _read_torch(path: Path) -> dict[str, torch.Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise fail(
            "weights",
            "the file holds Python objects, which are not loaded since they could run any code; "
            "only tensors are (torch.load with weights_only)",
            remedy="If you trust whoever wrote the file, load it where the classes of its objects "
            "are, and save\nthe tensors alone: torch.save(model.state_dict(), 'weights.pt')",
            file=str(path),
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, OSError) as error:
        raise _unreadable(path, exception_text(error)) from error
    if not _is_state_dict(content):
        raise fail(
            "weights",
            f"the file holds {_described(content)}, not a state dict of names and tensors",
            remedy=_extraction(content, path),
            file=str(path),
        )
    return dict(content)


def _extraction(content: object, path: Path) -> str:
    """How to save the tensors alone: by a command if the file is a checkpoint of a training."""
    entries = content.items() if isinstance(content, Mapping) else ()
    name = next((k for k, v in entries if isinstance(k, str) and v and _is_state_dict(v)), None)
    if name is None:
        return "Save the tensors alone: torch.save(model.state_dict(), 'weights.pt')"
    command = python_command(_EXTRACT, path=str(path), name=name)
    return f"Save the tensors alone, and name the new file as model.weights:\n{command}"


_EXTRACT = 'import torch; torch.save(torch.load({path})[{name}], "weights.pt")'


def _is_state_dict(content: object) -> bool:
    return isinstance(content, Mapping) and all(
        isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in content.items()
    )


def _described(content: object) -> str:
    if isinstance(content, Mapping):
        return f"a dictionary with {_some([str(key) for key in content])}"
    return described(content)


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Reads the safetensors format: a length, a JSON header, then the tensors' bytes.

    https://github.com/huggingface/safetensors describes it.
    """
    try:
        with open_regular(path) as stream:
            data = bytearray(stream.read())
        start = 8 + int.from_bytes(data[:8], "little")
        header: dict[str, Any] = json.loads(data[8:start])
        header.pop("__metadata__", None)
        body = memoryview(data)[start:]
        return {name: _tensor(entry, body) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise _unreadable(path, exception_text(error)) from error


def _tensor(entry: dict[str, Any], body: memoryview) -> torch.Tensor:
    begin, end = entry["data_offsets"]
    dtype, shape = _SAFETENSORS_DTYPES[entry["dtype"]], tuple(entry["shape"])
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    if not 0 <= begin < end <= len(body):
        raise ValueError("a tensor lies outside the file, which may be cut short")
    return torch.frombuffer(body[begin:end], dtype=dtype).reshape(shape)


def _unreadable(path: Path, why: str) -> WorkerError:
    return fail(
        "weights",
        f"the weights cannot be read ({why}); the file may be damaged or of another format",
        remedy="Give a .pt file of torch.save or a .safetensors file.",
        file=str(path),
    )
