"""The result as a recipe: what differs from the recipe that was tuned, with the reason for each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from etdeploy.core.errors import RecipeError
from etdeploy.core.files.delivery import ResultFile
from etdeploy.recipe.find import bundled_recipes
from etdeploy.recipe.load import LoadedRecipe, Overrides, load_recipe
from etdeploy.recipe.rules.common import MODEL_SOURCES
from etdeploy.tune.metrics import METRICS
from etdeploy.tune.result import Claim, TunedCandidate, TuneResult

_MARK = "# Written by etdeploy tune. Unchanged since: "
_DIGITS = 16
_WIDTH = 96
_MOST_CLAIMS = 4
_PLAIN = re.compile(r"(?:\.{0,2}/)*[A-Za-z_][A-Za-z0-9_./-]*")
# YAML reads these as something else than text.
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


@dataclass(frozen=True)
class TunedRecipe:
    """What a recipe file is written from.

    Attributes:
        named: The recipe as the command line names it.
        overrides: Those of the command line.
        loaded: The recipe that was tuned, overrides included.
        tuned: The recipe of the result.
        result: The search.
    """

    named: str
    overrides: Overrides
    loaded: LoadedRecipe
    tuned: LoadedRecipe
    result: TuneResult


def recipe_file(option: str) -> ResultFile:
    """A recipe that may be new, or one that a search wrote and nobody has edited."""
    return ResultFile("recipe", "an unedited recipe of etdeploy tune", _is_unedited, "best.yaml",
                      option=option, standard="leave the option out")  # fmt: skip


def _is_unedited(stream: BinaryIO) -> bool:
    first = stream.readline()
    mark, rest = _MARK.encode(), stream.read()
    return first.startswith(mark) and first[len(mark) :].strip() == _digest(rest).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def free_name(path: Path) -> Path:
    """The path, or one with a number where another file has its name already."""
    for number in range(1, 1000):
        tried = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        if not tried.exists():
            return tried
        try:
            with tried.open("rb") as stream:
                if _is_unedited(stream):
                    return tried
        except OSError:
            continue
    return path


def write_recipe(recipe: TunedRecipe, path: Path, option: str) -> Path:
    """Write the recipe, and check that it loads as what was measured.

    Raises:
        UsageError: The file exists and is something else, or cannot be written.
    """
    file = recipe_file(option)
    try:
        document = _extending(recipe, path.resolve().parent)
    except RecipeError:  # it is a recipe only with the overrides of the command line
        document = _standalone(recipe)
    final = file.write(_text(recipe, document), path)
    if not _is_loaded_as(final, recipe.tuned):
        final = file.write(_text(recipe, _standalone(recipe)), path)
    return final


def _is_loaded_as(path: Path, wanted: LoadedRecipe) -> bool:
    try:
        found = load_recipe(str(path)).recipe
    except RecipeError:
        return False
    ignored = {"name", "description", "extends"}
    return found.model_dump(exclude=ignored) == wanted.recipe.model_dump(exclude=ignored)


def _extending(recipe: TunedRecipe, folder: Path) -> dict[str, Any]:
    """The recipe that is extended, and the values that differ from it."""
    tuned = recipe.tuned.recipe.model_dump(mode="json", exclude_unset=True)
    own = load_recipe(recipe.named).recipe.model_dump(mode="json", exclude_unset=True)
    path = recipe.loaded.path
    is_file = Path(recipe.named).is_file() or path.stem not in bundled_recipes()
    extends = Path(os.path.relpath(path, folder)).as_posix() if is_file else path.stem
    if is_file and not extends.startswith("."):
        extends = f"./{extends}"
    document: dict[str, Any] = {"extends": extends}
    sources = [key for key in MODEL_SOURCES if tuned["model"].get(key) != own["model"].get(key)]
    if sources:
        document["model"] = tuned["model"]
    for key, value in _differences(own, tuned):
        if key[0] not in ("name", "description", "extends") and not (sources and key[0] == "model"):
            section = document
            for part in key[:-1]:
                section = section.setdefault(part, {})
            section[key[-1]] = value
    return document


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Values of `after` that are others; None for one that is left out."""
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and old and new:
            yield from _differences(old, new, (*path, key))
        elif old != new:
            yield (*path, key), new


