"""How a program that generates text is called: the contract of exporter and runner.

Every method takes token ids, int64 of shape (1, S), and the position of the first of them in the
sequence, int64 of shape (1,), and gives the logits of the last one, float32 of shape
(1, vocabulary). Keys and values of all tokens before that position are in buffers that all methods
share. A position may be set back: what is in the buffers from there on does not count. To 0 that is
always possible, else by `Generation.rewind` at most, from the furthest end of a call since position
0: layers with a sliding window keep no more.

The attention of a method looks at as many positions as its capacity, whatever the position is; with
etdeploy's kernel, at those up to the position.
"""

from __future__ import annotations

from typing import Literal

from etdeploy.backends.registry import backend_named
from etdeploy.core.values import Value
from etdeploy.program.expected import Evaluation, ExpectedText
from etdeploy.recipe.model import ExportGeneration, Recipe


class GenerationMethod(Value):
    """A method, as the runner chooses it.

    Attributes:
        name: Of the program's method.
        role: `prefill` takes several tokens at once, `decode` one.
        max_tokens: The most that a call takes; 1 for `decode`.
        dynamic: Whether it takes fewer, too, from two on: one token is for `decode`.
        capacity: It serves calls for which position + S is at most this. Of several that serve a
            call, the one with the least capacity is the fastest.
    """

    name: str
    role: Literal["prefill", "decode"]
    max_tokens: int
    dynamic: bool
    capacity: int


class Generation(Value):
    """What the host and the runner know of a program that generates text.

    Attributes:
        methods: All of the program's methods that generate.
        vocabulary: Number of logits.
        context: Positions of the cache: a prompt with all new tokens but the last, which is not fed
            back, has to fit.
        stop_ids: Tokens that end a text.
        bos_id: What a text begins with; null where the tokenizer adds none.
        tokenizer: Folder with the model's own tokenizer, relative to the program folder; null where
            the model has none.
        model: Id or folder that the recipe names.
        revision: Commit of the model's repository; null for a folder.
        path: How it was exported: `fast`, or `plain` where the model does not fit the fast path.
        path_reason: Why.
        attention: `kernel` where it is an operator of etdeploy's own, else `stock`.
        expected: Texts that the program has to give; empty where the model gives none eagerly.
        evaluation: How well the model predicts the recipe's text; null where it names none.
        rewind: How far a position may be set back, unless to 0; null where there is no limit. At
            least `max_tokens` of any method.
    """

    methods: tuple[GenerationMethod, ...]
    vocabulary: int
    context: int
    stop_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    tokenizer: str | None = None
    model: str
    revision: str | None = None
    path: Literal["fast", "plain"]
    path_reason: str
    attention: Literal["kernel", "stock"] = "stock"
    expected: tuple[ExpectedText, ...] = ()
    evaluation: Evaluation | None = None
    rewind: int | None = None

    def method_for(self, role: Literal["prefill", "decode"], end: int) -> GenerationMethod | None:
        """The method that serves a call which ends before position `end`; None where none does."""
        serving = (m for m in self.methods if m.role == role and m.capacity >= end)
        return min(serving, key=lambda m: m.capacity, default=None)


Attention = Literal["kernel", "stock"]
# Below, the kernel saves less than it costs to leave the delegate.
_LEAST_CONTEXT = 512


def attention_of(recipe: Recipe) -> tuple[Attention, str] | None:
    """The attention that a recipe asks for, and why, as a clause; None for other models."""
    if recipe.model.hf is None:
        return None
    return attention_for(recipe.export.generation or ExportGeneration(), recipe.export.backend)


def attention_for(asked: ExportGeneration, backend: str) -> tuple[Attention, str]:
    """The same for a section `export.generation`; a model may not fit it.

    Args:
        asked: The section.
        backend: `export.backend`.
    """
    if asked.path == "plain":
        return "stock", "export.generation.path is plain, which has the attention of transformers"
    if asked.attention != "auto":
        return asked.attention, f"export.generation.attention is {asked.attention}"
    if not backend_named(backend).own_kernels:
        return "stock", f"etdeploy's kernel runs on the CPU, and {backend} computes elsewhere"
    if asked.context < _LEAST_CONTEXT:
        return "stock", f"the cache has fewer than {_LEAST_CONTEXT} positions"
    return "kernel", "it reads keys and values where they are, up to the position that is reached"
