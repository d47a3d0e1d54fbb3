"""Reads a farm.yaml with its recipes; reports every problem at once, each with its place."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from re import fullmatch
from typing import Any

from pydantic import ValidationError

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.core.commands import quoted
from etdeploy.core.errors import (
    EtdeployError,
    FarmError,
    Problem,
    RecipeError,
    StoreError,
    UsageError,
)
from etdeploy.core.files.basic import not_regular
from etdeploy.core.layout import parse_size
from etdeploy.devices.registry import device_names, parse_spec
from etdeploy.farm.model import Gates
from etdeploy.farm.spec.conditions import (
    ConditionError,
    group_of,
    is_pattern,
    matches,
    minutes_of,
    zone_problem,
)
from etdeploy.farm.spec.findings import Findings, dotted
from etdeploy.farm.spec.matrix import Pair, names, pairs_of
from etdeploy.farm.spec.model import (
    Baseline,
    DeviceGroup,
    Farm,
    LoadedFarm,
    Reports,
    Window,
    read_hosts,
)
from etdeploy.farm.spec.written import (
    NAME,
    FarmFile,
    GateValues,
    Group,
    Matrix,
    RecipeEntry,
    ReportFiles,
    WindowTimes,
    results_problem,
)
from etdeploy.recipe.document import FileKind, KeyPath, SourceLocation, read_document
from etdeploy.recipe.find import find_recipe
from etdeploy.recipe.load import LoadedRecipe, Override, load_recipe
from etdeploy.recipe.problems import found_in
from etdeploy.targets.platforms import TARGETS

DEFAULT = "farm.yaml"
_KIND = FileKind(
    "a farm.yaml",
    "recipes",
    "Start with one that works here: etdeploy farm init\nThe smallest one is:\n"
    f"recipes: [{DEFAULT_RECIPE}]\ndevices: {{phones: {{kind: android}}}}",
)
# What `Farm` has as it is written.
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
    """Raises UsageError for a path at which there is no file."""
    inside = path / DEFAULT
    if path.is_dir():
        remedy = f"Name the file in it: {quoted(inside)}" if inside.is_file() else None
        start = f"Write one there: etdeploy farm init {quoted(path)}"
        raise UsageError("a farm.yaml is a file, and this is a folder", place=str(path),
                         remedy=remedy or start)  # fmt: skip
    if path.exists():
        if what := not_regular(path):
            raise UsageError(f"a farm.yaml is a file, and this is {what}", place=str(path))
        return
    folder = path.parent
    others = {p.stem: p for p in sorted(folder.glob("*.y*ml"))} if folder.is_dir() else {}
    near = get_close_matches(path.stem, others, n=1)
    remedy = f"Did you mean {quoted(others[near[0]])}?" if near else "Write one: etdeploy farm init"
    raise UsageError("there is no such file", place=str(path), remedy=remedy)


def _validated(data: dict[str, Any], findings: Findings) -> FarmFile:
    """The file without what has a wrong type, so that the rest is read on."""
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
        # What was left out was needed.
        sections = {str(each["loc"][0]) for each in error.errors()}
        findings.of_types((), [(name,) for name in sections])
        return FarmFile.model_validate({k: v for k, v in left.items() if k not in sections})


_ON_END_EXAMPLE = (
    "write on_end: [PROGRAM, ARGUMENT]; docs/farm.md has commands for a webhook and an e-mail"
)


def _left_out(data: dict[str, Any], location: KeyPath) -> KeyPath:
    """Removes the key that is wrong, or the nearest around it that is in a mapping."""
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
    # What could not be read may be what an entry of the matrix is about.
    unread = any(findings.is_bad((key,)) for key in ("recipes", "devices", "matrix"))
    whole = len(recipes) == len(written.recipes) and not unread
    pairs = _pairs(written.matrix, list(recipes), list(written.devices), findings) if whole else ()
    return {
        **{key: getattr(written, key) for key in _PLAIN},
        "groups": groups,
        "pairs": pairs,
        "window": _window(written.window, findings),
        "gates": _gates(written.gates, findings),
        "baseline": Baseline(written.baseline),
        "results": results,
        "reports": read_reports(written.reports, results, findings),
        "on_end": _command(written.on_end, findings),
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
    """The pairs; an entry that is about none is a slip."""
    if not labels or not groups:
        return ()
    everything = [(label, group) for label in labels for group in groups]
    for key in ("exclude", "include"):
        for number, entry in enumerate(getattr(matrix, key)):
            keys = ("matrix", key, number)
            if entry.recipe is None and entry.device is None:
                findings.add(keys, "the entry names neither a recipe nor a device")
            elif not any(names(entry, pair) for pair in everything):
                findings.add(keys, *_about_nothing(entry.recipe, entry.device, labels, groups))
    pairs = pairs_of(matrix, labels, groups)
    if not pairs:
        findings.add(("matrix",), "the matrix is empty: no recipe is measured on any device")
    return pairs


def _about_nothing(
    recipe: str | None, device: str | None, labels: Sequence[str], groups: Sequence[str]
) -> tuple[str, str]:
    """What an entry of the matrix names that there is not, and what is meant."""
    from etdeploy.farm.spec.conditions import matches

    for what, name, known in (("recipe", recipe, labels), ("group of devices", device, groups)):
        if name and not any(matches(each, name) for each in known):
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            return f"there is no {what} {name!r}", hint
    raise AssertionError("the entry is about a pair")


def _window(written: WindowTimes | None, findings: Findings) -> Window | None:
    if written is None:
        return None
    minutes = {}
    for key, text in (("from", written.from_), ("until", written.until)):
        found = minutes_of(text) if text is not None else None
        if findings.is_bad(("window", key)):
            continue
        if text is None:
            findings.add(("window",), f"window.{key} is missing", f'e.g. {key}: "22:00"')
        elif found is None:
            findings.add(("window", key), f"window.{key}: {text!r} is not a time", 'e.g. "22:00"')
        else:
            minutes[key] = found
    if written.timezone and (problem := zone_problem(written.timezone)):
        findings.add(("window", "timezone"), f"window.timezone: {problem[0]}", problem[1])
    if len(minutes) < 2:
        return None
    if minutes["from"] == minutes["until"]:
        hint = 'for any time leave window out; for whole days: from "00:00" until "24:00"'
        findings.add(("window", "until"), "the window has no length", hint)
    return Window(
        from_minute=minutes["from"], until_minute=minutes["until"], timezone=written.timezone
    )


def _gates(written: GateValues, findings: Findings) -> Gates:
    free = None
    try:
        free = parse_size(str(written.free)) if written.free is not None else None
    except UsageError as error:
        findings.add(("gates", "free"), f"gates.free: {error.message}", "e.g. 2 GB")
    return Gates(
        battery_percent=written.battery_percent,
        temperature_celsius=written.temperature_celsius,
        free_bytes=free,
        wait_s=written.wait_s,
    )


@dataclass(frozen=True)
class Entries:
    """What a farm measures.

    Attributes:
        recipes: By label.
        apps: Apps that are built already, by the label of their recipe.
    """

    recipes: dict[str, LoadedRecipe] = field(default_factory=dict)
    apps: dict[str, Path] = field(default_factory=dict)


def load_entries(entries: Sequence[RecipeEntry], findings: Findings) -> Entries:
    """Loads every recipe; what is wrong with one is noted, and keeps no other from being read."""
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
    """The app's archive; None, with a note, for what is none."""
    path = findings.path(keys, text)
    if path is None:
        return None
    if what := not_regular(path) if path.exists() else "missing":
        findings.add(keys, f"{dotted(keys)}: the file {path} is {what}", _BUILD)
    elif path.suffix.lower() != _ARCHIVE:
        findings.add(keys, f"{dotted(keys)} takes an {_ARCHIVE}, and {path} is none", _BUILD)
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


