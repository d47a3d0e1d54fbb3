"""What a message says, whatever its words."""

from __future__ import annotations


def lacks(text: str | None, *facts: str) -> list[str]:
    """The names, numbers and commands that a message does not state."""
    return [fact for fact in facts if fact not in (text or "")]
