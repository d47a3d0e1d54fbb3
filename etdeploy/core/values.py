"""The base class of every typed value that is passed between stages, and values of all stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar, overload

from pydantic import BaseModel, ConfigDict, ValidationError

from etdeploy.core.files.basic import write_atomic

T = TypeVar("T")
V = TypeVar("V", bound="Value")


class Value(BaseModel):
    """Frozen, typed and stored as JSON; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def save(self, path: Path) -> None:
        """Writes the value as indented JSON, all of it or nothing."""
        write_atomic(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls: type[V], path: Path) -> V:
        """Reads what `save` wrote.

        Raises:
            OSError: The file cannot be read.
            pydantic.ValidationError: The file contains something else.
        """
        return cls.model_validate_json(path.read_bytes())

    @classmethod
    def load_or_none(cls: type[V], path: Path) -> V | None:
        """Reads what this release wrote; None for a file that is missing or contains anything else.

        For state that can be made again: another release has other fields, and a file may be
        truncated.
        """
        try:
            return cls.load(path)
        except (OSError, ValidationError):
            return None


class ReasonedChoice(Value):
    """A choice with its reason: a component, a cmake option, a task.

    `by_hand` distinguishes a choice of the recipe's author from that of a rule.
    """

    name: str
    value: str | None = None
    reason: str
    by_hand: bool = False


class StrEnum(str, Enum):
    """A name from a closed set, written and compared as plain text.

    Python has StrEnum for this since 3.11.
    """

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


def flattened(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """What nested mappings hold, by dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


class Progress(Protocol):
    """Called with a short text and, if known, the fraction that is done, from 0 to 1."""

    def __call__(self, text: str, fraction: float | None = None) -> None: ...


def silent(text: str, fraction: float | None = None) -> None:
    """A Progress that shows nothing."""


class Stop(Protocol):
    """A request to stop, such as a threading.Event."""

    def is_set(self) -> bool:
        """Whether it was made."""
        ...


class DoctorCheck(Value):
    """One thing that was looked for.

    `state` is ok, missing (a run on this machine needs it) or optional (only something else does).
    """

    name: str
    state: Literal["ok", "missing", "optional"]
    found: str | None
    needed_for: str
    remedy: str | None = None


class cached_property(Generic[T]):  # noqa: N801 - as functools calls it
    """A property that is computed once for each object; in several threads, maybe by each.

    That of functools has one lock for all objects of a class up to Python 3.11: while one device
    was asked, all others waited.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
