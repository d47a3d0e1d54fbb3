"""The base class of every closed set of names."""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
    """A name from a closed set, written and compared as plain text.

    Python has StrEnum for this since 3.11.
    """

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)
