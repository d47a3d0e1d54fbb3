"""Weights in safetensors, as far as their headers.

A file begins with the length of its header, 8 bytes, little-endian; the header is a JSON object
with dtype, shape and offsets of each tensor, the data follows.
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etdeploy.export.hf.files import WEIGHTS, WEIGHTS_INDEX
from etdeploy.recipe.hub_cache import read_object

_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class SavedTensor:
    """A tensor in a file: `dtype` as safetensors names it, and where its bytes are."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def read_bytes(self) -> bytes:
        """Its data, of a tensor that is small."""
        with self.file.open("rb") as stream:
            stream.seek(8 + int.from_bytes(stream.read(8), "little") + self.begin)
            return stream.read(self.end - self.begin)


@dataclass(frozen=True)
class Tensors:
    """The tensors of a checkpoint by their names, and what its files say in `__metadata__`."""

    infos: Mapping[str, SavedTensor]
    metadata: Mapping[str, str] = field(default_factory=dict)


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
        raise ValueError(f"it names {elsewhere[0]!r}, which is not a file beside it")
    return [folder / name for name in names]


def read_tensors(path: Path) -> Tensors:
    """The tensors of a file.

    Raises:
        OSError, ValueError, KeyError, TypeError, AttributeError, IndexError: For a file that is
            damaged.
    """
    header, data_bytes = _header(path)
    metadata = header.pop("__metadata__", None) or {}
    infos = {}
    for name, info in header.items():
        shape = tuple(int(size) for size in info["shape"])
        begin, end = (int(offset) for offset in info["data_offsets"])
        infos[name] = SavedTensor(path, str(info["dtype"]), shape, begin, end)
    end = max((info.end for info in infos.values()), default=0)
    if end > data_bytes:
        raise ValueError(f"it ends too early: {data_bytes} of {end} bytes of weights are there")
    return Tensors(infos, {str(key): str(value) for key, value in metadata.items()})


def checkpoint_tensors(folder: Path) -> Tensors:
    """The tensors of all files of a checkpoint; see `read_tensors` for what it raises."""
    files = [read_tensors(path) for path in weight_files(folder)]
    infos = {name: info for each in files for name, info in each.infos.items()}
    return Tensors(infos, {key: value for each in files for key, value in each.metadata.items()})


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        size = path.stat().st_size
        if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
            raise ValueError("it has no header of safetensors")
        content = json.loads(stream.read(length))
    if not isinstance(content, dict):
        raise ValueError("its header is not a JSON object")
    return content, size - 8 - length
