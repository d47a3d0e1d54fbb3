"""Usual causes and their remedies, found by the words of a log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Characters that a message quotes of a log.
_LONGEST = 200

NEW_FILE = "and name the new file in\nmodel.program"
"""Ends a remedy for a finished program, which no option of the recipe can change."""


@dataclass(frozen=True)
class Cause:
    """A usual cause and what to do about it; `{device}` in a remedy is left to the caller.

    Attributes:
        cause: What happened.
        remedy: What to do.
        finished: What to do instead where the recipe names a finished program; the same when
            empty.
    """

    cause: str
    remedy: str
    finished: str = ""

    def remedy_for(self, *, finished: bool) -> str:
        """What to do about it, also where the program cannot be exported from the recipe."""
        return (finished and self.finished) or self.remedy


# A pattern with named groups, and the cause whose texts may name them in braces. Two groups may
# stand for one name: `name2` fills `{name}`, too.
Word = tuple[str, Cause]


def first_cause(text: str, words: Iterable[Word]) -> Cause | None:
    """The cause of the first pattern that is in the text, with its groups filled in."""
    for pattern, cause in words:
        found = re.search(pattern, text)
        if found:
            return _filled(cause, found)
    return None


def _filled(cause: Cause, found: re.Match[str]) -> Cause:
    for group, value in found.groupdict().items():
        if value:
            name = "{" + group.rstrip("2") + "}"
            shown = "".join(c if c.isprintable() else " " for c in value[:_LONGEST])
            texts = (cause.cause, cause.remedy, cause.finished)
            cause = Cause(*(text.replace(name, shown) for text in texts))
    return cause
