"""The text on which a recipe evaluates a language model, as it is read without PyTorch."""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass
from pathlib import Path

from etdeploy.export.hf.refusal import Refusal

EVALUATE = ("export", "generation", "evaluate")
# Hardly any token has more bytes; of a longer file, the rest is not read.
_BYTES_OF_TOKEN = 64


@dataclass(frozen=True)
class Excerpt:
    """What may hold the tokens that are evaluated.

    Attributes:
        text: From the beginning of the file.
        whole: Whether that is all of it.
    """

    text: str
    whole: bool


def no_tokenizer(path: Path, why: str) -> Refusal:
    """The refusal of a text for which there is no tokenizer.

    Args:
        path: Of the text.
        why: A clause about the model.
    """
    return Refusal(
        f"{path.name} cannot be split into tokens: {why}",
        "Put the model's tokenizer into its folder, or evaluate nothing: leave the key out.",
        key=EVALUATE,
    )


def read_excerpt(path: Path, tokens: int) -> Excerpt | Refusal:
    """The beginning of a file, or why it cannot be evaluated.

    Args:
        path: Of the file.
        tokens: How many are evaluated at most.
    """
    limit = (tokens + 1) * _BYTES_OF_TOKEN
    try:
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        return Refusal(f"{path} cannot be read: {error.strerror}", key=EVALUATE)
    whole = len(content) <= limit
    try:
        # Where the text is cut, without a last character of which a part is missing.
        text = getincrementaldecoder("utf-8-sig")().decode(content[:limit], final=whole)
    except UnicodeDecodeError as error:
        return Refusal(
            f"{path} is not text in UTF-8: byte {error.start:,} fits no character",
            "Save it as UTF-8, or name another file.",
            key=EVALUATE,
        )
    if not text.strip():
        return Refusal(
            f"{path} has no text to evaluate the model on",
            "Name a file with some hundred words.",
            key=EVALUATE,
        )
    return Excerpt(text, whole)
