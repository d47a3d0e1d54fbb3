"""farm.yaml as it is written: its sections and keys, before anything is derived from them.

The docstring below each key is its documentation: the JSON Schema and docs/farm-yaml.md are
generated from it. `etdeploy.farm.spec.load` makes the values of `etdeploy.farm.spec.model` of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import find_disk_full, not_regular, write_atomic, write_if_changed
from etdeploy.core.files.delivery import require_writable
from etdeploy.recipe.choice import Takes
from etdeploy.recipe.reference import described_schema, section_table
from etdeploy.recipe.sections.base import Section, section_of

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_MOST_REPEATS = 1000
_DAY_S = 86_400
Words = Annotated[tuple[str, ...], Field(strict=False), Takes("a list of words", words=())]
Number = Annotated[
    Annotated[int, Field(ge=1, le=4096)] | str | None,
    Takes("a number, or a comparison like '>=8'", ()),
]
Size = Annotated[
    Annotated[int, Field(ge=0)] | str | None, Takes("a size like 2 GB, or a number of bytes", ())
]


class RecipeEntry(Section):
    """A recipe of the farm; a name or path alone is short for `{recipe: NAME}`."""

    recipe: str = Field(min_length=1)
    """A bundled recipe by name, `PACKAGE/NAME`, or a YAML file relative to this one."""

    set: Words = ()
    """Values that are changed in it, each as `key.path=value`, like `--set`. Paths in them are
    relative to this file."""

    label: str | None = Field(default=None, pattern=NAME)
    """Its name in the matrix and in reports; by default the recipe's. Needed where two have the
    same."""

    app: str | None = Field(default=None, min_length=1)
    """An `.ipa` that was built from a project of `etdeploy app`, for iPhones; without one, a night
    builds it, which takes a Mac. Other devices do not use it."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, data: Any) -> Any:
        return {"recipe": data} if isinstance(data, str) else data


class Group(Section):
    """Devices by their properties; a device has to have all of them.

    Words are compared without regard to case, with `*` and `?` as wildcards.
    """

    name: str | None = None
    """As `--device` takes it: `android:SERIAL`, `ssh:pi@board`, `host`."""

    kind: str | None = None
    """`host`, `qemu`, `android`, `ssh`, `ios`, or one of another package."""

    model: str | None = None
    """As `etdeploy devices` shows it."""

    manufacturer: str | None = None
    """As the device reports it."""

    soc: str | None = None
    """The system on a chip, as `etdeploy devices` shows it."""

    os: str | None = None
    """The system's name, version or both: `Android`, `"14"`, `">=14"`, `"Android >=13, <16"`.
    Versions are compared number by number."""

    target: str | None = None
    """The target that is built for it: `android-arm64`, `linux-aarch64`..."""

    abi: str | None = None
    """The instruction set, by Android's name: `arm64-v8a`."""

    pool: str | None = None
    """One of `pools`, or a pool that a host gives its devices."""

    host: str | None = None
    """The machine that it is plugged into."""

    cpu_count: Number = None
    """Logical processors: `8` or `">=8"`."""

    memory: str | None = None
    """As the system reports it, with a unit: `">=7 GB"`. That is less than the device is sold
    with."""

    take: int | None = Field(default=None, ge=1, le=100_000)
    """How many of the devices that match are measured in each repeat, whichever are free; by
    default all of them."""


class MatrixEntry(Section):
    """Pairs of recipes and groups; a key that is left out stands for all."""

    recipe: str | None = Field(default=None, min_length=1)
    """The label of a recipe, with `*` and `?` as wildcards."""

    device: str | None = Field(default=None, min_length=1)
    """The name of an entry of `devices`, likewise."""


Entries = Annotated[tuple[MatrixEntry, ...], Field(strict=False)]


class Matrix(Section):
    """Which recipe is measured on which group."""

    default: Literal["all", "none"] = "all"
    """Where `include` and `exclude` start from: every recipe on every group, or nothing."""

    exclude: Entries = ()
    """Pairs that are removed."""

    include: Entries = ()
    """Pairs that are added, also removed ones."""


