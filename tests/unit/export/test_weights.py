"""Weights that a program would have twice: stored once, or noted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etdeploy.core.flatbuffer import FlatBuffer
from etdeploy.export.worker.lowering.weights import shared_weight_bytes, store_once, tied_notes
from etdeploy.program.inspect import inspect_file
from etdeploy.program.pte import map_pte
from tests.support.program_files import Plan, pte

TABLE, OTHER = bytes(range(64)), bytes(range(64, 128))
SCALES, PAYLOAD, LAST = b"s" * 16, b"p" * 48, b"l" * 32


def write(path: Path, *segments: bytes, named: tuple[int, ...], constants: tuple[int, ...]) -> Path:
    path.write_bytes(
        pte(Plan(), segments=segments, constant_segment=0, named=named, constants=constants)
    )
    return path


def segments(path: Path) -> list[bytes]:
    """What each segment holds, as the runtime finds it: by offset and size."""
    file = map_pte(path)
    root = FlatBuffer(file.flatbuffer).root()
    return [bytes(file.segment(t.uint64(0), t.uint64(1))) for t in root.tables(4)]


def test_equal_weights_are_stored_once(tmp_path: Path) -> None:
    parts = (SCALES + TABLE + OTHER, PAYLOAD, TABLE, LAST, OTHER)
    path = write(tmp_path / "m.pte", *parts, named=(2, 3, 4), constants=(0, 0, 16, 80))
    before = path.stat().st_size
    assert store_once(path, 64) == 128
    assert path.stat().st_size == before - 128
    assert segments(path) == list(parts)
    assert map_pte(path).size_bytes == before - 128
    assert inspect_file(path).constant_bytes == len(SCALES + TABLE + OTHER + LAST)
    assert [each.name for each in tmp_path.iterdir()] == ["m.pte"]


def test_what_is_stored_once_already_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pte", TABLE, PAYLOAD, TABLE, named=(2,), constants=(0, 0))
    assert store_once(path, 64) == 64
    written = path.read_bytes()
    assert store_once(path, 64) == 0
    assert path.read_bytes() == written


@pytest.mark.parametrize(
    ("parts", "constants", "least_bytes"),
    [
        ((TABLE, PAYLOAD, OTHER), (0, 0), 64),
        ((TABLE, PAYLOAD, TABLE), (0, 0), 65),
        ((TABLE + OTHER, PAYLOAD, TABLE), (0, 0), 64),  # of one constant, another size
        ((OTHER + TABLE, PAYLOAD, TABLE), (0, 0, 96), 64),  # equal bytes, but no constant of them
    ],
)
def test_different_weights_stay_apart(
    tmp_path: Path, parts: tuple[bytes, ...], constants: tuple[int, ...], least_bytes: int
) -> None:
    path = write(tmp_path / "m.pte", *parts, named=(2,), constants=constants)
    written = path.read_bytes()
    assert store_once(path, least_bytes) == 0
    assert path.read_bytes() == written


def test_padding_after_a_constant_does_not_count(tmp_path: Path) -> None:
    short = TABLE[:60]
    path = write(
        tmp_path / "m.pte", short + b"\0" * 4 + OTHER, short, LAST, named=(1,), constants=(0, 0, 64)
    )
    assert store_once(path, 32) == 60
    assert segments(path) == [short + b"\0" * 4 + OTHER, short, LAST]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 an archive", pte(Plan())])
def test_another_file_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.pte"
    path.write_bytes(content)
    assert store_once(path, 1) == 0
    assert path.read_bytes() == content


INT4, INT8 = "torch.int4", "torch.int8"


def weight(dtype: str | None) -> Any:
    """A million values, as torchao quantizes them."""
    quantized = {} if dtype is None else {"target_dtype": dtype}
    return SimpleNamespace(numel=lambda: 10**6, **quantized)


def model(table: str | None, layer: str | None, *, tied: bool = True) -> Any:
    config = SimpleNamespace(tie_word_embeddings=tied)
    embeddings, output = (SimpleNamespace(weight=weight(each)) for each in (table, layer))
    return SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda **_: config),
        get_input_embeddings=lambda: embeddings,
        get_output_embeddings=lambda: output,
    )


@pytest.mark.parametrize(
    ("table", "layer", "sizes"),
    [
        (INT8, INT4, "(1.0 MB in 8 bits and 500.0 kB in 4 bits)"),
        (None, INT8, "(4.0 MB in 32 bits and 1.0 MB in 8 bits)"),
    ],
)
def test_two_tensors_of_one(table: Any, layer: Any, sizes: str) -> None:
    [note] = tied_notes(model(table, layer), 0)
    assert sizes in note


def test_what_is_stored_once() -> None:
    for each in (model(INT8, INT8), None):
        [note] = tied_notes(each, 28_508_160)
        assert "28.5 MB smaller" in note


def test_nothing_is_said_of_equal_values_outside_of_a_delegate() -> None:
    made = model(INT8, INT8)
    for each in (made.get_input_embeddings(), made.get_output_embeddings()):
        each.weight.qdata = torch.tensor([[1, -2]], dtype=torch.int8)
    assert list(tied_notes(made, 0)) == []
    made.get_output_embeddings().weight.qdata = torch.tensor([[1, 2]], dtype=torch.int8)
    [note] = tied_notes(made, 0)
    assert "1.0 MB in 8 bits and 1.0 MB in 8 bits" in note


def test_nothing_is_said_of_what_is_not_tied() -> None:
    assert list(tied_notes(model(INT8, INT4, tied=False), 0)) == []
    assert list(tied_notes(None, 0)) == []


def test_bytes_of_weights_that_methods_share() -> None:
    table, layer, bias = (SimpleNamespace(nbytes=size) for size in (100, 20, 3))

    def module(*weights: Any) -> Any:
        return SimpleNamespace(parameters=lambda: weights)

    assert shared_weight_bytes([module(table, layer), module(layer, bias)]) == 20
    assert shared_weight_bytes([module(table, table), module(bias)]) == 0
    assert shared_weight_bytes([module(table)] * 3) == 100
