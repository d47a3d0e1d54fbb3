"""A result that goes to a file that the user names, and over nothing but an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import no_room_in, not_regular, open_regular, write_atomic
from etdeploy.core.files.delivery import require_writable

# The beginning of a file by which a text result may be known.
_LOOKED_AT_BYTES = 65_536


@dataclass(frozen=True)
class ResultFile:
    """What is written, and how an earlier one is known again.

    Attributes:
        noun: For messages: "report".
        kind: The same more exactly: "a report in html".
        is_own: Whether a file, of which nothing was read yet, is an earlier one.
        example: A file's name, for the remedy where a folder is named.
        option: What stands before the file on the command line.
        standard: How the command line names the standard output.
    """

    noun: str
    kind: str
    is_own: Callable[[BinaryIO], bool]
    example: str
    option: str = "--output"
    standard: str = "--output -"

    def require_free(self, path: Path) -> None:
        """Checks that a file is new, empty, or an earlier result.

        Raises:
            UsageError: It is none of these, or cannot be written; with the reason.
            OSError: The disk is full.
        """
        foreign = False
        try:
            if what := not_regular(path):
                raise self._no_file(path, what)
            if path.stat().st_size:
                with open_regular(path) as stream:
                    foreign = not self.is_own(stream)
        except FileNotFoundError:
            self._require_folder(path)
        except OSError as error:
            raise self.unwritable(path, error) from error
        self._require_writable(path)
        if foreign:
            raise UsageError(
                f"the file exists and is not {self.kind}; it was not changed",
                place=str(path),
                remedy=self._choose,
            )

    def write(self, text: str, path: Path) -> Path:
        """Writes it, all of it or nothing.

        Returns:
            The file's absolute path; where `path` is a link, of what it leads to.

        Raises:
            UsageError: The file is somebody else's, or cannot be written.
            OSError: The disk is full.
        """
        self.require_free(path)
        final = path.resolve()
        try:
            write_atomic(final, text)
        except OSError as error:
            if no_room_in(error):
                raise
            raise self.unwritable(path, error) from error
        return final

    def unwritable(self, path: Path, error: OSError) -> UsageError:
        """The error for the user."""
        return UsageError(
            f"the {self.noun} cannot be written: {error.strerror or error}",
            place=str(path),
            remedy=self._choose,
        )

    @property
    def _choose(self) -> str:
        return f"Name another file: {self.option} FILE"

    def _no_file(self, path: Path, what: str) -> UsageError:
        inside = f"Name a file in it: {self.option} {quoted(path / self.example)}"
        return UsageError(
            f"the {self.noun} needs a file, and this is {what}",
            place=str(path),
            remedy=inside if path.is_dir() else f"For standard output: {self.standard}",
        )

    def _require_folder(self, path: Path) -> None:
        """A folder that is missing is more likely a slip than meant: none is created."""
        folder = path.resolve().parent
        if not folder.is_dir():
            raise UsageError(
                f"the folder for the {self.noun} does not exist",
                place=str(folder),
                remedy=f"Create it: mkdir -p {quoted(folder)}\n{self._choose}",
            )

    def _require_writable(self, path: Path) -> None:
        try:
            require_writable(path.resolve().parent)
        except OSError as error:
            if no_room_in(error):
                raise
            raise self.unwritable(path, error) from error


def begins_with(*texts: str) -> Callable[[BinaryIO], bool]:
    """Whether a file begins with one of these."""
    known = tuple(text.encode() for text in texts)
    longest = max(map(len, known))
    return lambda stream: stream.read(longest).startswith(known)


def contains(text: str) -> Callable[[BinaryIO], bool]:
    """Whether a file has this near its beginning."""
    return lambda stream: text.encode() in stream.read(_LOOKED_AT_BYTES)
