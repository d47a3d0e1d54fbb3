"""Failure tables: what a log line or an exception means, and what to do about it.

Each package that explains failures has one or more `FailureTable`s; one matcher reads them all, and
docs/troubleshooting.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from etdeploy.core.errors import EtdeployError

E = TypeVar("E", bound=EtdeployError)
_MAX_QUOTED_CHARACTERS = 200


@dataclass(frozen=True)
class Diagnosis:
    """The cause of a failure and its remedy.

    Attributes:
        cause: What happened.
        remedy: What to do. `{device}` is left for the caller to fill in.
        program_remedy: What to do where the recipe names a finished program, which no option of
            the recipe can change; the same as `remedy` when empty.
        facts: Those of the pattern, and what its groups matched.
    """

    cause: str
    remedy: str
    program_remedy: str = ""
    facts: Mapping[str, str] = field(default_factory=dict, compare=False, kw_only=True)

    def remedy_for(self, *, finished: bool) -> str:
        """Return the remedy for a program of the recipe, or for a finished one."""
        return (finished and self.program_remedy) or self.remedy


@dataclass(frozen=True)
class FailurePattern:
    """One kind of failure.

    Attributes:
        pattern: A regular expression searched in the text, or the class of an exception.
        cause: What happened. `{name}` stands for the pattern's group `name`, or `name2`, or for a
            value that the caller passes; `{error}` for the whole text.
        remedy: What to do, with the same names.
        program_remedy: As in `Diagnosis`.
        formats: How to show a group, by its name.
        facts: What else a caller needs to know, by name.
    """

    pattern: str | type[Exception]
    cause: str
    remedy: str
    program_remedy: str = ""
    formats: Mapping[str, Callable[[str], str]] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def match(self, failure: str | Exception, values: Mapping[str, str]) -> Diagnosis | None:
        """Return the diagnosis if this is that kind of failure."""
        text = str(failure)
        groups: Mapping[str, str | None] = {}
        if not isinstance(self.pattern, str):
            if not isinstance(failure, self.pattern):
                return None
        elif match := re.search(self.pattern, text):
            groups = match.groupdict()
        else:
            return None
        shown = {"error": text, **values}
        for name, group in groups.items():
            if group:
                shown[name.rstrip("2")] = _quotable(self.formats.get(name, str)(group))
        return Diagnosis(
            _fill(self.cause, shown),
            _fill(self.remedy, shown),
            _fill(self.program_remedy, shown),
            facts={**self.facts, **{name: group for name, group in groups.items() if group}},
        )


@dataclass(frozen=True)
class FailureTable:
    """The failures of one part, the pattern nearest to the cause first.

    Attributes:
        title: The heading in docs/troubleshooting.md.
        exit_code: With which a command ends that fails so.
        patterns: In the order in which they are tried.
    """

    title: str
    exit_code: int
    patterns: tuple[FailurePattern, ...]

    def diagnose(self, failure: str | Exception, **values: str) -> Diagnosis | None:
        """Return the diagnosis of the first pattern that matches; None if none does."""
        diagnoses = (pattern.match(failure, values) for pattern in self.patterns)
        return next((diagnosis for diagnosis in diagnoses if diagnosis), None)

    def error(self, kind: type[E], failure: str | Exception, place: str | None, **values: str) -> E:
        """Return the error of a failure for the user; the table's last pattern matches all."""
        diagnosis = self.diagnose(failure, **values)
        if diagnosis is None:
            raise LookupError(f"{self.title}: no pattern matches {failure!r}")
        return kind(diagnosis.cause, place=place, remedy=diagnosis.remedy)


def _quotable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:_MAX_QUOTED_CHARACTERS])


def _fill(template: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], name[0]), template)
