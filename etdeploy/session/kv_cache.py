"""Keys and values of a layer as arrays, from what a runner saved of its memory.

templates/runner/generation/snapshot.h has the format of the image: blocks of memory. Which part of
them is a layer's follows from the program, whose buffers are a layer's keys, its values, and so on
(export/worker/language/cache.py makes them).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etdeploy.core.errors import RunError, UsageError
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.program.generation import Generation, StaticCache
from etdeploy.program.inspect import PlannedBuffer, mutable_buffers
from etdeploy.program.model import Program, TensorInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_MAGIC = b"etcache1"
# Of the runner: the bytes behind a row of 8-bit numbers, which are its scale.
_SCALE_BYTES = 4


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of one layer, float32 of shape (kv_heads, positions, head_dim).

    Attributes:
        first_position: Position of the first row: above 0 in a layer with a sliding window, which
            has forgotten what was before.
    """

    keys: Floats
    values: Floats
    first_position: int = 0


def read_layers(
    image: Path, folder: Path, program: Program, generation: Generation, positions: int, end: int
) -> list[KeyValues]:
    """Return all layers of an image.

    Args:
        image: What the runner wrote.
        folder: The program folder.
        program: What inspection found in it.
        generation: How the program is called.
        positions: Tokens of the text in the image.
        end: The furthest position that was written.

    Raises:
        UsageError: The program keeps something other than keys and values.
    """
    blocks = read_image(image)
    if generation.static_cache:
        return list(_static_layers(blocks, program, generation, generation.static_cache, positions))
    buffers = mutable_buffers(folder / PROGRAM_FILE, generation.methods[0].name)
    shared = len({method.name for method in generation.methods}) > 1
    # A single method keeps everything in the image; several share all but the first memory.
    first_memory = 2 if shared else 1
    arrays = [_array(blocks, buffer, first_memory) for buffer in buffers]
    return [
        _join(keys, values, generation, positions, end)
        for keys, values in _grouped(buffers, arrays, generation)
    ]


def read_image(path: Path) -> list[bytes]:
    """Return the blocks of memory of an image.

    Raises:
        RunError: It is damaged.
    """
    data = memoryview(path.read_bytes())
    if bytes(data[:8]) != _MAGIC:
        raise RunError("the runner saved no cache", place=str(path))
    try:
        (count,) = struct.unpack_from("<q", data, 8)
        sizes = struct.unpack_from(f"<{count}q", data, 16)
        at, blocks = 16 + 8 * count, []
        for size in sizes:
            block = bytearray(size)
            while True:
                offset, length = struct.unpack_from("<qq", data, at)
                at += 16
                if length == 0:
                    break
                if not 0 <= offset <= size - length or at + length > len(data):
                    raise RunError("the saved cache is damaged", place=str(path))
                block[offset : offset + length] = data[at : at + length]
                at += length
            blocks.append(bytes(block))
    except struct.error as error:
        raise RunError("the saved cache is damaged", place=str(path)) from error
    return blocks


def _array(blocks: Sequence[bytes], buffer: PlannedBuffer, first_memory: int) -> Any:
    import numpy as np

    index = buffer.memory - first_memory
    if not 0 <= index < len(blocks) or buffer.dtype not in ("float32", "float16", "int8"):
        raise _unknown(f"a buffer of {buffer.dtype} {list(buffer.shape)}")
    dtype = np.dtype(buffer.dtype)
    return np.frombuffer(blocks[index], dtype, math.prod(buffer.shape), buffer.offset).reshape(
        buffer.shape
    )


def _grouped(
    buffers: Sequence[PlannedBuffer], arrays: Sequence[Any], generation: Generation
) -> Iterator[tuple[list[Any], list[Any]]]:
    """The buffers of each layer: all segments of its keys, then of its values."""
    capacities = sorted({m.capacity for m in generation.methods if m.role == "decode"})
    bounds = capacities or [generation.context]
    segments = len(bounds)
    first_places = bounds[0] + (1 if segments > 1 else 0)
    at = 0
    while at < len(arrays):
        shape = buffers[at].shape
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[0] != 1):
            raise _unknown("states of recurrent layers or convolutions")
        # A sliding layer has one buffer, a ring.
        count = segments if _places(arrays[at]) == first_places else 1
        keys, values = arrays[at : at + count], arrays[at + count : at + 2 * count]
        if [a.shape for a in keys] != [a.shape for a in values]:
            raise _unknown("buffers that are not pairs of keys and values")
        yield list(keys), list(values)
        at += 2 * count


def _places(array: Any) -> int:
    """Of (heads, places, d), or of (1, places, heads, d)."""
    return int(array.shape[1])


def _join(
    keys: list[Any], values: list[Any], generation: Generation, positions: int, end: int
) -> KeyValues:
    import numpy as np

    spare = 1 if len(keys) > 1 else 0
    places = [_places(part) - spare for part in keys]
    if sum(places) >= generation.context:

        def whole(parts: list[Any]) -> Any:
            each = [_floats(p)[:, :n] for p, n in zip(parts, places, strict=True)]
            return np.ascontiguousarray(np.concatenate(each, axis=1)[:, :positions])

        return KeyValues(whole(keys), whole(values))
    # A ring: a position is at its remainder, unless a later one has replaced it.
    [ring] = places
    first = min(max(0, end - ring), positions)
    rows = np.arange(first, positions) % ring
    return KeyValues(_floats(keys[0])[:, rows], _floats(values[0])[:, rows], first)


def _floats(array: Any) -> Any:
    """Rows as float32, (heads, places, d)."""
    import numpy as np

    if array.ndim == 4:
        array = array[0].transpose(1, 0, 2)
    if array.dtype != np.int8:
        return array.astype(np.float32)
    scales = np.ascontiguousarray(array[..., -_SCALE_BYTES:]).view(np.float32)
    return array[..., :-_SCALE_BYTES].astype(np.float32) * scales


def _static_layers(
    blocks: Sequence[bytes],
    program: Program,
    generation: Generation,
    cache: StaticCache,
    positions: int,
) -> Iterator[KeyValues]:
    """Of keys (heads, d, places) and values (heads, places, d), one block each."""
    import numpy as np

    method = next(m for m in program.methods if m.name == generation.methods[0].name)
    first = 2 + len(cache.windows)
    for layer, (heads, size) in enumerate(cache.layers):
        given = method.inputs[first + 2 * layer]
        dtype = given.dtype if isinstance(given, TensorInfo) else "none"
        if dtype not in ("float32", "float16"):
            raise _unknown(f"keys of {dtype}, whose scale only the backend has")
        keys, values = (
            np.frombuffer(blocks[2 * layer + i], np.dtype(dtype)).reshape(shape)
            for i, shape in ((0, (heads, size, cache.places)), (1, (heads, cache.places, size)))
        )
        yield KeyValues(
            np.ascontiguousarray(keys.transpose(0, 2, 1)[:, :positions], np.float32),
            np.ascontiguousarray(values[:, :positions], np.float32),
        )


def _unknown(what: str) -> UsageError:
    return UsageError(
        f"the program's cache cannot be split into keys and values of layers: it has {what}",
        remedy="save() and restore() work with every program.",
    )
