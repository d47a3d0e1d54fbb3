"""Something that stops a run: what it is, why it does, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from etdeploy.core.errors import BuildError, EtdeployError

T = TypeVar("T")


@dataclass(frozen=True)
class Blocker:
    """A tool that is not installed, a backend that does not run there, an SDK that is too old.

    A function that looks for something that may be missing returns it or a blocker, as in
    `find_zig() -> Zig | Blocker`. A caller that cannot continue without it calls
    `require(find_zig())`.

    Attributes:
        what: Its usual name.
        why: What was found instead and what is wrong with it, or what it is needed for.
        remedy: What to do, if possible a command.
        fetched: Whether a run fetches it by itself.
        of_program: Whether the cause is the program alone, and not this machine.
    """

    what: str
    why: str
    remedy: str
    fetched: bool = False
    of_program: bool = False


def require(found: T | Blocker, error: type[EtdeployError] = BuildError) -> T:
    """Returns what was found.

    Raises:
        EtdeployError: It was not found; an error of the given kind.
    """
    if isinstance(found, Blocker):
        raise error(found.why, remedy=found.remedy)
    return found


def joined(blockers: Iterable[Blocker]) -> Blocker | None:
    """All of them as one; None if there are none."""
    each = list(dict.fromkeys(blockers))
    if not each:
        return None
    return Blocker(
        ", ".join(b.what for b in each),
        "; ".join(b.why for b in each),
        "\n".join(dict.fromkeys(b.remedy for b in each)),
        all(b.fetched for b in each),
        all(b.of_program for b in each),
    )


def refuse(blockers: Iterable[Blocker], error: type[EtdeployError] = BuildError) -> None:
    """Raises unless there are none.

    Raises:
        EtdeployError: There are blockers; the message names all of them.
    """
    require(joined(blockers), error)
