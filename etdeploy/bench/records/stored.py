"""Run records in their folders: find, read, and name them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from etdeploy.bench.records.record import SCHEMA_VERSION, RecipeRecord, RunRecord
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside, resource_folder
from etdeploy.core.hashing import sha256_file
from etdeploy.targets.platforms import TARGETS

RECORD_FILE = "record.json"


# Printed beside the keys by `run --json`, and no part of a record: it is true on one machine.
FOLDER_KEY = "folder"


_NO_SUCH_KIND = "union_tag_invalid"


_UPGRADE = "Read it with the etdeploy that wrote it, or a newer one: pip install --upgrade etdeploy"


_MEASURE_AGAIN = (
    "Read it with the etdeploy that wrote it, or measure again: etdeploy run --recipe RECIPE"
)


@dataclass(frozen=True)
class StoredRun:
    """A run record and the folder that it is in now.

    Attributes:
        folder: With the record and all files that it names.
        record: What is in it.
    """

    folder: Path
    record: RunRecord

    @property
    def record_path(self) -> Path:
        """The record's own file."""
        return self.folder / RECORD_FILE

    def path(self, name: str) -> Path | None:
        """Where one of the record's files is here; None for one that the record does not have.

        Raises:
            ValueError: A link leads out of the folder.
        """
        relative = self.record.files.get(name)
        return inside(self.folder, relative) if relative else None

    def printed(self) -> dict[str, Any]:
        """The record as `run --json` prints it, with the folder on this machine."""
        return {**self.record.model_dump(mode="json"), FOLDER_KEY: str(self.folder)}


def load_run(path: Path) -> StoredRun:
    """A record with its folder.

    Args:
        path: Of the folder, or of the record's file in it.

    Raises:
        UsageError: As for `load_record`.
    """
    file = path / RECORD_FILE if path.is_dir() else path
    return StoredRun(file.parent, load_record(file))


