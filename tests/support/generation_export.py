"""Exports small programs that generate text, with the texts of their eager model.

Started as a process of its own:

    python -m tests.support.generation_export FOLDER

The folder gets `<name>.pte` for each program, and `texts.json`: what the eager model makes of each
prompt, as lists of token ids that are one longer than the context; `expected.json` has the logits
of one of them, and `logits.bin` those after the text of `tokens.bin`. The programs `partly` and
`never` agree so often with `verifying`. The program `forgetful` is
that of `static` with a method `decode` whose cache is wrong, which shows from the second token on
that it takes. In `cached`, keys and values are inputs and outputs; so they are in `delegated`,
which is that of qnn_shared_memory. The folder `session` has the program of session_export.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass

from etdeploy.export.worker.language.greedy import greedy_text
from etdeploy.export.worker.language.prompts import Prompt
from etdeploy.export.worker.language.static_cache import StaticCalls
from etdeploy.program.generation import ExpectedText
from tests.support.generation_values import (
    CACHE,
    CAPACITY,
    CHUNK,
    METHODS,
    PROMPTS,
    UNDEFINED,
    VOCABULARY,
)
from tests.support.qnn_shared_memory import delegated_program
from tests.support.session_export import write_session_program

_WIDTH = 16


class TinyModel(torch.nn.Module):  # type: ignore[misc]
    """One layer of attention, whose keys and values of all tokens before are in its buffers.

    Every module is made with the same weights; the one token `UNDEFINED` gives NaN.

    Args:
        seen: Positions that the attention looks at.
    """

    def __init__(self, seen: int) -> None:
        super().__init__()
        self.seen = seen
        chance = torch.Generator().manual_seed(5)

        def made(*shape: int) -> torch.nn.Parameter:
            # A cache that is written in place must not get gradients.
            return torch.nn.Parameter(torch.randn(*shape, generator=chance), requires_grad=False)

        self.tokens, self.places = made(VOCABULARY, _WIDTH), made(CAPACITY, _WIDTH)
        self.query, self.key = made(_WIDTH, _WIDTH), made(_WIDTH, _WIDTH)
        self.value, self.head = made(_WIDTH, _WIDTH), made(_WIDTH, VOCABULARY)
        self.tokens.data[UNDEFINED] = float("nan")
        self.register_buffer("keys", torch.zeros(CAPACITY, _WIDTH))
        self.register_buffer("values", torch.zeros(CAPACITY, _WIDTH))

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return self.each(tokens, position)[-1:]

    def each(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The logits of each token."""
        at = position + torch.arange(tokens.shape[1])
        x = self.tokens[tokens[0]] + self.places[at]
        self.keys.index_copy_(0, at, x @ self.key)
        self.values.index_copy_(0, at, x @ self.value)
        keys, values = self.keys[: self.seen], self.values[: self.seen]
        later = torch.arange(self.seen).unsqueeze(0) > at.unsqueeze(1)
        scores = (x @ self.query) @ keys.T / _WIDTH + later * -1e9
        return (scores.softmax(-1) @ values + x) @ self.head


class Counting(TinyModel):
    """One that mostly counts from 0 to 7, again and again; from some tokens on in steps of two."""

    def __init__(self, seen: int, wrong: int = 8) -> None:
        super().__init__(seen)
        counted = torch.nn.functional.one_hot(torch.arange(VOCABULARY) % 8, _WIDTH).float()
        self.tokens.data[:UNDEFINED] = counted[:UNDEFINED]
        self.places.data *= 0.3
        self.head.data *= 0.1
        for token in range(8):
            self.head.data[token, (token + 1 + (token >= wrong)) % 8] += 5


class Verifying(Counting):
    """One that gives the logits of the tokens that are named, or of each."""

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        logits = self.each(tokens, position).unsqueeze(0)
        return logits if rows is None else logits[:, rows]


class Forgetful(TinyModel):
    """One that keeps no values of its own tokens."""

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        logits = super().forward(tokens, position)
        self.values.index_copy_(0, position, torch.zeros(1, _WIDTH))
        return logits


