"""What the user is told of an output layer that is tied to the embeddings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from etdeploy.export.worker.lowering.tied_weights import tied_notes

INT4, INT8 = "torch.int4", "torch.int8"


def weight(dtype: str | None) -> Any:
    """A million values, as torchao quantises them."""
    quantised = {} if dtype is None else {"target_dtype": dtype}
    return SimpleNamespace(numel=lambda: 10**6, **quantised)


def model(table: str | None, layer: str | None, *, tied: bool = True) -> Any:
    config = SimpleNamespace(tie_word_embeddings=tied)
    return SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda **_: config),
        get_input_embeddings=lambda: SimpleNamespace(weight=weight(table)),
        get_output_embeddings=lambda: SimpleNamespace(weight=weight(layer)),
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
    assert f"the program has both {sizes}, since they are quantised or laid out" in note


def test_what_is_stored_once() -> None:
    assert list(tied_notes(model(INT8, INT8), 28_508_160)) == [
        "Weights that are equal in a delegate and outside of it are stored once: the program is "
        "28.5 MB smaller."
    ]
    assert list(tied_notes(None, 28_508_160)) != []


def test_nothing_is_said_of_what_is_not_tied() -> None:
    assert list(tied_notes(model(INT8, INT4, tied=False), 0)) == []
    assert list(tied_notes(None, 0)) == []