def load_record(path: Path) -> RunRecord:
    """Reads a run record."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the run record cannot be read: {error.strerror or error}", place=str(path)
        ) from error
    return parse_record(content, str(path))


def parse_record(text: str | bytes, place: str) -> RunRecord:
    """The same for the text of a record.

    Args:
        text: JSON.
        place: Where it is from, for messages.

    Raises:
        UsageError: It is not a run record, or has another version.
    """
    content = _content(text, place)
    version = content["schema_version"]
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"the run record has version {version}; this etdeploy reads version {SCHEMA_VERSION}",
            place=place,
            remedy=_UPGRADE if version > SCHEMA_VERSION else _MEASURE_AGAIN,
        )
    try:
        return RunRecord.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise _unreadable(place, error) from error


def is_readable(path: Path) -> bool:
    """Whether `load_record` can read it."""
    try:
        load_record(path)
    except UsageError:
        return False
    return True


def _content(text: str | bytes, place: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"this is not a run record: {error}", place=place) from error
    version = content.get("schema_version") if isinstance(content, dict) else None
    if type(version) is not int or version < 1:
        raise UsageError("this is not a run record: it has no schema_version", place=place)
    return {key: value for key, value in content.items() if key != FOLDER_KEY}


def _key(place: tuple[str | int, ...], problem: str) -> str:
    """The key as the record has it: pydantic names the kind of a workload beside it."""
    parts = [part for i, part in enumerate(place) if (i, place[0]) != (1, "workload")]
    return ".".join(map(str, [*parts, *(["kind"] if problem == _NO_SUCH_KIND else [])]))


def _unreadable(place: str, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    key = _key(first["loc"], first["type"])
    if first["type"] in ("extra_forbidden", "literal_error", _NO_SUCH_KIND):
        what = f"this etdeploy does not know the run record's value of {key}"
        return UsageError(what, place=place, remedy=_UPGRADE)
    return UsageError(f"the run record is not complete: {key}: {first['msg']}", place=place)


LAST = "last"


USUAL_OUTPUT = "etdeploy-out"
"""The folder for run records where nobody names one, in the working folder."""


# Of a run, originally the name of its folder: what `results_folder.run_id` gives now, and what it
# gave when it had fewer random bytes.
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9._-]+-[0-9a-f]{4}([0-9a-f]{4})?")


# Shorter ends of ids are more likely a mistake than meant.
_SHORTEST_END = 4


_SHOWN = 5


def find_run(text: str, output: Path) -> StoredRun:
    """The run that `text` names.

    Args:
        text: `last`, which is the newest run in `output`; the path of a run's folder or record;
            the id of a run in `output`, or the end of one, such as its 8 random digits.
        output: The folder for run records.

    Raises:
        UsageError: There is no such run, several fit, or its record cannot be read.
    """
    if text == LAST:
        return load_run(_newest(output))
    # An empty text, as of a variable that a script did not set, would be the working folder.
    return load_run((_path(text) if text else None) or _with_id(text, output))


def _path(text: str) -> Path | None:
    """The text as the path of a run; None where none is there."""
    path = Path(text)
    try:
        return path if path.is_file() or (path / RECORD_FILE).is_file() else None
    except (OSError, ValueError):  # too long for a name, or with a null character
        return None


def run_folders(output: Path) -> tuple[Path, ...]:
    """The folders with a run record in `output`, those named by an id first, the newest at the end.

    Folders that the user renamed stand before them, in the order of their names.
    """
    try:
        found = [path for path in output.iterdir() if (path / RECORD_FILE).is_file()]
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda path: (bool(RUN_ID.fullmatch(path.name)), path.name)))


def _newest(output: Path) -> Path:
    """By the time in the name: dates of files change when a folder is copied.

    Of two in the same second, such as those that took turns, the one whose record is newer.
    """
    folders = [path for path in run_folders(output) if RUN_ID.fullmatch(path.name)]
    if not folders:
        raise _nothing(LAST, output, run_folders(output))
    return max(folders, key=lambda path: (path.name.split("-")[0], _written(path)))


def _written(folder: Path) -> int:
    try:
        return (folder / RECORD_FILE).stat().st_mtime_ns
    except OSError:  # it was just removed
        return 0


def _with_id(text: str, output: Path) -> Path:
    folders = run_folders(output)
    if exact := [path for path in folders if path.name == text or _id_in(path) == text]:
        return exact[0]
    long_enough = len(text) >= _SHORTEST_END
    fitting = [path for path in folders if long_enough and _id_in(path).endswith(text)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(
            f"{len(fitting)} runs have an id that ends with {text!r}",
            place=str(output),
            remedy="Name one of them:\n" + _listed(fitting),
        )
    raise _nothing(text, output, folders)


def _id_in(folder: Path) -> str:
    """The id of the run in a folder; its name, unless the user renamed it."""
    if RUN_ID.fullmatch(folder.name):
        return folder.name
    try:
        found = json.loads((folder / RECORD_FILE).read_bytes())["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(found)


def _nothing(text: str, output: Path, folders: Sequence[Path]) -> UsageError:
    # Not Path.is_dir, which raises for a text that is too long for a name.
    if text != LAST and os.path.isdir(text):  # noqa: PTH112
        return _no_run_itself(Path(text))
    what = "there is no run" if text == LAST else f"there is no run {text!r}"
    if not folders:
        return UsageError(
            f"{what}: the output folder has no run record",
            place=str(output),
            remedy=f"Measure first: etdeploy run{_into(output)}\n"
            "or name the folder in which the runs are: export ETDEPLOY_OUTPUT_DIR=FOLDER",
        )
    near = get_close_matches(text, [path.name for path in folders], n=1)
    hint = f": did you mean {near[0]}?" if near else ""
    return UsageError(
        f"{what} in the output folder{hint}",
        place=str(output),
        remedy="Name a run by its id or its folder. The newest are:\n" + _listed(folders),
    )


def _into(output: Path) -> str:
    """The option that puts a run into a folder other than the usual one."""
    usual = output.absolute() == Path(USUAL_OUTPUT).absolute()
    return "" if usual else f" --output {quoted(output)}"


def _no_run_itself(folder: Path) -> UsageError:
    inside = run_folders(folder)
    return UsageError(
        f"this folder has no {RECORD_FILE}",
        place=str(folder),
        remedy="Name one of the runs in it:\n" + _listed(inside, folder) if inside else None,
    )


def _listed(folders: Sequence[Path], inside: Path | None = None) -> str:
    """The newest of them, one in each line, as a command takes them."""
    names = [quoted(inside / p.name if inside else p.name) for p in folders[-_SHOWN:]]
    more = len(folders) - len(names)
    return "\n".join([*names, *([f"and {more:,} older"] if more else [])])


def measure_again(run: StoredRun) -> str:
    """`etdeploy bench` with the recipe, the device and the output folder of a run.

    A record has the name of its recipe's file and not the folder, so for a recipe of the user's it
    works in that folder. What `--set` changed is not in the command.
    """
    record = run.record
    words = ["etdeploy bench --recipe", quoted(_name(record.recipe)), *_model(record.recipe)]
    words += ["--device", quoted(record.device.facts.name)]
    return " ".join([*words, *_target(record), *_output(run.folder)])


def _name(recipe: RecipeRecord) -> str:
    """The bundled recipe's name, where it is one, else the file's."""
    return Path(recipe.file).stem if _is_bundled(recipe) else recipe.file


def _is_bundled(recipe: RecipeRecord) -> bool:
    bundled = resource_folder("recipes") / Path(recipe.file).name
    return bundled.is_file() and recipe.files.get(recipe.file) == sha256_file(bundled)


def _model(recipe: RecipeRecord) -> list[str]:
    """The language model, which no bundled recipe names: an id of the hub, or a folder."""
    named = recipe.content.get("model", {}).get("hf")
    if named is None or not _is_bundled(recipe):
        return []
    folder = (resource_folder("recipes") / named).resolve()
    return ["--model", quoted(str(folder) if folder.is_dir() else named)]


def _target(record: RunRecord) -> list[str]:
    """The target, where it is not what the device gets by itself."""
    own, runner = TARGETS.get(record.device.facts.target), record.runner
    if own is None or runner.target == own.portable:
        return []
    name = f"{runner.target}-portable" if runner.portable else runner.target
    return [] if name == own.name else ["--target", name]


def _output(folder: Path) -> list[str]:
    """Where the run was put, if that is another folder than the usual one, and if it was put."""
    parent = folder.absolute().parent
    if not RUN_ID.fullmatch(folder.name) or parent == Path(USUAL_OUTPUT).absolute():
        return []
    return ["--output", quoted(parent)]
