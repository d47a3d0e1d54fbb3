"""The options that an app is started with to measure, as words `key=value`; all pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Option = str | int | bool
# What each takes; all may be left out.
_KINDS: Mapping[str, type] = {
    "iterations": int,
    "warmup": int,
    "threads": int,
    "size": str,
    "outputs": bool,
    "program": str,
    "request": str,
}
_BOOLEANS = {"true": True, "false": False}


def parse_options(words: Sequence[str]) -> dict[str, Option]:
    """The options by name, each with a value of its kind.

    Args:
        words: `iterations=50`, `warmup=-1`, `threads=4`, `size=large`, `outputs=true`,
            `program=/a/program.pte`, `request=/a/request.txt`.

    Raises:
        ValueError: A word is none of these, or occurs twice.
    """
    found: dict[str, Option] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in _KINDS or name in found:
            raise ValueError(f"{word!r} is no option of an app")
        found[name] = _value(word, _KINDS[name], value)
    return found


def _value(word: str, kind: type, text: str) -> Option:
    if kind is bool and text in _BOOLEANS:
        return _BOOLEANS[text]
    # What an int of Java and Swift's Int32 holds.
    if kind is int and re.fullmatch(r"-?\d{1,9}", text):
        return int(text)
    if kind is str and text.isprintable():
        return text
    raise ValueError(f"{word!r}: the value is no {kind.__name__}")
