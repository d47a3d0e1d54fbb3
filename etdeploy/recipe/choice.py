"""Fields whose values pydantic's own types do not describe in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """Metadata for a field: its text is one of `names`, which are only known when it is read.

    Attributes:
        known: Whether there is such a value.
        names: All values, for messages and the JSON Schema.
    """

    known: Callable[[str], bool]
    names: Callable[[], Iterable[str]]

    def check(self, value: object) -> str:
        """The value itself."""
        if isinstance(value, str) and self.known(value):
            return value
        *most, last = (repr(name) for name in self.names())
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(most)} or {last}"})

    def __get_pydantic_core_schema__(
        self,
        source: Any,
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self,
        schema: CoreSchema,
        handler: GetJsonSchemaHandler,
    ) -> dict[str, Any]:
        return {"enum": list(self.names()), "type": "string"}


@dataclass(frozen=True)
class Takes:
    """Metadata for a field of several types: what it takes, in the words of a message.

    pydantic reports a value that fits none of the types once for each of them.

    Attributes:
        text: Follows "takes".
        words: The values that are words.
    """

    text: str
    words: tuple[str, ...] = ("auto",)

    def check(self, value: object, inner: core_schema.ValidatorFunctionWrapHandler) -> object:
        """The value itself."""
        try:
            return inner(value)
        except ValidationError as error:
            at = (part for e in error.errors() for part in e["loc"] if isinstance(part, int))
            item = next(at, None) if isinstance(value, list) else None
            context = {"takes": self.text, "words": list(self.words), "item": item}
            raise PydanticCustomError("takes", "takes {takes}", context) from None

    def __get_pydantic_core_schema__(
        self,
        source: Any,
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self.check, handler(source))


def all_different(values: tuple[T, ...]) -> tuple[T, ...]:
    """The values themselves."""
    if len(set(values)) < len(values):
        raise ValueError("one of them is there twice")
    return values
