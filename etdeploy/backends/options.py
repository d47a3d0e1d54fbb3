"""Options of a backend: what a recipe may set in `export.options`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

# What the value of an option can be.
OptionValue = str | bool | int | float

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Option:
    """One option of a recipe; its type is that of the default.

    `text` describes it in docs/recipes.md; `choices` are the values that a text may have.
    """

    name: str
    default: OptionValue
    text: str
    choices: tuple[str, ...] = ()

    def problem(self, value: object) -> str | None:
        """Return the problem of a value, as the end of a sentence; None without one."""
        kind = type(self.default)
        # A whole number is a number, too; true is neither.
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits:
            return f"takes {_KINDS[kind]}, not {_shown(value)}"
        if self.choices and value not in self.choices:
            return f"takes {_alternatives(self.choices)}, not {_shown(value)}"
        return None


def option_problems(
    owner: str, options: Iterable[Option], given: Mapping[Any, Any]
) -> Iterator[tuple[str, str]]:
    """Yield an option's name and a sentence for each wrong one of a recipe.

    `owner` is the backend's name; a value of None stands for the default.
    """
    known = {option.name: option for option in options}
    for name, value in given.items():
        option = known.get(str(name))
        if option is None:
            yield str(name), _unknown(owner, str(name), known)
        elif value is not None and (problem := option.problem(value)):
            yield option.name, problem


def option_values(
    options: Iterable[Option], given: Mapping[str, OptionValue | None]
) -> dict[str, OptionValue]:
    """The value of each option: the recipe's, or the default."""
    return {option.name: _value(option, given.get(option.name)) for option in options}


def _value(option: Option, given: OptionValue | None) -> OptionValue:
    if given is None:
        return option.default
    return float(given) if isinstance(option.default, float) else given


def _alternatives(names: tuple[str, ...]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _unknown(owner: str, name: str, known: Mapping[str, Option]) -> str:
    if not known:
        return f"the backend {owner} has no options; --set export.options=null leaves out all"
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
    return f"the backend {owner} has no option {name!r} ({hint})"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return repr(value)
