"""Which names Android accepts as an app's id."""

from __future__ import annotations

import re

_SEGMENT = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
_LONGEST = 150
# The id is also the package of the app's code, which these words cannot be a part of.
_RESERVED = """
abstract as assert boolean break byte case catch char class const continue default do double else
enum extends false final finally float for fun goto if implements import in instanceof int interface
is long native new null object package private protected public return short static strictfp super
switch synchronized this throw throws transient true try typealias typeof val var void volatile when
while
"""
_WORDS = frozenset(_RESERVED.split())


def android_id_problem(app_id: str) -> str | None:
    """What is wrong with an application id, as a clause; None if nothing is.

    Sources: "Configure the app module" of Android's documentation, and the keywords of Java and
    Kotlin.
    """
    segments = app_id.split(".")
    if len(segments) < 2:
        return "it has no dot: an id has two parts or more, like org.example.model"
    if len(app_id) > _LONGEST:
        return f"it has {len(app_id)} characters, and {_LONGEST} are the most that file names bear"
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            return (
                f"{segment!r} is no part of an id: each begins with a letter from a to z and has "
                "only letters, digits and underscores"
            )
        if segment in _WORDS:
            return f"{segment!r} is a word of Java or Kotlin, so no package can be called so"
    return None


def suggested_segment(text: str) -> str:
    """A part of an id that is like a text: `resnet_50` for `ResNet-50`; `app` where none is."""
    words = "_".join(re.findall(r"[a-z0-9]+", text.lower()))
    if not words:
        return "app"
    return f"app_{words}" if words in _WORDS or not words[0].isalpha() else words
