"""Errors that a user can act on: what happened, where, what to do, and the exit code.

Library code raises one of these; `cli/main.py` is the only place that catches them.
Any other exception that escapes is a bug in etdeploy and ends with exit code 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import ClassVar, TypeVar


class EtdeployError(Exception):
    """A failure with a message for the user.

    Args:
        message: What happened, in a sentence or two.
        place: Where it happened: `file:line:column`, a device, a folder.
        remedy: What to do next, if possible a command to copy.
        log: The log file with the details.
    """

    exit_code: ClassVar[int] = 9
    kind: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        place: str | None = None,
        remedy: str | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.remedy = remedy
        self.log = log

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.message}" if self.place else self.message]
        if self.remedy:
            lines += [
                f"  {'what to do: ' if i == 0 else ' ' * 12}{line}"
                for i, line in enumerate(self.remedy.splitlines())
            ]
        if self.log:
            lines.append(f"  log: {self.log}")
        return "\n".join(lines)


class RegressionError(EtdeployError):
    """The numbers of a run are worse than those before it.

    Nothing else has this exit code, so that a script may act on it alone.
    """

    exit_code = 1
    kind = "regression"


class UsageError(EtdeployError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = 2
    kind = "usage"


class SessionBusyError(UsageError):
    """A session was used while another thread uses it, or while it generates a text."""

    kind = "session busy"


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a recipe."""

    place: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class StoreError(EtdeployError):
    """The history cannot be opened, read or written to."""

    exit_code = 2
    kind = "history"


class RecipeError(EtdeployError):
    """A recipe that cannot be read; carries every problem found, not only the first."""

    exit_code = 2
    kind = "recipe"

    def __init__(
        self,
        problems: list[Problem],
        *,
        remedy: str | None = None,
        recipes: int = 1,
        where: str | None = None,
    ) -> None:
        count = len(problems)
        where = where or ("the recipe" if recipes == 1 else f"{recipes} recipes")
        head = "" if count == 1 else f"{count} problems in {where}\n"
        super().__init__(head + "\n".join(str(p) for p in problems), remedy=remedy)
        self.problems = problems


class FarmError(RecipeError):
    """A farm.yaml that cannot be used; carries every problem, those of its recipes too."""

    kind = "farm"

    def __init__(self, problems: list[Problem], *, remedy: str | None = None) -> None:
        super().__init__(problems, remedy=remedy, where="the farm's files")


class ExportError(EtdeployError):
    """The model could not be loaded, exported or lowered."""

    exit_code = 3
    kind = "export"


class BuildError(EtdeployError):
    """A tool for building is missing, or the build failed."""

    exit_code = 4
    kind = "build"


class CheckError(EtdeployError):
    """The runner is missing something that the program needs; nothing was sent to a device."""

    exit_code = 5
    kind = "check"


class DeviceError(EtdeployError):
    """A device cannot be reached, selected or written to, or was disconnected."""

    exit_code = 6
    kind = "device"


class DeviceLostError(DeviceError):
    """A device went away while a session used it; `Session.reopen` continues when it is back."""

    kind = "device lost"


class NoVerdictError(DeviceError):
    """A verdict was asked for, and too little could be measured or judged to give one."""

    kind = "no verdict"


class RunError(EtdeployError):
    """The runner started on the device and failed."""

    exit_code = 7
    kind = "run"


class MismatchError(EtdeployError):
    """The device's outputs are not the model's."""

    exit_code = 8
    kind = "outputs differ"


class OutputError(EtdeployError):
    """The work is done, but its result cannot be written to standard output."""

    exit_code = 10
    kind = "output"


class LockError(EtdeployError):
    """What a lock file names is not what is here."""

    exit_code = 11
    kind = "not reproduced"


class LimitError(EtdeployError):
    """Nothing that was tried keeps within the user's limits."""

    exit_code = 12
    kind = "limits"


class PluginError(EtdeployError):
    """A bug in another package's code that etdeploy called; names the package and the hook."""

    kind = "plug-in"


class JobsError(EtdeployError):
    """Of several jobs, some failed; the worst of them gives the exit code and the kind.

    The worst is the one with the highest exit code: what fails late has the higher one, outputs
    that differ come last before a bug in etdeploy.
    """

    def __init__(self, message: str, worst: EtdeployError) -> None:
        super().__init__(message)
        # Each of these is a property of the class elsewhere.
        self.exit_code = worst.exit_code  # type: ignore[misc]
        self.kind = worst.kind  # type: ignore[misc]


class Interrupted(EtdeployError):  # noqa: N818 - nothing went wrong
    """The user or the system asked to stop."""

    exit_code = 130
    kind = "interrupted"

    def __init__(self, message: str = "stopped before the end") -> None:
        super().__init__(message)


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
    """Returns what was found."""
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
        each[0].remedy if len(each) == 1 else "\n".join(_headed_remedies(each)),
        all(b.fetched for b in each),
        all(b.of_program for b in each),
    )


def _headed_remedies(blockers: Iterable[Blocker]) -> Iterator[str]:
    """Each remedy once, below the names of what it is for."""
    names: dict[str, list[str]] = {}
    for blocker in blockers:
        names.setdefault(blocker.remedy, []).append(blocker.what)
    for remedy, whats in names.items():
        yield f"{', '.join(whats)}:"
        yield indent(remedy, "  ")


def refuse(blockers: Iterable[Blocker], error: type[EtdeployError] = BuildError) -> None:
    """Raises unless there are none."""
    require(joined(blockers), error)