def _standalone(recipe: TunedRecipe) -> dict[str, Any]:
    """All values, where a file that extends the recipe would mean something else."""
    values = recipe.tuned.recipe.model_dump(mode="json", exclude_unset=True)
    return {key: value for key, value in values.items() if key not in ("name", "extends")}


def _text(recipe: TunedRecipe, document: Mapping[str, Any]) -> str:
    body = "\n".join([*_head(recipe.result), "", *_lines(document, recipe.result)]) + "\n"
    return f"{_MARK}{_digest(body.encode())}\n{body}"


def _head(result: TuneResult) -> Iterator[str]:
    """What was searched for, and what was found."""
    limits = f", limits {', '.join(result.limits)}" if result.limits else ""
    yield from _comment(
        f"{result.recipe} on {result.device}: minimize {result.minimize}{limits}. "
        f"{len([c for c in result.measured if c.records])} of {result.combinations} combinations "
        f"were measured; the search ended because {result.reason}."
    )
    if result.best:
        yield from _comment(f"This recipe: {figures_text(result.best)}.")
        if result.base.figures and result.best.changes:
            yield from _comment(f"The recipe as it is: {figures_text(result.base)}.")
    for comparison in result.comparisons:
        yield from _comment(f"{comparison.b.name} beside {comparison.a.name}, start by start: "
                            f"{comparison.verdict}; {comparison.reason}.")  # fmt: skip
    if result.preference:
        yield from _comment(f"Chosen because {result.preference}.")
    changed = set(result.best.changes) if result.best else set()
    compared = {claim.key for claim in result.claims}
    for knob in result.knobs:
        if knob.key in compared - changed:
            yield from _comment(f"{knob.key} stays as it is: {reason_for(result, knob.key)}.")


def figures_text(candidate: TunedCandidate) -> str:
    """The numbers of a combination in a line."""
    return ", ".join(
        f"{metric.title} {metric.show(candidate.figures[name])}"
        for name, metric in METRICS.items()
        if name in candidate.figures
    )


def reason_for(result: TuneResult, key: str) -> str:
    """Why the result has its value for a key: what the others take."""
    claims = [claim for claim in result.claims if claim.key == key]
    ranked = sorted(claims, key=_weight)
    shown = "; ".join(claim.text for claim in ranked[:_MOST_CLAIMS])
    more = len(ranked) - _MOST_CLAIMS
    return (shown or "no other value applies") + (f"; and {more} more" if more > 0 else "")


def _weight(claim: Claim) -> tuple[bool, bool, str]:
    return claim.ratio is None, bool(claim.reason), claim.other


def _lines(document: Mapping[str, Any], result: TuneResult) -> Iterator[str]:
    tuned = set(result.best.changes) if result.best else set()
    yield from _section(document, "", 0, result, tuned)


def _section(
    values: Mapping[str, Any], above: str, depth: int, result: TuneResult, tuned: set[str]
) -> Iterator[str]:
    indent = "  " * depth
    for key, value in values.items():
        name = f"{above}{key}"
        if name in tuned:
            yield from _comment(reason_for(result, name), indent)
        inner = any(other.startswith(f"{name}.") for other in tuned)
        if isinstance(value, dict) and value and (inner or depth == 0) and name not in tuned:
            yield f"{indent}{_key(key)}:"
            yield from _section(value, f"{name}.", depth + 1, result, tuned)
        else:
            yield f"{indent}{_key(key)}: {_scalar(value)}"


def _key(key: str) -> str:
    return key if _is_plain(key) else json.dumps(key)


def _scalar(value: Any) -> str:
    """A value as YAML in one line; JSON is YAML, too."""
    if isinstance(value, str) and _is_plain(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_plain(text: str) -> bool:
    return bool(_PLAIN.fullmatch(text)) and text.lower() not in _WORDS


def _comment(text: str, indent: str = "") -> Sequence[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
