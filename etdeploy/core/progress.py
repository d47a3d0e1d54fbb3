"""How long tasks report progress, without knowing who displays it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with a short text and, if known, the fraction that is done, from 0 to 1."""

    def __call__(self, text: str, fraction: float | None = None) -> None: ...


def silent(text: str, fraction: float | None = None) -> None:
    """A Progress that shows nothing."""