class WindowTimes(Section):
    """When measurements may begin."""

    from_: Annotated[str | None, Takes('a time in quotes, like "22:00"', ())] = Field(
        default=None, alias="from"
    )
    """A time of the day, in quotes: `"22:00"`."""

    until: Annotated[str | None, Takes('a time in quotes, like "06:00"', ())] = None
    """The same; an earlier one is of the next day."""

    timezone: str | None = None
    """A name of the IANA database, like `Europe/Berlin`; by default this machine's."""


class GateValues(Section):
    """Conditions that a device has to meet before it is measured."""

    battery_percent: int | None = Field(default=None, ge=1, le=100)
    """The least charge of the battery."""

    temperature_celsius: float | None = Field(default=None, gt=0, le=120)
    """The highest temperature, of the battery, or of the warmest sensor without one."""

    free: Size = None
    """The least free storage, like `2 GB`."""

    wait_s: float = Field(default=600.0, ge=0, le=_DAY_S)
    """How long to wait before the measurement is postponed."""


class ReportFiles(Section):
    """Files that are written at the end of a night, relative to this one."""

    html: str | None = Field(default=None, min_length=1)
    """The night as a page."""

    markdown: str | None = Field(default=None, min_length=1)
    """The night for a pull request or a GitHub step summary."""

    junit: str | None = Field(default=None, min_length=1)
    """The night as JUnit XML, for CI."""

    dashboard: str | None = Field(default=None, min_length=1)
    """A folder for the dashboard: pages of devices, nights and regressions."""


class Certificates(Section):
    """Certificates between hosts, as PEM files relative to this one."""

    ca: str = Field(min_length=1)
    """Certificate of the authority that both sides trust."""

    cert: str = Field(min_length=1)
    """Certificate of this host."""

    key: str = Field(min_length=1)
    """The certificate's private key."""

    crl: str | None = Field(default=None, min_length=1)
    """The authority's list of revoked certificates, which is read again when it changes."""


class HostsSection(Section):
    """Several hosts; not needed for one."""

    listen: str = Field(min_length=1)
    """Address that workers connect to: `tls://ADDRESS:PORT`; `tcp://` is for this machine only."""

    tls: Certificates | None = None
    """Certificates, for `tls://`."""

    here: bool = True
    """Whether devices of this machine are measured."""


class FarmFile(Section):
    """A farm.yaml."""

    name: str | None = Field(default=None, pattern=NAME)
    """Name of the farm in reports and the history; by default the name of the file."""

    recipes: Annotated[tuple[RecipeEntry, ...], Field(strict=False)] = ()
    """The recipes that are measured."""

    devices: dict[str, Group] = Field(default_factory=dict)
    """Groups of devices that they are measured on, by names that you choose."""

    matrix: Matrix = Matrix()
    """Which recipe is measured on which group; by default every recipe on every group."""

    repeats: int = Field(default=3, ge=1, le=_MOST_REPEATS)
    """How often each pair is measured in a night."""

    spread: bool = True
    """Whether repeats are spread over the window, so that the spread between runs is known."""

    window: WindowTimes | None = None
    """When measurements may begin; by default at any time."""

    gates: GateValues = GateValues()
    """Conditions that a device has to meet before it is measured."""

    retries: int = Field(default=2, ge=0, le=20)
    """Further attempts after a failure."""

    stop_after: int = Field(default=3, ge=1, le=1000)
    """A recipe that failed on so many devices, and worked on none, is stopped for the night."""

    quarantine_after: int = Field(default=3, ge=1, le=1000)
    """A device on which so many attempts in a row failed is quarantined."""

    limit_s: float = Field(default=3600.0, gt=0, le=7 * _DAY_S)
    """Time limit of one attempt, in seconds."""

    baseline: Literal["all", "main", "last-good"] = "all"
    """Which earlier runs a night is judged by, as `etdeploy check --against` takes it."""

    max_slowdown_percent: float = Field(default=5.0, ge=0, le=1000)
    """How much worse a number may be, in percent."""

    results: str = Field(default="farm-results", min_length=1)
    """The folder for records, one folder in it for each night."""

    reports: ReportFiles = ReportFiles()
    """Files that are written at the end of a night."""

    on_end: Words = ()
    """A program and its arguments, started without a shell at the end of each night, with the
    summary as JSON on its standard input. It has 60 s."""

    store: str | None = Field(default=None, min_length=1)
    """The history, as `--store` takes it; by default that of `ETDEPLOY_STORE`."""

    hosts: HostsSection | None = None
    """Several hosts; not needed for one."""

    pools: dict[str, Words] = Field(default_factory=dict)
    """Names for sets of this machine's devices: `nightly: [android:R5CT20XYZ, host]`."""


