"""What is wrong with a farm.yaml, collected while its parts are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from etdeploy.core.errors import Problem
from etdeploy.recipe.document import Document, KeyPath, SourceLocation
from etdeploy.recipe.find import resolved
from etdeploy.recipe.problems import Found, in_order, place_of


class Findings:
    """Problems with their places; reading goes on after each.

    Args:
        document: The file.
        folder: That paths in it are relative to.
    """

    def __init__(self, document: Document, folder: Path) -> None:
        self.document, self.folder = document, folder
        self._found: list[Found] = []
        self._others: list[Problem] = []
        self._remedies: dict[str, None] = {}
        self._bad: list[KeyPath] = []

    def add(self, keys: KeyPath, message: str, hint: str | None = None) -> None:
        """Notes a problem at a key, or at the nearest section around it."""
        self._found.append((self.place(keys), message, hint))

    def of_types(self, found: Iterable[Found], keys: Iterable[KeyPath]) -> None:
        """Notes values of a wrong type, which are not read further, and their keys."""
        self._found += found
        self._bad += keys

    def is_bad(self, keys: KeyPath) -> bool:
        """Whether something in a section, or around it, has a wrong type and was left out."""
        return any(bad[: len(keys)] == keys[: len(bad)] for bad in self._bad)

    def of_another_file(self, problems: Iterable[Problem], remedy: str | None) -> None:
        """Notes the problems of a recipe."""
        self._others += [problem for problem in problems if problem not in self._others]
        if remedy:
            self._remedies[remedy] = None

    def place(self, keys: KeyPath) -> SourceLocation:
        """Where a key is, or the nearest section around it."""
        return place_of(self.document, keys)

    def path(self, keys: KeyPath, text: str) -> Path | None:
        """The absolute path that a key names; None for a text that is none."""
        try:
            return resolved(self.folder, text)
        except OSError as error:
            self.add(keys, f"{dotted(keys)}: {text!r} cannot be a path ({error.strerror})")
            return None

    @property
    def problems(self) -> list[Problem]:
        """All of them: those of the file in its order, then those of recipes."""
        return [*self.document.problems, *in_order(self._found), *self._others]

    @property
    def remedy(self) -> str | None:
        """What to do about those of recipes."""
        return "\n".join(self._remedies) or None


def dotted(keys: KeyPath) -> str:
    """A key as messages name it: `recipes.0.set`."""
    return ".".join(map(str, keys))
