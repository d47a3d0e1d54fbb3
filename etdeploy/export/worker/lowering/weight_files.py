"""Weights and data of a program in files, if they do not fit in memory.

The kernel drops pages of a mapped file whenever memory is short and reads them again, so that a
tensor in a file takes no memory that the export needs. The checkpoint's own weights are mapped as
well (`rowwise.mapped_state`).
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from etdeploy.export.worker.backends.base import patched
from etdeploy.export.worker.lowering.scales import on_threads

# Smaller ones are not worth a file.
_LEAST_BYTES = 1 << 20
# Elements that are computed, or converted, at a time.
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class WeightFiles:
    """A folder for files that are gone when the export ends, on the disk of the program."""

    folder: Path

    def moved(self, tensor: Any) -> Any:
        """A tensor with the same values, also one of torchao's, in files if it is large."""
        if hasattr(tensor, "__tensor_flatten__"):
            names, context = tensor.__tensor_flatten__()
            inner = {name: self.moved(getattr(tensor, name)) for name in names}
            return type(tensor).__tensor_unflatten__(inner, context, None, None)
        if tensor.nbytes < _LEAST_BYTES:
            return tensor
        return self.joined((tensor,))

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

    def data(self, content: bytes, digest: bytes) -> Any:
        """Data of a program in a file, which ExecuTorch reads as it writes the program."""
        from executorch.exir._serialize._cord import FileBackedData

        self.folder.mkdir(exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            _flush(stream)
        return FileBackedData(name, cleanup=True, sha256=digest)


@contextmanager
def data_held_once(files: WeightFiles | None) -> Iterator[None]:
    """While the block runs, large data that delegates of several methods name is held once.

    It is held in memory, or in `files`. Methods have the same name for the same weights.
    """
    import executorch.exir._serialize._named_data_store as named_data

    store = named_data.NamedDataStore
    add = store.add_named_data
    known: dict[str | bytes, Any] = {}

    def added(own: Any, key: str, data: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(data, bytes) and len(data) >= _LEAST_BYTES:
            if files:
                digest = hashlib.sha256(data).digest()
                if digest not in known:
                    known[digest] = files.data(data, digest)
                data = known[digest]
            elif known.setdefault(key, data) == data:
                data = known[key]
        add(own, key, data, *args, **kwargs)

    with patched(store, add_named_data=added):
        yield


@contextmanager
def temporary_files(folder: Path) -> Iterator[WeightFiles]:
    """Files of an export; the folder is made with the first of them, and removed at the end."""
    try:
        yield WeightFiles(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def quantized_in_rows(config: Any, layer: torch.nn.Module, files: WeightFiles | None) -> Any:
    """What torchao makes of a layer's weight, some rows at a time: each has its own scales.

    The whole of an output layer would be in memory several times, for values in between.
    """
    from torchao.quantization.quant_api import quantize_

    weight = layer.weight.detach()
    step = max(1, _AT_ONCE * len(weight) // max(1, weight.numel()))

    def quantized(start: int) -> Any:
        part = copy.copy(layer)
        part._parameters = {**layer._parameters}
        part.weight = torch.nn.Parameter(weight[start : start + step], requires_grad=False)
        quantize_(part, config, filter_fn=lambda *_: True)
        made = part.weight.detach()
        return files.moved(made) if files else made

    parts = on_threads(quantized, range(0, len(weight), step))
    names, context = parts[0].__tensor_flatten__()
    join = files.joined if files else torch.cat
    inner = {name: join([getattr(part, name) for part in parts]) for name in names}
    return type(parts[0]).__tensor_unflatten__(inner, context, None, None)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


_M_MMAP_THRESHOLD = -3  # malloc.h
# Where memory is not scarce: the export of a 1B model takes 6 s longer with blocks of 1 MiB.
_LARGE_BLOCK_BYTES = 4 << 20


def return_large_blocks(*, scarce: bool) -> None:
    """Has glibc return large blocks to the system as they are freed.

    Otherwise it keeps those of up to 32 MB, for each thread, and fragments of them add up.
    """
    least_bytes = _LEAST_BYTES if scarce else _LARGE_BLOCK_BYTES
    with suppress(AttributeError, OSError):  # other C libraries have no mallopt, or no such setting
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, least_bytes)


def trim_heap() -> None:
    """Has glibc return the freed memory that it keeps: 300 MB after a 1B model is quantized."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _flush(stream: Any) -> None:
    """Lets the kernel drop the file's pages, which it cannot before they are on the disk."""
    stream.flush()
    os.fsync(stream.fileno())
    with suppress(AttributeError, OSError):  # macOS has no such call
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