NAMED = "named"
"""The pool of devices that groups name and no list finds."""


def read_groups(written: Mapping[str, Group], findings: Findings) -> dict[str, DeviceGroup]:
    """The groups that can be read."""
    found = {}
    for name, group in written.items():
        keys = ("devices", name)
        require_name(keys, findings)
        try:
            found[name] = group_of(group)
        except ConditionError as error:
            if not error.key and findings.is_bad(keys):
                continue
            where = (*keys, error.key) if error.key else keys
            findings.add(where, f"{dotted(keys)}: {error}", error.hint)
        _require_known((*keys, "kind"), group.kind, device_names(), findings)
        _require_known((*keys, "target"), group.target, TARGETS, findings)
        if group.name and not is_pattern(group.name) and group.name not in device_names():
            _require_device((*keys, "name"), group.name, findings)
    return found


def read_pools(
    written: Mapping[str, Sequence[str]],
    groups: Mapping[str, Group],
    alone: bool,
    findings: Findings,
) -> dict[str, tuple[str, ...]]:
    """The pools of this machine's devices, also those that groups name and no list finds."""
    for name, devices in written.items():
        require_name(("pools", name), findings)
        for number, device in enumerate(devices):
            if device not in device_names():
                _require_device(("pools", name, number), device, findings)
    for name, group in groups.items():
        if alone and group.pool and not findings.is_bad(("pools",)):
            _require_known(("devices", name, "pool"), group.pool, written, findings)
    pools = {name: tuple(devices) for name, devices in written.items()}
    named = [g.name for g in groups.values() if alone and g.name and _is_unlisted(g.name)]
    return {**pools, NAMED: (*pools.get(NAMED, ()), *named)} if named else pools