class Cached(TinyModel):
    """One with a second attention that looks back over a window; values are 16-bit floats."""

    def forward(  # type: ignore[override]
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        window: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        x = self.tokens[tokens[0]] + self.places[positions[0]]
        new = (x @ self.key).T[None, None], (x @ self.value)[None, None].half()
        scores = (x @ self.query) @ torch.cat([keys, new[0]], dim=3)[0, 0] / _WIDTH
        held = torch.cat([values, new[1]], dim=2)[0, 0].float()
        for each in (mask, window):
            x = x + (scores + each[0, 0]).softmax(-1) @ held
        return (x @ self.head)[-1:], *new


class TokensOnly(TinyModel):
    """One that is not told the position."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(tokens, torch.zeros(1, dtype=torch.long))


class _Eager:
    """The model in the middle of a text, see `Forward`."""

    def __init__(self) -> None:
        self._model, self._position = TinyModel(CAPACITY), 0

    def last(self, ids: Sequence[int]) -> torch.Tensor:
        return self.each(ids)[-1]

    def each(self, ids: Sequence[int], start: int = 0) -> torch.Tensor:
        position, self._position = self._position, self._position + len(ids)
        calls = [(torch.tensor([[i]]), torch.tensor([position + n])) for n, i in enumerate(ids)]
        return torch.cat([self._model(*call) for call in calls])[start:]


def main(folder: Path) -> None:
    length = torch.export.Dim("length", min=2, max=CHUNK)
    several, one = torch.ones(1, 3, dtype=torch.long), torch.ones(1, 1, dtype=torch.long)
    whole = torch.ones(1, CHUNK, dtype=torch.long)
    position = torch.tensor([0])
    export = torch.export.export
    dynamic = {
        "prefill": export(
            TinyModel(CAPACITY), (several, position), dynamic_shapes=({1: length}, None)
        ),
        "decode": export(TinyModel(CAPACITY), (one, position)),
        "of_one_input": export(TokensOnly(CAPACITY), (one,)),
    }
    static = {
        "prefill": export(TinyModel(CAPACITY), (whole, position)),
        "decode_half": export(TinyModel(CAPACITY // 2), (one, position)),
        "decode": export(TinyModel(CAPACITY), (one, position)),
    }
    folder.mkdir(parents=True)
    (folder / "texts.json").write_text(json.dumps([_continued(prompt) for prompt in PROMPTS]))
    _write(folder / "dynamic.pte", dynamic)
    any_length = torch.export.Dim("length", min=1, max=CHUNK)
    forward = export(
        TinyModel(CAPACITY), (several, position), dynamic_shapes=({1: any_length}, None)
    )
    _write(folder / "forward.pte", {"forward": forward}, share=False)
    _write(folder / "static.pte", static)
    rows = torch.export.Dim("rows", min=1, max=CHUNK)
    verifying = export(
        Verifying(CAPACITY),
        (several, position, torch.tensor([1, 2])),
        dynamic_shapes=({1: length}, None, {0: rows}),
    )
    counting = export(Counting(CAPACITY), (one, position))
    _write(folder / "verifying.pte", {"prefill": verifying, "decode": counting})
    for name, wrong in (("partly", 5), ("never", 0)):
        model = Counting(CAPACITY, wrong)
        of_prompts = export(model, (several, position), dynamic_shapes=({1: length}, None))
        methods = {"prefill": of_prompts, "decode": export(model, (one, position))}
        _write(folder / f"{name}.pte", methods)
    each = export(Verifying(CAPACITY), (several, position), dynamic_shapes=({1: any_length}, None))
    _write(folder / "each.pte", {"forward": each}, share=False)
    _write(
        folder / "forgetful.pte", static | {"decode": export(Forgetful(CAPACITY), (one, position))}
    )
    calls = StaticCalls(CACHE)
    calls.caches[1] = calls.caches[1].half()
    of_cache = {
        method.name: export(
            Cached(CAPACITY), calls.inputs([0] * method.max_tokens, 0, method.max_tokens)
        )
        for method in METHODS["cached"]
    }
    _write(folder / "cached.pte", of_cache)
    (folder / "cached.json").write_text(json.dumps([_cached(prompt) for prompt in PROMPTS]))
    write_session_program(folder / "session", _write)
    _write_golden(folder)
    text = greedy_text(_Eager, Prompt(PROMPTS[1], 16))
    expected = ExpectedText(prompt_ids=PROMPTS[1], original=text)
    (folder / "expected.json").write_text(expected.model_dump_json())
    (folder / "delegated.pte").write_bytes(delegated_program())
    static.pop("prefill")
    _write(folder / "unshared.pte", static, share=False)


def _write(
    path: Path,
    methods: dict[str, torch.export.ExportedProgram],
    share: bool = True,
    constants: dict[str, int] | None = None,
) -> None:
    planning = MemoryPlanningPass(share_mutable_buffers=share)
    program = to_edge_transform_and_lower(methods, constant_methods=constants).to_executorch(
        ExecutorchBackendConfig(memory_planning_pass=planning, run_reinplace_pass=True)
    )
    path.write_bytes(program.buffer)


def _write_golden(folder: Path) -> None:
    """The tokens of a prompt, and the logits of its last."""
    model = TinyModel(CAPACITY)
    for at, token in enumerate(PROMPTS[1]):
        logits = model(torch.tensor([[token]]), torch.tensor([at]))
    torch.tensor(PROMPTS[1]).numpy().tofile(folder / "tokens.bin")
    logits.numpy().tofile(folder / "logits.bin")


def _continued(prompt: Sequence[int]) -> list[int]:
    """The greedy text that fills the context."""
    model = TinyModel(CAPACITY)
    return _greedy(prompt, lambda token, at: model(torch.tensor([[token]]), torch.tensor([at]))[0])


def _cached(prompt: Sequence[int]) -> list[int]:
    """That of the model whose keys and values are inputs, by single tokens."""
    model, calls = Cached(CAPACITY), StaticCalls(CACHE)
    calls.caches[1] = calls.caches[1].half()

    def logits(token: int, at: int) -> torch.Tensor:
        found, *new = model(*calls.inputs([token], at, 1))
        calls.store(at, 1, new)
        return found[0]

    return _greedy(prompt, logits)


def _greedy(prompt: Sequence[int], logits_of: Callable[[int, int], torch.Tensor]) -> list[int]:
    ids = list(prompt)
    for at in range(CAPACITY):
        logits = logits_of(ids[at], at)
        if at >= len(prompt) - 1:
            best, next_best = logits.topk(2).values.tolist()
            assert best - next_best > 0.01, "another processor may round to another token"
            ids.append(int(logits.argmax()))
    return ids


if __name__ == "__main__":
    main(Path(sys.argv[1]))
