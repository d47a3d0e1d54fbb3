"""Prompts as token ids, and token ids as text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside
from etdeploy.program.generation import Generation

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The fast tokenizers' own format, with everything that is needed to use one.
_TOKENIZER = "tokenizer.json"
_INSTALL = "pip install 'etdeploy[llm]'"


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
    draw = random.Random(seed)  # noqa: S311 - no secret
    stop = set(generation.stop_ids)
    ids = [] if generation.bos_id is None else [generation.bos_id]
    usable = [token for token in range(generation.vocabulary) if token not in stop]
    while len(ids) < max(lengths):
        ids.append(usable[int(draw.random() * len(usable))])
    return tuple(tuple(ids[:length]) for length in lengths)


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
    if _file(generation, program_folder) is None:
        raise UsageError(
            "the program has no tokenizer for the prompt",
            place=place,
            remedy="Leave benchmark.generation.prompt out: prompts are random tokens then",
        )
    tokenizer = _tokenizer(generation, program_folder)
    if tokenizer is None:
        raise UsageError(
            "the package tokenizers is not installed, which reads the model's tokenizer",
            place=place,
            remedy=_INSTALL,
        )
    ids = tuple(tokenizer.encode(text).ids)
    if not ids:
        raise UsageError("the prompt has no token", place=place)
    return ids


def text_of(ids: Sequence[int], generation: Generation, program_folder: Path) -> str | None:
    """Token ids as text; None without a tokenizer, or without the package that reads it."""
    tokenizer = _tokenizer(generation, program_folder)
    return None if tokenizer is None else str(tokenizer.decode(list(ids)))


def _tokenizer(generation: Generation, program_folder: Path) -> Tokenizer | None:
    path = _file(generation, program_folder)
    if path is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception:
        return None


def _file(generation: Generation, program_folder: Path) -> Path | None:
    if generation.tokenizer is None:
        return None
    path = inside(program_folder, f"{generation.tokenizer}/{_TOKENIZER}")
    return path if path.is_file() else None
