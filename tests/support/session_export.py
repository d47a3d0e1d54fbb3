"""A small language model of two layers as a finished program, with a tokenizer beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from tests.support.tokenizers import byte_level, save

# The tokens of byte_level; its last one ends texts.
VOCABULARY, CONTEXT, CHUNK, STOP = 261, 256, 16, 260
_WIDTH, _HEADS, _LAYERS = 16, 2, 2
TEXT = "The sky is"
"""A text whose keys are in `keys.json`: of the first layer, by head, position and number."""

Write = Callable[..., None]


class LayeredModel(torch.nn.Module):  # type: ignore[misc]
    """Two layers of attention with two heads, whose keys and values are (heads, places, d)."""

    def __init__(self) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(11)

        def made(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=chance), requires_grad=False)

        self.tokens, self.places = made(VOCABULARY, _WIDTH), made(CONTEXT, _WIDTH)
        self.head = made(_WIDTH, VOCABULARY)
        # Random texts would end in the middle.
        self.head.data[:, STOP] = 0
        self.weights = torch.nn.ParameterList([made(3, _WIDTH, _WIDTH) for _ in range(_LAYERS)])
        for layer in range(_LAYERS):
            for name in ("key", "value"):
                empty = torch.zeros(_HEADS, CONTEXT, _WIDTH // _HEADS)
                self.register_buffer(f"{name}_{layer}", empty)

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        at = position + torch.arange(tokens.shape[1])
        x = self.tokens[tokens[0]] + self.places[at]
        later = torch.arange(CONTEXT).unsqueeze(0) > at.unsqueeze(1)
        for layer, weights in enumerate(self.weights):
            query, key, value = (self._heads(x @ weight / 4) for weight in weights)
            keys, values = getattr(self, f"key_{layer}"), getattr(self, f"value_{layer}")
            keys.index_copy_(1, at, key)
            values.index_copy_(1, at, value)
            scores = query @ keys.transpose(1, 2) / 4 + later * -1e9
            seen = (scores.softmax(-1) @ values).transpose(0, 1)
            x = x + seen.reshape(-1, _WIDTH)
        return (x @ self.head)[-1:]

    @staticmethod
    def _heads(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, _HEADS, _WIDTH // _HEADS).transpose(0, 1)


def write_session_program(folder: Path, write: Write) -> None:
    """Writes the program with its tokenizer, and `keys.json`."""
    save(byte_level(), folder)
    position = torch.tensor([0])
    length = torch.export.Dim("length", min=2, max=CHUNK)
    methods = {
        "prefill": torch.export.export(
            LayeredModel(),
            (torch.ones(1, 3, dtype=torch.long), position),
            dynamic_shapes=({1: length}, None),
        ),
        "decode": torch.export.export(
            LayeredModel(), (torch.ones(1, 1, dtype=torch.long), position)
        ),
    }
    facts = {"get_max_context_len": CONTEXT, "get_vocab_size": VOCABULARY, "get_eos_ids": STOP}
    write(folder / "program.pte", methods, constants=facts)
    model = LayeredModel()
    ids = byte_level().encode(TEXT).ids
    model(torch.tensor([ids]), position)
    (folder / "keys.json").write_text(json.dumps(model.key_0[:, : len(ids)].tolist()))
