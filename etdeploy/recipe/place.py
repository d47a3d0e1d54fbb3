"""Where something is in a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KeyPath = tuple["str | int", ...]


@dataclass(frozen=True)
class Place:
    """Where something is; line and column count from 1, `line` is None for an override.

    Paths here are relative to `folder`.
    """

    file: str
    line: int | None = None
    column: int | None = None
    folder: Path = Path()

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
