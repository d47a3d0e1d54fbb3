"""What a run record has of the rewrites of a model's graph."""

from __future__ import annotations

from etdeploy.core.values import Value


class RewritesLeft(Value):
    """Places of a model that a rewrite of its graph left as they are.

    Attributes:
        rewrite: Its name.
        reason: As a clause.
        file, line: Of the model's code; null where they are not known.
        places: How many.
    """

    rewrite: str
    reason: str
    file: str | None = None
    line: int | None = None
    places: int = 1


class RewritesRecord(Value):
    """What rewrites of the graph did to the program.

    Attributes:
        tried: Their names.
        applied: How often each changed something.
        left: What they left as it is.
        dropped: Why the program was made without them after all; null if it was not.
        before: Partitions, and operators outside of them, without rewrites.
        after: The same of the program.
    """

    tried: tuple[str, ...]
    applied: dict[str, int]
    left: tuple[RewritesLeft, ...] = ()
    dropped: str | None = None
    before: dict[str, int] = {}
    after: dict[str, int] = {}
