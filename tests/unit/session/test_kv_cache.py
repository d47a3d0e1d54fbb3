"""Keys and values of layers, out of what a runner saves of its memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.core.errors import RunError, UsageError
from etdeploy.program.generation import GenerationMethod, StaticCache
from etdeploy.program.inspect import PlannedBuffer
from etdeploy.program.model import EMPTY_PROGRAM, Method, TensorInfo
from etdeploy.session import kv_cache
from etdeploy.session.kv_cache import read_image, read_layers
from tests.support.talk_values import GENERATION


def _image(path: Path, *arrays: np.ndarray[Any, Any]) -> Path:
    """Each array is a block, in two parts."""
    blocks = [array.tobytes() for array in arrays]
    data = b"etcache1" + struct.pack(f"<{len(blocks) + 1}q", len(blocks), *map(len, blocks))
    for block in blocks:
        half = len(block) // 2
        data += struct.pack("<qq", 0, half) + block[:half]
        data += (
            struct.pack("<qq", half, len(block) - half) + block[half:] + struct.pack("<qq", 0, 0)
        )
    path.write_bytes(data)
    return path


def _methods(*capacities: int) -> tuple[GenerationMethod, ...]:
    return tuple(
        GenerationMethod(name=f"decode_{n}", role="decode", max_tokens=1, dynamic=False, capacity=n)
        for n in capacities
    )


def _layers(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arrays: list[np.ndarray[Any, Any]],
    capacities: tuple[int, ...],
    positions: int,
    end: int | None = None,
) -> list[kv_cache.KeyValues]:
    """Of arrays one after the other in one memory."""
    at, buffers = 0, []
    memory = 2 if len(capacities) > 1 else 1
    for array in arrays:
        buffers.append(PlannedBuffer(str(array.dtype), array.shape, memory, at))
        at += array.nbytes
    monkeypatch.setattr(kv_cache, "mutable_buffers", lambda *_: tuple(buffers))
    block = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
    generation = GENERATION.model_copy(
        update={"methods": _methods(*capacities), "context": capacities[-1]}
    )
    image = _image(tmp_path / "image", block)
    return read_layers(image, tmp_path, EMPTY_PROGRAM, generation, positions, end or positions)


def _numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_segments_are_joined_without_their_spare_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Of 16 positions, the first 4 are in one buffer; each has a place more.
    arrays = [
        _numbers(2, 5, 3),
        _numbers(2, 13, 3) + 100,
        _numbers(2, 5, 3) + 500,
        _numbers(2, 13, 3),
    ]
    [layer] = _layers(monkeypatch, tmp_path, arrays, (4, 16), 6)
    assert layer.keys.shape == layer.values.shape == (2, 6, 3)
    np.testing.assert_array_equal(layer.keys[:, :4], arrays[0][:, :4])
    np.testing.assert_array_equal(layer.keys[:, 4:], arrays[1][:, :2])
    np.testing.assert_array_equal(layer.values[:, :4], arrays[2][:, :4])


def test_a_ring_begins_where_it_has_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole, ring = _numbers(1, 16, 2), _numbers(1, 8, 2)
    first, second = _layers(
        monkeypatch, tmp_path, [whole, whole, ring, ring + 50], (16,), 11, end=12
    )
    np.testing.assert_array_equal(first.keys, whole[:, :11])
    assert (first.first_position, second.first_position) == (0, 4)
    np.testing.assert_array_equal(second.keys[0], ring[0, [4, 5, 6, 7, 0, 1, 2]])
    np.testing.assert_array_equal(second.values[0], second.keys[0] + 50)


def test_rows_of_fewer_bits_are_floats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scales = np.array([[0.5], [2.0]], np.float32)
    numbers = np.array([[1, -2, 127], [3, 4, 5]], np.int8)
    rows = np.concatenate([numbers, scales.view(np.int8)], axis=1)[None]
    [layer] = _layers(monkeypatch, tmp_path, [rows, rows], (2,), 2)
    np.testing.assert_array_equal(layer.keys[0], numbers * scales)
    halves = _numbers(1, 2, 3).astype(np.float16)
    [layer] = _layers(monkeypatch, tmp_path, [halves, halves], (2,), 2)
    assert layer.keys.dtype == np.float32
    # As llama::custom_sdpa reads them: (1, places, heads, d).
    by_place = _numbers(1, 4, 2, 3)
    [layer] = _layers(monkeypatch, tmp_path, [by_place, by_place], (4,), 3)
    np.testing.assert_array_equal(layer.values, by_place[0, :3].transpose(1, 0, 2))


def test_states_are_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for arrays in ([_numbers(6, 3)], [_numbers(1, 4, 3), _numbers(1, 4, 2)]):
        with pytest.raises(UsageError, match="cannot be split into keys and values"):
            _layers(monkeypatch, tmp_path, arrays, (4,), 3)


def test_inputs_are_a_cache_unless_they_are_quantized(tmp_path: Path) -> None:
    cache = StaticCache(places=5, windows=(0,), masked=-1e6, layers=((2, 3),))
    generation = GENERATION.model_copy(
        update={"methods": _methods(6), "context": 6, "static_cache": cache}
    )
    keys, values = _numbers(2, 3, 5), _numbers(2, 5, 3)

    def program(dtype: str) -> Any:
        given = [TensorInfo(dtype=dtype, shape=(1,)) for _ in range(5)]
        method = Method(
            name="decode_6", inputs=tuple(given), outputs=(), operators=(), delegates=(),
            instructions=1, planned_memory_bytes=0,
        )  # fmt: skip
        return EMPTY_PROGRAM.model_copy(update={"methods": (method,)})

    image = _image(tmp_path / "image", keys, values)
    [layer] = read_layers(image, tmp_path, program("float32"), generation, 4, 4)
    np.testing.assert_array_equal(layer.keys, keys.transpose(0, 2, 1)[:, :4])
    np.testing.assert_array_equal(layer.values, values[:, :4])
    with pytest.raises(UsageError, match="keys of uint8, whose scale"):
        read_layers(image, tmp_path, program("uint8"), generation, 4, 4)


def test_a_damaged_image_is_refused(tmp_path: Path) -> None:
    path = _image(tmp_path / "image", _numbers(4))
    assert read_image(path) == [_numbers(4).tobytes()]
    whole = path.read_bytes()
    for damaged in (b"x" + whole[1:], whole[:-20], whole[:12]):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"saved no cache|is damaged"):
            read_image(path)
