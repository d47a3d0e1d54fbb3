"""Whether a model's files are enough to talk with it, as they tell before it is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from etdeploy.core.errors import UsageError
from etdeploy.program.text.template import ChatTemplate, load_template

Speech = Literal["text", "chat"]
"""What a model is to understand: a text as it is, or the lines of a chat."""
_PUT = "Put the model's tokenizer (tokenizer.json) into its folder"
_FOR_CHATS = "name a model that is made for chats: --model ID_OR_FOLDER"


def require_speech(
    tokenizer: Path | None, wanted: Speech | None, *, place: str | None = None, why: str = ""
) -> None:
    """Refuses a model that cannot be talked with.

    Args:
        tokenizer: The folder with the tokenizer's files; None for a model that has none.
        wanted: What it is to understand; None for nothing.
        place: The model, for messages.
        why: Why the tokenizer that is there cannot be loaded.

    Raises:
        UsageError: There is no tokenizer, or no chat template that can be read.
    """
    if wanted and tokenizer is None:
        raise no_tokenizer(wanted, place, why)
    if wanted == "chat" and tokenizer:
        required_template(tokenizer, place)


def required_template(tokenizer: Path, place: str | None = None) -> ChatTemplate:
    """The chat template among a tokenizer's files.

    Raises:
        UsageError: There is none, or it cannot be read.
    """
    template = load_template(tokenizer)
    if template is None:
        raise UsageError(
            "the model has no chat template, so it cannot chat",
            place=place,
            remedy=f"Use etdeploy generate, or {_FOR_CHATS}",
        )
    return template


def no_tokenizer(wanted: Speech, place: str | None = None, why: str = "") -> UsageError:
    """The refusal of a model without a tokenizer; see `require_speech`."""
    what = (
        f"the model's tokenizer cannot be loaded ({why})" if why else "the model has no tokenizer"
    )
    if wanted == "chat":
        return UsageError(
            f"{what}, so it cannot chat", place=place, remedy=f"{_PUT}, or {_FOR_CHATS}"
        )
    return UsageError(
        f"{what}, so it takes no text",
        place=place,
        remedy=f"{_PUT}, or give it the ids of tokens: --prompt '1 15 27'",
    )
