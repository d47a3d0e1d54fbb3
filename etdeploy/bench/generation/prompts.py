"""Prompts as token ids, and token ids as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etdeploy.core.errors import UsageError
from etdeploy.program import expected
from etdeploy.program.generation import Generation
from etdeploy.program.text.tokenizer import load_tokenizer


def random_ids(
    lengths: Sequence[int], generation: Generation, seed: int
) -> tuple[tuple[int, ...], ...]:
    """A prompt of each length; the shorter ones begin like the longer ones.

    Each begins with the model's own first token, where it has one. None has a token that ends
    texts, after which some models give nothing sensible.

    Args:
        lengths: How many tokens each has.
        generation: Of the program.
        seed: The same prompts for the same seed and vocabulary, on every machine.
    """
    return expected.random_ids(
        lengths,
        vocabulary=generation.vocabulary,
        bos_id=generation.bos_id,
        stop_ids=generation.stop_ids,
        seed=seed,
    )


def tokenised(
    text: str, generation: Generation, program_folder: Path, place: str
) -> tuple[int, ...]:
    """A text as the model's own tokenizer splits it, with the tokens that it adds.

    Args:
        text: The prompt.
        generation: Of the program.
        program_folder: With the tokenizer.
        place: Of the text, for messages.

    Raises:
        UsageError: There is no tokenizer, nothing to read it, or nothing in the text.
    """
    try:
        tokenizer = load_tokenizer(generation, program_folder)
    except UsageError as error:
        raise UsageError(error.message, place=error.place or place, remedy=error.remedy) from error
    if tokenizer is None:
        raise UsageError(
            "the program has no tokenizer for the prompt",
            place=place,
            remedy="Leave benchmark.generation.prompt out: prompts are random tokens then",
        )
    ids = tokenizer.encode(text)
    if not ids:
        raise UsageError("the prompt has no token", place=place)
    return ids


def text_of(ids: Sequence[int], generation: Generation, program_folder: Path) -> str | None:
    """Token ids as text; None without a tokenizer that can be read."""
    try:
        tokenizer = load_tokenizer(generation, program_folder)
    except UsageError:
        return None
    return tokenizer.decode(ids) if tokenizer else None
