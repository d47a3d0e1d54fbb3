"""What several jobs look up alike: each thing is looked up once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Lookups:
    """Answers that hold for one invocation, by what was asked."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def once(self, question: Hashable, look: Callable[[], T]) -> T:
        """The answer of an earlier job, or that of `look`."""
        if question not in self._answers:
            self._answers[question] = look()
        return cast("T", self._answers[question])
