"""The base of every closed set of names."""

from __future__ import annotations

from enum import Enum


class Kind(str, Enum):
    """A name of a closed set; it is written and compared as its plain text.

    Python has StrEnum for this from 3.11 on.
    """

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)