MARK = ".etdeploy-farm"
_TEXT = "The results of a farm; etdeploy farm writes a folder here for each night.\n"
_IGNORE = ".gitignore"
_SHOWN = 3


def results_problem(folder: Path, farm: Path) -> str | None:
    """Why a folder cannot be used for a farm's results; None if it can."""
    if farm.resolve().is_relative_to(folder.resolve()):
        return "is or contains the folder of this file"
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not existing.is_dir():
            what = not_regular(existing) or "a file"
            return f"is {what}" if existing == folder else f"would be below {existing}, {what}"
        if existing != folder or (folder / MARK).exists():
            return None
        names = sorted(path.name for path in folder.iterdir() if path.name != _IGNORE)
    except OSError as error:
        return f"cannot be used: {error.strerror}"
    if not names:
        return None
    more = ", ..." if len(names) > _SHOWN else ""
    return f"contains files that no farm wrote: {', '.join(names[:_SHOWN])}{more}"


def prepare_results(folder: Path, farm: Path, option: str = "") -> None:
    """Create the folder for results and mark it, before a night writes there.

    Args:
        folder: Absolute.
        farm: The folder of farm.yaml.
        option: Of the command line that named the folder; empty where farm.yaml did.

    Raises:
        UsageError: The folder cannot be used for a farm's results, or cannot be written to.
        OSError: The disk is full.
    """
    problem = results_problem(folder, farm)
    if problem is None:
        try:
            require_writable(folder)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / MARK).exists():
                write_atomic(folder / MARK, _TEXT)
                if not (folder / _IGNORE).exists():
                    # Else the recipes' commits would count as changed from the second night on.
                    write_atomic(folder / _IGNORE, "*\n")
        except OSError as error:
            if find_disk_full(error):
                raise
            problem = f"cannot be written to: {error.strerror or error}"
    if problem:
        where = f"{option} FOLDER" if option else "in farm.yaml, results: FOLDER"
        raise UsageError(
            f"the folder for results {problem}",
            place=str(folder),
            remedy=f"Name an empty or new folder: {where}",
        )


_INTRODUCTION = f"""# farm.yaml

<!-- Generated from etdeploy/farm/spec/written.py by `doit run reference`; edit there. -->

[farm.md](farm.md) describes the farm. The smallest farm.yaml:

```yaml
recipes: [{DEFAULT_RECIPE}]
devices: {{phones: {{kind: android}}}}
```

Everything else has a default. `etdeploy farm init` writes one for the devices that are plugged in,
and `etdeploy farm plan` reports every mistake in it with its line.

* An empty value (`null`) means the default.
* Paths are relative to the file.
* Times need quotes: YAML reads `22:00` as the number 1320.
* `etdeploy farm schema > farm.schema.json` gives editors completion: for the YAML language server,
  put `# yaml-language-server: $schema=farm.schema.json` on the first line of your farm.yaml.
"""
# Sections in lists and mappings, and the key that each is below.
_ENTRIES: dict[type[BaseModel], str] = {
    RecipeEntry: "recipes[]",
    Group: "devices.NAME",
}


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a farm.yaml; descriptions are the keys' docstrings."""
    content = described_schema(FarmFile)
    content["required"] = ["recipes", "devices"]
    # A recipe alone is its name.
    content["properties"]["recipes"]["items"] = {
        "anyOf": [{"type": "string"}, content["properties"]["recipes"]["items"]]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **content,
        "title": "etdeploy farm",
    }


def reference() -> str:
    """docs/farm-yaml.md as Markdown; it changes only when the models do."""
    return "\n".join([_INTRODUCTION, *_tables()])


def _tables() -> Iterator[str]:
    yield from section_table("Top level", FarmFile, "")
    for name, field in FarmFile.model_fields.items():
        model = section_of(field.annotation)
        if model is not None:
            shown = _ENTRIES.get(model, name)
            yield from section_table(f"`{shown}`", model, f"{shown}.")


def write_reference() -> None:
    """Writes docs/farm-yaml.md from the models."""
    write_if_changed(Path("docs/farm-yaml.md"), reference())
