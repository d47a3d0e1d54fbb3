"""What a message says, whatever its words."""

from __future__ import annotations


def lacks(message: object, *facts: object) -> list[str]:
    """The names, numbers and commands that a message does not state."""
    return [str(fact) for fact in facts if str(fact) not in str(message)]
