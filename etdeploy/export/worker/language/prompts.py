"""Prompts whose texts a program is compared with: a short one, and some of random tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from etdeploy.export.worker.language.load import LoadedModel
from etdeploy.export.worker.language.texts import CALIBRATION_WINDOW
from etdeploy.export.worker.language.tokenizer import stop_ids
from etdeploy.program.generation import GenerationMethod, random_ids

# Something that most models know: what comes next is seldom a close choice.
_TEXT = "The capital of France is"
_NEW = 16
# Of the long prompt, whose every token costs: enough to decode with what the prompt has filled.
_LONG_NEW = 8
_BEYOND = 8
# Positions that an eager forward computes in some seconds, of a model with 10^9 parameters too.
_LONGEST = 320
_SEED = 0


@dataclass(frozen=True)
class Prompt:
    """The tokens of a prompt, how many are to follow, and which of them end the text."""

    ids: tuple[int, ...]
    new_tokens: int
    stop_ids: tuple[int, ...] = ()


def prompts_for(
    loaded: LoadedModel, methods: Sequence[GenerationMethod], context: int
) -> tuple[Prompt, ...]:
    """A short prompt, and where the program has further methods or parts, one that needs them."""
    return tuple(_prompts(loaded, methods, context))


def _prompts(
    loaded: LoadedModel, methods: Sequence[GenerationMethod], context: int
) -> Iterator[Prompt]:
    short = (_sentence(loaded) or _random(loaded, context // 2))[: context // 2]
    yield Prompt(short, min(_NEW, context - len(short) + 1))
    long = long_prompt_length(methods, context)
    if long:
        yield Prompt(_random(loaded, long), _LONG_NEW)


def long_prompt_length(methods: Sequence[GenerationMethod], context: int) -> int | None:
    """Tokens of a prompt that is taken in parts, and is beyond what a shorter method looks at."""
    ends = {m.capacity for m in methods if m.capacity < context}
    ends |= {m.max_tokens for m in methods if m.role == "prefill"}
    largest = min(_LONGEST, context) - _LONG_NEW + 1
    return max((end + _BEYOND for end in ends if end + _BEYOND <= largest), default=None)


def _sentence(loaded: LoadedModel) -> tuple[int, ...] | None:
    """The sentence; None without a tokenizer, or with one that knows more than the model."""
    if loaded.tokenizer.loaded is None:
        return None
    ids = tuple(int(i) for i in loaded.tokenizer.loaded(_TEXT)["input_ids"])
    return ids if ids and max(ids) < loaded.vocabulary else None


def random_parts(loaded: LoadedModel, context: int) -> tuple[tuple[int, ...], ...]:
    """Tokens in place of a text that calibrates."""
    return (_random(loaded, min(context, CALIBRATION_WINDOW)),)


def _random(loaded: LoadedModel, length: int) -> tuple[int, ...]:
    stop = stop_ids(loaded.model, loaded.tokenizer, loaded.vocabulary)
    [ids] = random_ids(
        (length,),
        vocabulary=loaded.vocabulary,
        bos_id=loaded.tokenizer.bos_id,
        stop_ids=stop,
        seed=_SEED,
    )
    return ids
