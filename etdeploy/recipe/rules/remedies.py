"""Completes remedies that name another backend with what the recipe has besides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from etdeploy.core.errors import EtdeployError
from etdeploy.recipe.rules.export import export_rules

if TYPE_CHECKING:
    from etdeploy.recipe.model import Recipe

_SETTING = r"--set export\.(\w+)=([^\s;,)]+)"
_BACKEND = re.compile(rf"--set export\.backend=\w+(?: {_SETTING})*")
# What a backend does not have leaves `null` at its default.
_WITHOUT = {
    "quantization": "none",
    "generation.attention": "auto",
    "generation.cache": "float32",
}


@contextmanager
def remedies_for(recipe: Recipe) -> Iterator[None]:
    """Completes the remedy of an error that the block raises."""
    try:
        yield
    except EtdeployError as error:
        error.remedy = error.remedy and with_settings(error.remedy, recipe)
        raise


def with_settings(remedy: str, recipe: Recipe) -> str:
    """A remedy whose settings of `export.backend` can be given as they are."""
    export = recipe.export.model_dump()
    return _BACKEND.sub(lambda found: found[0] + "".join(_more(found[0], export)), remedy)


def _more(settings: str, export: Mapping[str, Any]) -> Iterator[str]:
    """The settings besides, one after the other: each may leave other rules broken."""
    given = dict(re.findall(_SETTING, settings))
    section = {**export, **{key: None if text == "null" else text for key, text in given.items()}}
    while True:
        found = {finding for finding, _ in export_rules(section)}
        broken = {each if each in _WITHOUT else each.partition(".")[0] for each in found}
        key = next((each for each in ("quantization", *sorted(broken)) if each in broken), None)
        if key is None or section.get(key) == _WITHOUT.get(key):
            return
        section[key] = _WITHOUT.get(key)
        owner, _, own = key.partition(".")
        if own:
            section[owner] = {**section[owner], own: _WITHOUT[key]}
        yield f" --set export.{key}={section[key] or 'null'}"
