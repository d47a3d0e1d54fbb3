"""What a look for a tool says when there is none that can be used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Missing:
    """A tool that is not there, or cannot be used.

    Attributes:
        what: The tool, as people call it.
        why: What was found instead, and what is wrong with it.
        remedy: What to do, if possible a command.
    """

    what: str
    why: str
    remedy: str
