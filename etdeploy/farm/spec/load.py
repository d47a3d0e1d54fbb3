"""Reads a farm.yaml with its recipes; reports every problem at once, each with its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.core.commands import quoted
from etdeploy.core.errors import FarmError, Problem, RecipeError, UsageError
from etdeploy.core.files.basic import not_regular
from etdeploy.farm.spec.conditions import matches
from etdeploy.farm.spec.matrix import Pair, entry_matches, select_pairs
from etdeploy.farm.spec.model import Baseline, Farm, LoadedFarm
from etdeploy.farm.spec.sections import (
    Findings,
    dotted,
    read_command,
    read_gates,
    read_groups,
    read_hosts,
    read_pools,
    read_reports,
    read_results,
    read_store,
    read_window,
)
from etdeploy.farm.spec.written import FarmFile, Matrix, RecipeEntry
from etdeploy.recipe.document import FileKind, KeyPath, SourceLocation, read_document
from etdeploy.recipe.find import find_recipe
from etdeploy.recipe.load import LoadedRecipe, Override, load_recipe
from etdeploy.recipe.problems import found_in

DEFAULT = "farm.yaml"
_KIND = FileKind(
    "a farm.yaml",
    "recipes",
    "Start with one that works here: etdeploy farm init\nThe smallest one is:\n"
    f"recipes: [{DEFAULT_RECIPE}]\ndevices: {{phones: {{kind: android}}}}",
)
# Keys that `Farm` has as they are written.
_PLAIN = (
    "repeats", "spread", "retries", "stop_after", "quarantine_after", "limit_s",
    "max_slowdown_percent",
)  # fmt: skip


def load_farm(path: Path) -> LoadedFarm:
    """Reads a farm.yaml; paths in it are relative to it.

    Raises:
        FarmError: A RecipeError with every problem of the file and of its recipes.
        UsageError: There is no such file.
    """
    _require_file(path)
    try:
        document = read_document(path, _KIND)
    except OSError as error:
        raise FarmError([Problem(str(path), f"cannot be read: {error.strerror}")]) from None
    except RecipeError as error:
        raise FarmError(error.problems, remedy=error.remedy) from None
    file = path.resolve()
    findings = Findings(document, file.parent)
    written = _validated(document.data, findings)
    entries = load_entries(written.recipes, findings)
    values = _values(written, entries.recipes, findings)
    if findings.problems:
        raise FarmError(findings.problems, remedy=findings.remedy)
    farm = Farm(name=written.name or file.stem, apps=entries.apps, **values)
    return LoadedFarm(file, farm, entries.recipes, document.places)


def _require_file(path: Path) -> None:
    """Raise a UsageError for a path without a file."""
    inside = path / DEFAULT
    if path.is_dir():
        remedy = f"Name the file in it: {quoted(inside)}" if inside.is_file() else None
        start = f"Write one there: etdeploy farm init {quoted(path)}"
        raise UsageError("this is a folder, not a farm.yaml", place=str(path),
                         remedy=remedy or start)  # fmt: skip
    if path.exists():
        if what := not_regular(path):
            raise UsageError(f"this is {what}, not a farm.yaml", place=str(path))
        return
    folder = path.parent
    others = {p.stem: p for p in sorted(folder.glob("*.y*ml"))} if folder.is_dir() else {}
    near = get_close_matches(path.stem, others, n=1)
    remedy = f"Did you mean {quoted(others[near[0]])}?" if near else "Write one: etdeploy farm init"
    raise UsageError("there is no such file", place=str(path), remedy=remedy)


def _validated(data: dict[str, Any], findings: Findings) -> FarmFile:
    """Validate the file; values of a wrong type are left out, so that the rest is read on."""
    left = deepcopy(data)
    if "notify" in left:
        del left["notify"]
        findings.add(("notify",), "the key 'notify' was replaced by 'on_end'", _ON_END_EXAMPLE)
    try:
        return FarmFile.model_validate(left)
    except ValidationError as error:
        found = found_in(error, findings.document, FarmFile, "a farm.yaml")
        findings.of_types(found, [_left_out(left, each["loc"]) for each in error.errors()])
    try:
        return FarmFile.model_validate(left)
    except ValidationError as error:
        # A required key was left out.
        sections = {str(each["loc"][0]) for each in error.errors()}
        findings.of_types((), [(name,) for name in sections])
        return FarmFile.model_validate({k: v for k, v in left.items() if k not in sections})


_ON_END_EXAMPLE = (
    "write on_end: [PROGRAM, ARGUMENT]; docs/farm.md has commands for a webhook and an e-mail"
)


def _left_out(data: dict[str, Any], location: KeyPath) -> KeyPath:
    """Remove the wrong key, or the nearest around it that is in a mapping."""
    inner: Any = data
    removable: tuple[dict[str, Any], KeyPath] | None = None
    for depth, key in enumerate(location, start=1):
        if isinstance(inner, dict) and key in inner:
            removable = inner, location[:depth]
        elif not (isinstance(inner, list) and isinstance(key, int) and key < len(inner)):
            break
        inner = inner[key]
    if removable is None:
        return location  # it was removed with another one
    section, keys = removable
    del section[str(keys[-1])]
    return keys


def _values(
    written: FarmFile, recipes: Mapping[str, LoadedRecipe], findings: Findings
) -> dict[str, Any]:
    for key in ("recipes", "devices"):
        if not getattr(written, key) and not findings.is_bad((key,)):
            what = "is empty" if key in findings.document.data else "is missing"
            findings.add((key,), f"the key {key!r} {what}", _EXAMPLES[key])
    groups = read_groups(written.devices, findings)
    alone = written.hosts is None and not findings.is_bad(("hosts",))
    pools = read_pools(written.pools, written.devices, alone, findings)
    results = read_results(written, findings)
    # An entry of the matrix may be about what could not be read.
    unread = any(findings.is_bad((key,)) for key in ("recipes", "devices", "matrix"))
    whole = len(recipes) == len(written.recipes) and not unread
    pairs = _pairs(written.matrix, list(recipes), list(written.devices), findings) if whole else ()
    return {
        **{key: getattr(written, key) for key in _PLAIN},
        "groups": groups,
        "pairs": pairs,
        "window": read_window(written.window, findings),
        "gates": read_gates(written.gates, findings),
        "baseline": Baseline(written.baseline),
        "results": results,
        "reports": read_reports(written.reports, results, findings),
        "on_end": read_command(written.on_end, findings),
        "store": read_store(written.store, findings),
        "hosts": read_hosts(written.hosts, findings),
        "pools": pools,
    }


_EXAMPLES = {
    "recipes": f"e.g. recipes: [{DEFAULT_RECIPE}]",
    "devices": "e.g. devices: {phones: {kind: android}}",
}


def _pairs(
    matrix: Matrix, labels: Sequence[str], groups: Sequence[str], findings: Findings
) -> tuple[Pair, ...]:
    """Select the pairs; an entry that matches none is a mistake."""
    if not labels or not groups:
        return ()
    everything = [(label, group) for label in labels for group in groups]
    for key in ("exclude", "include"):
        for number, entry in enumerate(getattr(matrix, key)):
            keys = ("matrix", key, number)
            if entry.recipe is None and entry.device is None:
                findings.add(keys, "the entry names neither a recipe nor a device")
            elif not any(entry_matches(entry, pair) for pair in everything):
                findings.add(keys, *_no_pair(entry.recipe, entry.device, labels, groups))
    pairs = select_pairs(matrix, labels, groups)
    if not pairs:
        findings.add(("matrix",), "the matrix is empty: no recipe is measured on any device")
    return pairs


def _no_pair(
    recipe: str | None, device: str | None, labels: Sequence[str], groups: Sequence[str]
) -> tuple[str, str]:
    """What an entry of the matrix names that there is not, and what is meant."""
    for what, name, known in (("recipe", recipe, labels), ("group of devices", device, groups)):
        if name and not any(matches(each, name) for each in known):
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            return f"there is no {what} {name!r}", hint
    raise AssertionError("the entry is about a pair")


@dataclass(frozen=True)
class Entries:
    """Recipes, and apps that are built already, by label."""

    recipes: dict[str, LoadedRecipe] = field(default_factory=dict)
    apps: dict[str, Path] = field(default_factory=dict)


def load_entries(entries: Sequence[RecipeEntry], findings: Findings) -> Entries:
    """Load every recipe; problems of one are added to the findings."""
    loaded = Entries()
    places: dict[str, SourceLocation] = {}
    for number, entry in enumerate(entries):
        found = _load(number, entry, findings)
        if found is None:
            continue
        label = entry.label or found.name
        keys = ("recipes", number, *(("label",) if entry.label else ()))
        if label in loaded.recipes:
            findings.add(
                keys,
                f"two recipes have the label {label!r}, the other one at {places[label]}",
                f"give one another: {{recipe: {entry.recipe}, label: {label}-2}}",
            )
            continue
        loaded.recipes[label], places[label] = found, findings.place(keys)
        if entry.app and (app := _app(("recipes", number, "app"), entry.app, findings)):
            loaded.apps[label] = app
    return loaded


def _app(keys: KeyPath, text: str, findings: Findings) -> Path | None:
    """Read the path of an app's archive; None, with a finding, if it is not one."""
    path = findings.path(keys, text)
    if path is None:
        return None
    if what := not_regular(path) if path.exists() else "missing":
        findings.add(keys, f"{dotted(keys)}: the file {path} is {what}", _BUILD)
    elif path.suffix.lower() != _ARCHIVE:
        findings.add(keys, f"{dotted(keys)} takes an {_ARCHIVE}, not {path.name}", _BUILD)
    return path


_ARCHIVE = ".ipa"
_BUILD = "etdeploy app ios writes the project, which a Mac builds"


def _load(number: int, entry: RecipeEntry, findings: Findings) -> LoadedRecipe | None:
    keys = ("recipes", number)
    place = findings.place((*keys, "recipe"))
    try:
        path = find_recipe(entry.recipe, findings.folder, place)
        overrides = [
            Override(text, str(findings.place((*keys, "set", i))), findings.folder)
            for i, text in enumerate(entry.set)
        ]
        return load_recipe(str(path), overrides)
    except RecipeError as error:
        findings.of_another_file(error.problems, error.remedy)
        return None
