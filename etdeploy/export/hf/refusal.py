"""Why a language model cannot be exported, as it is found before or in the worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """What is wrong with a model.

    Attributes:
        message: What it is.
        remedy: What to do.
        key: Of the recipe, where the message is about one; else it is about `place`.
        place: A file or folder.
    """

    message: str
    remedy: str | None = None
    key: tuple[str, ...] = ("model", "hf")
    place: str | None = None
