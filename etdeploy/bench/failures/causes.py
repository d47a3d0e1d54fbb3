"""A usual cause with what to do about it, found by the words of a log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Of what is taken from a log into a message.
_LONGEST = 200


@dataclass(frozen=True)
class Cause:
    """A usual cause and what to do about it; `{device}` in a remedy is left to the caller."""

    cause: str
    remedy: str


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
    told, remedy = cause.cause, cause.remedy
    for group, value in found.groupdict().items():
        if value:
            name = "{" + group.rstrip("2") + "}"
            shown = "".join(c if c.isprintable() else " " for c in value[:_LONGEST])
            told, remedy = told.replace(name, shown), remedy.replace(name, shown)
    return Cause(told, remedy)
