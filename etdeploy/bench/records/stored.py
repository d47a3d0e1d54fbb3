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


# A key that only `run --json` prints, because it is true on this machine only.
FOLDER_KEY = "folder"


_NO_SUCH_KIND = "union_tag_invalid"


_UPGRADE = "Read it with the etdeploy that wrote it, or a newer one: pip install --upgrade etdeploy"


_MEASURE_AGAIN = (
    "Read it with the etdeploy that wrote it, or measure again: etdeploy run --recipe RECIPE"
)


@dataclass(frozen=True)
class StoredRun:
    """A run record with its folder."""

    folder: Path
    record: RunRecord

    @property
    def record_path(self) -> Path:
        """The record's own file."""
        return self.folder / RECORD_FILE

    def path(self, name: str) -> Path | None:
        """The path of one of the record's files; None if the record does not name it.

        Raises ValueError if a link leads out of the folder.
        """
        relative = self.record.files.get(name)
        return inside(self.folder, relative) if relative else None

    def printed(self) -> dict[str, Any]:
        """The record as `run --json` prints it, with the folder on this machine."""
        return {**self.record.model_dump(mode="json"), FOLDER_KEY: str(self.folder)}


def load_run(path: Path) -> StoredRun:
    """Load the run with a folder or record file; raises UsageError as `load_record`."""
    file = path / RECORD_FILE if path.is_dir() else path
    return StoredRun(file.parent, load_record(file))


def load_record(path: Path) -> RunRecord:
    """Load a run record; raises UsageError if it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the run record cannot be read: {error.strerror or error}", place=str(path)
        ) from error
    return parse_record(content, str(path))


def parse_record(text: str | bytes, place: str) -> RunRecord:
    """Parse the JSON of a run record; raises UsageError, with `place`, if it is not one."""
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
    """The key without the kind of the workload, which pydantic inserts."""
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
"""The default folder for run records, in the working folder."""


# The id of a run (`results_folder.run_id`), also with the fewer random bytes of earlier releases.
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9._-]+-[0-9a-f]{4}([0-9a-f]{4})?")


# Shorter ends of ids are probably mistakes.
_SHORTEST_END = 4


_SHOWN = 5


def find_run(text: str, output: Path) -> StoredRun:
    """Return the run that `text` names; raises UsageError if there is not exactly one.

    `text` is `last`, which is the newest run in `output`; the path of a run's folder or record;
    the id of a run in `output`, or the end of one, such as its 8 random digits.
    """
    if text == LAST:
        return load_run(_newest(output))
    # An empty text, for example of an unset variable, would be the working folder.
    return load_run((_path(text) if text else None) or _with_id(text, output))


def _path(text: str) -> Path | None:
    """The text as the path of a run; None if there is no run."""
    path = Path(text)
    try:
        return path if path.is_file() or (path / RECORD_FILE).is_file() else None
    except (OSError, ValueError):  # too long for a name, or with a null character
        return None


def run_folders(output: Path) -> tuple[Path, ...]:
    """The folders with a run record, sorted: renamed ones by name, then the others by time."""
    try:
        found = [path for path in output.iterdir() if (path / RECORD_FILE).is_file()]
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda path: (bool(RUN_ID.fullmatch(path.name)), path.name)))


def _newest(output: Path) -> Path:
    """The newest by the time in its name, since copying changes the dates of files.

    Of two in the same second, such as interleaved ones, it is the one with the newer record.
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
    """The id of the run in a folder, which the user may have renamed."""
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
    """The newest folders, one in each line, quoted for a command."""
    names = [quoted(inside / p.name if inside else p.name) for p in folders[-_SHOWN:]]
    more = len(folders) - len(names)
    return "\n".join([*names, *([f"and {more:,} older"] if more else [])])


def measure_again(run: StoredRun) -> str:
    """The `etdeploy bench` command with the recipe, device and output folder of a run.

    A record has only the name of the recipe's file, so the command works in the recipe's folder.
    It does not have the values of `--set`.
    """
    record = run.record
    words = ["etdeploy bench --recipe", quoted(_name(record.recipe)), *_model(record.recipe)]
    words += ["--device", quoted(record.device.facts.name)]
    return " ".join([*words, *_target(record), *_output(run.folder)])


def _name(recipe: RecipeRecord) -> str:
    """The name of a bundled recipe, or the file's name."""
    return Path(recipe.file).stem if _is_bundled(recipe) else recipe.file


def _is_bundled(recipe: RecipeRecord) -> bool:
    bundled = resource_folder("recipes") / Path(recipe.file).name
    return bundled.is_file() and recipe.files.get(recipe.file) == sha256_file(bundled)


def _model(recipe: RecipeRecord) -> list[str]:
    """The option for the language model, which bundled recipes do not name."""
    model = recipe.content.get("model", {})
    named = model.get("hf") or model.get("timm") or model.get("gguf")
    if named is None or not _is_bundled(recipe):
        return []
    path = (resource_folder("recipes") / named).resolve()
    return ["--model", quoted(str(path) if path.exists() else named)]


def _target(record: RunRecord) -> list[str]:
    """The option for the target, unless it is the device's default."""
    own, runner = TARGETS.get(record.device.facts.target), record.runner
    if own is None or runner.target == own.portable:
        return []
    name = f"{runner.target}-portable" if runner.portable else runner.target
    return [] if name == own.name else ["--target", name]


def _output(folder: Path) -> list[str]:
    """The option for the output folder, unless it is the default."""
    parent = folder.absolute().parent
    if not RUN_ID.fullmatch(folder.name) or parent == Path(USUAL_OUTPUT).absolute():
        return []
    return ["--output", quoted(parent)]
