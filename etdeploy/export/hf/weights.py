"""Weights in safetensors, read as far as their headers.

A file begins with the length of its header, 8 bytes, little-endian; the header is a JSON object
with dtype, shape and offsets of each tensor, the data follows.
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from etdeploy.core.commands import pip_command, python_command
from etdeploy.core.console import count
from etdeploy.export.hf.config import AGAIN, ConfigProblem, pipeline_refusal
from etdeploy.export.hf.files import (
    CONFIG,
    PIPELINE,
    WEIGHTS,
    WEIGHTS_INDEX,
    are_pickles,
    lists_tokenizer,
    other_weights,
    read_object,
)

_LONGEST_HEADER = 100_000_000
_SHOWN = 3
_CONVERT = (
    "import transformers as t; "
    '[getattr(t, k).from_pretrained({place}).save_pretrained("converted") for k in {kinds}]'
)


def weights_refusal(folder: Path) -> ConfigProblem | None:
    """What is wrong with the weights of a checkpoint; None where nothing is, as headers tell."""
    if not (folder / WEIGHTS_INDEX).is_file() and not (folder / WEIGHTS).is_file():
        return no_weights([path.name for path in folder.iterdir()], str(folder))
    try:
        files = weight_files(folder)
    except (OSError, ValueError) as error:
        return ConfigProblem(
            f"the index of the weights cannot be read: {error}",
            AGAIN,
            place=str(folder / WEIGHTS_INDEX),
        )
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        return ConfigProblem(
            f"{count(len(missing), 'file')} of the weights {_are(missing)} missing: "
            + _listed(missing),
            "Get the missing files from where the others came.",
            place=str(folder),
        )
    return next(filter(None, map(_damage, files)), None)


def no_weights(names: list[str], place: str) -> ConfigProblem:
    """The refusal of a folder or repository without safetensors that can be loaded."""
    if PIPELINE in names and CONFIG not in names:
        return pipeline_refusal(place)
    foreign = foreign_refusal(names, place)
    if foreign:
        return foreign
    others = other_weights(names)
    if are_pickles(others):
        return ConfigProblem(
            f"the weights are in pickles only ({_listed(others)}); to load one runs whatever code "
            "is in it, so only safetensors are read",
            f"If you trust them, convert them:\n{_conversion(names, place)}\n"
            "Then: --model ./converted",
            place=place,
        )
    there = f"; {_listed(others)} cannot be read" if others else ""
    return ConfigProblem(
        f"there are no weights in safetensors, as transformers names them ({WEIGHTS}){there}",
        "Name a folder that save_pretrained wrote, or the id of a model that has them.",
        place=place,
    )


def foreign_refusal(names: list[str], place: str) -> ConfigProblem | None:
    """The refusal of an adapter or of GGUF, which come without what transformers saves."""
    if any(name.startswith("adapter_model.") or name == "adapter_config.json" for name in names):
        return ConfigProblem(
            "these are the weights of an adapter, without those of the model that it changes",
            f"Merge them, with the package peft:\n{pip_command('peft')}\n"
            f"{python_command(_MERGE, place=place)}\nThen: --model ./merged",
            place=place,
        )
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if gguf and not are_pickles(names):
        return gguf_refusal(place, gguf[0])
    return None


_MERGE = (
    "from peft import AutoPeftModelForCausalLM as M; from transformers import AutoTokenizer as T; "
    'm = M.from_pretrained({place}); m.merge_and_unload().save_pretrained("merged"); '
    'T.from_pretrained(m.peft_config["default"].base_model_name_or_path).save_pretrained("merged")'
)


def gguf_refusal(folder: str, name: str) -> ConfigProblem:
    """The refusal of weights in llama.cpp's format, with the command that converts them."""
    return ConfigProblem(
        f"{name} is in GGUF, llama.cpp's format, and only safetensors are read",
        "Name the model that it was made from. Without that, transformers can convert it, with\n"
        "the package gguf, though its weights have lost precision already:\n"
        f"{pip_command('gguf')}\n{python_command(_FROM_GGUF, folder=folder, name=name)}\n"
        "Then: --model ./converted",
        place=folder,
    )


# A model that remembers its blocks cannot be saved, even if it has none any more.
_FROM_GGUF = (
    "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T, GgufConfig as G; "
    'a = {{"pretrained_model_name_or_path": {folder}, "gguf_file": {name}}}; '
    "m = M.from_pretrained(**a, quantization_config=G(dequantize=True)); m.hf_quantizer = None; "
    '[k.save_pretrained("converted") for k in (m, T.from_pretrained(**a))]'
)


def _conversion(names: list[str], place: str) -> str:
    kinds = ["AutoModelForCausalLM", *(["AutoTokenizer"] if lists_tokenizer(names) else [])]
    return python_command(_CONVERT, place=place, kinds=kinds)


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights."""
    index = folder / WEIGHTS_INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [folder / WEIGHTS]
    parts = read_object(index).get("weight_map")
    if not isinstance(parts, dict) or not parts:
        raise ValueError("it has no weight_map")
    names = sorted({str(name) for name in parts.values()})
    elsewhere = [name for name in names if Path(name).name != name]
    if elsewhere:
        raise ValueError(f"it names {elsewhere[0]!r}, which is no file beside it")
    return [folder / name for name in names]


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a file."""
    shapes = {}
    end = 0
    header, data_bytes = _header(path)
    for name, info in header.items():
        if name != "__metadata__":
            shapes[name] = tuple(int(size) for size in info["shape"])
            end = max(end, int(info["data_offsets"][1]))
    if end > data_bytes:
        raise ValueError(f"it ends too early: {data_bytes} of {end} bytes of weights are there")
    return shapes


def parameter_count(folder: Path) -> int:
    """Number of weights in a checkpoint; see `tensor_shapes` for what it raises."""
    shapes = (shape for path in weight_files(folder) for shape in tensor_shapes(path).values())
    return sum(math.prod(shape) for shape in shapes)


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        size = path.stat().st_size
        if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
            raise ValueError("it has no header of safetensors")
        content = json.loads(stream.read(length))
    if not isinstance(content, dict):
        raise ValueError("its header is no JSON object")
    return content, size - 8 - length


def _damage(path: Path) -> ConfigProblem | None:
    try:
        tensor_shapes(path)
    except OSError as error:
        return ConfigProblem(f"the weights cannot be read: {error.strerror}", place=str(path))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        pointer = path.stat().st_size < _LONGEST_POINTER and b"git-lfs" in path.read_bytes()
        what = "it is git-lfs's pointer to the file" if pointer else str(error) or repr(error)
        return ConfigProblem(
            f"the file of weights is damaged: {what}",
            "In a clone: git lfs pull" if pointer else "Get the file again.",
            place=str(path),
        )
    return None


_LONGEST_POINTER = 1024


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