def _is_unlisted(name: str) -> bool:
    """Whether a device is found by its name alone: no list has boards, and those on a network."""
    if is_pattern(name):
        return False
    try:
        kind, spec = parse_spec(name)
    except EtdeployError:
        return False
    return kind.address == "required" or spec.address is not None


def require_name(keys: KeyPath, findings: Findings) -> None:
    """Notes a name of the user's own that reports and the command line could not show."""
    if not fullmatch(NAME, str(keys[-1])):
        findings.add(
            keys,
            f"{keys[-1]!r} cannot be a name in {keys[0]}",
            "use letters, digits, dot, dash and underscore",
        )


def _require_known(
    keys: KeyPath, value: str | None, known: Collection[str], findings: Findings
) -> None:
    if value is None or any(matches(each, value) for each in known):
        return
    near = get_close_matches(value, known, n=1)
    there = ", ".join(known) or "none"
    findings.add(
        keys,
        f"{dotted(keys)}: there is no {keys[-1]} {value!r}",
        f"did you mean {near[0]!r}?" if near else f"there are: {there}",
    )


def _require_device(keys: KeyPath, name: str, findings: Findings) -> None:
    try:
        parse_spec(name)
    except EtdeployError as error:
        findings.add(keys, f"{dotted(keys)}: {error.message}", error.remedy)


_STORE = ("store",)
_ON_END = ("on_end",)


def read_results(written: FarmFile, findings: Findings) -> Path:
    """The folder for records, absolute."""
    folder = findings.path(("results",), written.results)
    if folder is None:
        return findings.folder
    if problem := results_problem(folder, findings.folder):
        findings.add(("results",), f"results: {folder} {problem}", "name a folder of its own")
    return folder


def read_reports(written: ReportFiles, results: Path, findings: Findings) -> Reports:
    """The files of reports and the folder of the dashboard, absolute; each is another one."""
    found: dict[str, Path] = {}
    for key, text in written.model_dump(exclude_none=True).items():
        keys = ("reports", key)
        path = findings.path(keys, text)
        if path is None:
            continue
        if same := next((other for other in found if found[other] == path), None):
            findings.add(keys, f"reports.{key}: this is the file of reports.{same}, too")
        wants_folder = key == "dashboard"
        if path.exists() and path.is_dir() != wants_folder:
            takes, is_now = ("folder", "file") if wants_folder else ("file", "folder")
            example = "name another" if wants_folder else f"{text.rstrip('/')}/night.{_SUFFIX[key]}"
            findings.add(keys, f"reports.{key} takes a {takes}, and {path} is a {is_now}", example)
        elif not path.parent.is_dir() and path.parent != results:  # a night makes that one
            findings.add(
                keys, f"reports.{key}: the folder {path.parent} does not exist",
                f"create it, or name a {'folder' if wants_folder else 'file'} in {results.name}/",
            )  # fmt: skip
        found[key] = path
    return Reports(**found)


_SUFFIX = {"html": "html", "markdown": "md", "junit": "xml"}


def _command(words: Sequence[str], findings: Findings) -> tuple[str, ...]:
    """The command, with an absolute path for a program that is named by a path.

    A program that does not exist would otherwise be noticed at the end of the night.
    """
    if not words:
        return ()
    program, *arguments = words
    path = findings.path(_ON_END, program) if "/" in program else None
    if shutil.which(path or program) is None:
        is_line = " " in program
        hint = "the first word is the program" if is_line else "install it, or write its path"
        findings.add((*_ON_END, 0), f"on_end: there is no program {program!r}", hint)
    return str(path or program), *arguments


def read_store(written: str | None, findings: Findings) -> str | None:
    """The history as `--store` takes it, a path made absolute."""
    from etdeploy.history.place import OFF, place_of

    if written is None:
        return None
    if written.lower() == OFF:
        findings.add(
            _STORE, "store: a farm keeps its nights in the history", "leave it out, or name one"
        )
        return None
    if "://" not in written:
        path = findings.path(_STORE, written)
        return str(path) if path else None
    try:
        place_of(written)
    except StoreError as error:
        findings.add(_STORE, f"store: {error.message}", "e.g. postgresql://USER@HOST/DATABASE")
    return written
