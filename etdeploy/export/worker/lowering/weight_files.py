"""Weights and data of a program in files, if they do not fit in memory.

The kernel drops pages of a mapped file whenever memory is short and reads them again, so that a
tensor in a file takes no memory that the export needs. transformers maps weights in safetensors,
too, as long as they have the type that is asked for (`safetensors.safe_open`).
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from etdeploy.export.hf.files import WEIGHTS_INDEX
from etdeploy.export.hf.tensors import checkpoint_tensors, weight_files
from etdeploy.export.worker.backends.base import patched
from etdeploy.export.worker.lowering.scales import on_threads

# Smaller ones are not worth a file.
_LEAST_BYTES = 1 << 20
# Elements that are computed, or converted, at a time.
_AT_ONCE = 1 << 20
_FLOATS = (torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class WeightFiles:
    """A folder for files that are gone when the export ends, on the disk of the program."""

    folder: Path

    def float_checkpoint(self, source: Path) -> Path:
        """A checkpoint with its weights as float32, which transformers then maps.

        Each value of 16-bit floats is one of float32 too.
        """
        from safetensors import safe_open

        _return_freed_memory()
        if all(info.dtype == "F32" for info in checkpoint_tensors(source).infos.values()):
            return source
        target = self.folder / "checkpoint"
        target.mkdir(parents=True)
        weights = weight_files(source)
        for path in source.iterdir():
            if path.is_file() and path not in weights:
                shutil.copyfile(path, target / path.name)
        if not (source / WEIGHTS_INDEX).is_file() or len(weights) == 1:
            (target / WEIGHTS_INDEX).unlink(missing_ok=True)
        for path in weights:
            with safe_open(path, framework="pt") as opened:
                _write_floats(opened, target / path.name)
        return target

    def remove_checkpoint(self) -> None:
        """Removes the files of `float_checkpoint`; what is mapped stays until it is freed."""
        shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)

    def moved(self, tensor: Any) -> Any:
        """A tensor with the same values, also one of torchao's, in files if it is large."""
        if hasattr(tensor, "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()
            inner = {name: self.moved(getattr(tensor, name)) for name in names}
            return type(tensor).__tensor_unflatten__(inner, context, None, None)
        if tensor.nbytes < _LEAST_BYTES:
            return tensor
        return self.joined((tensor,))

    def dequantized(self, weight: Any, compute: Any) -> torch.Tensor:
        """What `compute` makes of a quantized weight, some rows at a time."""
        return self.joined(compute(rows) for rows in in_rows(weight))

    def joined(self, parts: Iterable[torch.Tensor]) -> torch.Tensor:
        """A tensor of all parts' rows, in a file, which has no name any more."""
        self.folder.mkdir(exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.folder)
        dtype, row, rows = torch.float32, torch.Size(), 0
        try:
            with os.fdopen(descriptor, "wb") as stream:
                for part in parts:
                    dtype, row, rows = part.dtype, part.shape[1:], rows + len(part)
                    stream.write(_bytes_of(part))
                _flush(stream)
            size = rows * math.prod(row)
            mapped = torch.from_file(name, shared=False, size=size, dtype=dtype)
        finally:
            Path(name).unlink()
        return mapped.reshape(rows, *row)

    @contextmanager
    def holding_data(self) -> Iterator[None]:
        """While the block runs, large data that a delegate names is kept in files."""
        import executorch.exir._serialize._named_data_store as named_data
        from executorch.exir._serialize._cord import FileBackedData

        store = named_data.NamedDataStore
        add = store.add_named_data
        known: dict[bytes, FileBackedData] = {}

        def added(own: Any, key: str, data: Any, *args: Any, **kwargs: Any) -> None:
            if isinstance(data, bytes) and len(data) >= _LEAST_BYTES:
                # Several methods have the same weights.
                digest = hashlib.sha256(data).digest()
                if digest not in known:
                    known[digest] = self._data(data, digest)
                data = known[digest]
            add(own, key, data, *args, **kwargs)

        with patched(store, add_named_data=added):
            yield

    def _data(self, content: bytes, digest: bytes) -> Any:
        from executorch.exir._serialize._cord import FileBackedData

        self.folder.mkdir(exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            _flush(stream)
        return FileBackedData(name, cleanup=True, sha256=digest)


@contextmanager
def temporary_files(folder: Path) -> Iterator[WeightFiles]:
    """Files of an export; the folder is made with the first of them, and removed at the end."""
    try:
        yield WeightFiles(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep_small(model: torch.nn.Module) -> None:
    """Takes a model's small tensors out of files, whose room on the disk goes with the last."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.nbytes < _LEAST_BYTES:
            tensor.data = tensor.data.clone()


def in_rows(weight: Any) -> Iterator[Any]:
    """A tensor of two dimensions, some rows at a time."""
    rows = max(1, _AT_ONCE * len(weight) // max(1, weight.numel()))
    for start in range(0, len(weight), rows):
        yield weight[start : min(start + rows, len(weight))]


def quantized_in_rows(config: Any, layer: torch.nn.Module, files: WeightFiles | None) -> Any:
    """What torchao makes of a layer's weight, some rows at a time: each has its own scales.

    The whole of an output layer would be in memory several times, for values in between.
    """
    from torchao.quantization.quant_api import quantize_

    def quantized(rows: torch.Tensor) -> Any:
        part = copy.copy(layer)
        part._parameters = {**layer._parameters}
        part.weight = torch.nn.Parameter(rows, requires_grad=False)
        quantize_(part, config, filter_fn=lambda *_: True)
        made = part.weight.detach()
        return files.moved(made) if files else made

    parts = on_threads(quantized, list(in_rows(layer.weight.detach())))
    names, context = parts[0].__tensor_flatten__()
    join = files.joined if files else torch.cat
    inner = {name: join([getattr(part, name) for part in parts]) for name in names}
    return type(parts[0]).__tensor_unflatten__(inner, context, None, None)


def _write_floats(opened: Any, path: Path) -> None:
    """Writes a file of safetensors, a part of a tensor at a time; integers stay as they are.

    The header has its length in front, and offsets from where it ends
    (https://huggingface.co/docs/safetensors/index#format).
    """
    import json

    header: dict[str, Any] = {"__metadata__": dict(opened.metadata() or {}) | {"format": "pt"}}
    names, end = sorted(opened.keys()), 0
    for name in names:
        tensor = opened.get_tensor(name)
        size = tensor.numel() * (4 if tensor.dtype in _FLOATS else tensor.element_size())
        dtype = "F32" if tensor.dtype in _FLOATS else opened.get_slice(name).get_dtype()
        header[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    with path.open("wb") as stream:
        stream.write(len(content).to_bytes(8, "little") + content)
        for name in names:
            for part in opened.get_tensor(name).reshape(-1).split(_AT_ONCE):
                stream.write(_bytes_of(part.float() if part.dtype in _FLOATS else part))
        _flush(stream)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


_M_MMAP_THRESHOLD = -3  # malloc.h


def _return_freed_memory() -> None:
    """Lets glibc give large blocks back as they are freed.

    Otherwise it keeps those of up to 32 MB, for each thread, and fragments of them add up.
    """
    with suppress(AttributeError, OSError):  # other C libraries have no mallopt, or no such setting
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LEAST_BYTES)


def _flush(stream: Any) -> None:
    """Lets the kernel drop the file's pages, which it cannot before they are on the disk."""
    stream.flush()
    os.fsync(stream.fileno())
    with suppress(AttributeError, OSError):  # macOS has no such call
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def dequantized_once(files: WeightFiles | None = None) -> Iterator[None]:
    """While the block runs, a quantized weight that is used keeps its values as floats.

    torchao computes them anew in each call of a layer: that was nearly all of the time in which a
    model with 4-bit weights gives a token. They take four bytes for each weight, as those of the
    original did, in memory or in `files`. Of a table that is looked up, only the rows of tokens are
    computed: apart from a tied output layer, it is a gigabyte for a vocabulary of 128,256.
    """
    from torchao.quantization import IntxUnpackedToInt8Tensor

    upstream: Callable[[Any], torch.Tensor] = IntxUnpackedToInt8Tensor.dequantize
    if upstream.__module__ == __name__:  # within another block, which has the values
        yield
        return
    # The weight itself is kept, too: another one cannot have its id then.
    known: dict[int, tuple[Any, torch.Tensor]] = {}

    def dequantize(weight: Any) -> torch.Tensor:
        if id(weight) not in known:
            compute = partial(_floats, upstream=upstream)
            values = files.dequantized(weight, compute) if files else compute(weight)
            known[id(weight)] = weight, values
        return known[id(weight)][1]

    look_up = torch.nn.Embedding.forward

    def looked_up(table: torch.nn.Embedding, indices: torch.Tensor) -> torch.Tensor:
        weight: Any = table.weight
        if not isinstance(weight.data, IntxUnpackedToInt8Tensor) or not _is_symmetric(weight):
            return look_up(table, indices)
        rows = indices.flatten()
        return _scaled(weight.qdata[rows], weight.scale[rows]).reshape(*indices.shape, -1)

    with (
        patched(IntxUnpackedToInt8Tensor, dequantize=dequantize),
        patched(torch.nn.Embedding, forward=looked_up),
    ):
        yield


def _floats(weight: Any, upstream: Callable[[Any], torch.Tensor]) -> torch.Tensor:
    """What a quantized weight stands for, in a third of torchao's time and without its copies."""
    return _scaled(weight.qdata, weight.scale) if _is_symmetric(weight) else upstream(weight)


def _is_symmetric(weight: Any) -> bool:
    by_row = weight.block_size[0] == 1
    return by_row and weight.dtype == torch.float32 and not weight.zero_point.any()


def _scaled(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    floats = values.to(torch.float32)
    floats.view(len(values), scales.shape[1], -1).mul_(scales.unsqueeze(-1))
    return floats
