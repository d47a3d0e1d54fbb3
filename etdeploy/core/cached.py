"""Values that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from etdeploy.core import console
from etdeploy.core.values import Progress

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - as functools calls it
    """A property that is computed once for each object; in several threads, maybe by each.

    That of functools has one lock for all objects of a class up to Python 3.11: while one device
    was asked, all others waited.

    Args:
        compute: Gives the value of an object.
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


@contextmanager
def occasional_task(display: console.TaskDisplay, name: str, done: str) -> Iterator[Progress]:
    """Gives the progress of work that may have nothing to do.

    Args:
        display: Shows the task from its first progress on.
        name: Of the task.
        done: What is shown when the block ends well.
    """
    started = False

    def tell(text: str, fraction: float | None = None) -> None:
        nonlocal started
        if not started:
            display.start(name)
        started = True
        display.advance(name, text, fraction)

    yield tell
    if started:
        display.end(name, done)
