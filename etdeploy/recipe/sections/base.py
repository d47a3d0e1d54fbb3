"""What every section of a recipe is.

The docstring below each field of a section is its documentation: the JSON Schema and
docs/recipes.md are generated from it.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator

from etdeploy.recipe.rules.common import require
from etdeploy.recipe.rules.sections import RULES

# Far above any model's context.
MOST_TOKENS = 2**20


class Section(BaseModel):
    """A part of a recipe; unknown keys are rejected, empty ones (null) have their default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if v is not None or k not in cls.model_fields}

    @model_validator(mode="after")
    def _keep_rules(self) -> Section:
        if rules := RULES.get(type(self).__name__.lower()):
            require(rules(vars(self)))
        return self


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds, also one that may be left out; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_of, get_args(annotation))), None)
