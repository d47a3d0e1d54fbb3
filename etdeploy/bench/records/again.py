"""The command that measures again what a run measured."""

from __future__ import annotations

from pathlib import Path

from etdeploy.bench.records.find import RUN_ID, USUAL_OUTPUT
from etdeploy.bench.records.record import RecipeRecord, RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.commands import quoted
from etdeploy.core.hashing import sha256_file
from etdeploy.core.resources import resource_folder
from etdeploy.targets.platforms import TARGETS


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
