"""A text with a fixed set of values that is only known when a recipe is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema


@dataclass(frozen=True)
class Choice:
    """Metadata for a field: its text is one of `names`, as with `Literal`.

    Attributes:
        known: Whether there is such a value.
        names: All values, for messages and the JSON Schema.
    """

    known: Callable[[str], bool]
    names: Callable[[], Iterable[str]]

    def check(self, value: object) -> str:
        """The value itself.

        Raises:
            PydanticKnownError: There is no such value; the error is that of a `Literal`.
        """
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
