"""etdeploy lock and etdeploy verify."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import LockError, UsageError
from etdeploy.graph.job import StepName
from etdeploy.graph.options import JobOptions, job_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from etdeploy.core.files.delivery import ResultFile
    from etdeploy.graph.job import Job
    from etdeploy.graph.lockfile import LockDifference, LockedRecipe, LockFile

_SUFFIX = ".lock"
_DIGITS = 12


@click.command()
@options("recipe", "set", "model", "text", "image", "audio", "context", "device", "target")
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The lock file.  [default: NAME.lock beside the recipe; of a bundled recipe, here]",
)
@options("json", "quiet")
def lock(path: Path | None, as_json: bool, **values: Any) -> None:
    """Record what a deployment is made from: for `etdeploy verify`.

    Exports the recipe, unless that is in the cache, and writes the values of the recipe, digests of
    the model's files and of the program, the versions of the tools and the plan for the device.
    With --target, no device is contacted.
    """
    from etdeploy.graph.lockfile import locked_recipe

    named = job_options(needs_device=False, **values)
    place = path or _beside(named)
    _require_same(place, named)
    file = _lock_file()
    file.require_free(place)
    recipe = locked_recipe(named.recipes[0], named.overrides, place.resolve().parent)
    found = _locked_now(named, recipe, place.resolve().parent)
    final = file.write(found.model_dump_json(indent=2) + "\n", place)
    if as_json:
        console.result_json({"path": str(final), **found.model_dump(mode="json")})
        return
    console.result(
        f"\n{place}: {console.count(len(found.files), 'file')} of the model, program "
        f"{found.program['program.pte'][:_DIGITS]} ({console.size(found.program_bytes)}), "
        f"plan for {found.plan['target']}"
    )


@click.command()
@click.argument("path", type=click.Path(path_type=Path), metavar="FILE")
@options("json", "quiet")
def verify(path: Path, as_json: bool, quiet: bool) -> None:
    """Export a locked recipe again, apart from the cache, and compare it with its lock file.

    Exit code 11 says that the program or the plan is not the locked one; the table shows what has
    changed.
    """
    from etdeploy.graph.lockfile import (
        differences,
        is_reproduced,
        overrides_of,
        read_lock,
        recipe_name_of,
    )
    from etdeploy.recipe.load import load_recipe

    locked, folder = read_lock(path), path.resolve().parent
    named = JobOptions(
        recipes=(recipe_name_of(locked.recipe, folder),),
        overrides=overrides_of(locked.recipe, folder),
        devices=(locked.device,),
        target=locked.target,
        quiet=quiet,
    )
    if (name := load_recipe(named.recipes[0], named.overrides).name) != locked.name:
        raise UsageError(
            _of_another(locked.name, name),
            place=str(path),
            remedy=f"Write the lock file of {name}: {_command(locked, path, name + _SUFFIX)}",
        )
    now = _locked_now(named, locked.recipe, folder, again=True)
    found = differences(locked, now)
    reproduced = is_reproduced(found)
    if as_json:
        shown = [each.model_dump(mode="json") for each in found]
        console.result_json({"reproduced": reproduced, "differences": shown})
    elif found:
        console.result("\n" + _table(found))
    if reproduced:
        console.message(_verdict(locked, found))
        return
    raise LockError(
        _summary(found),
        place=str(path),
        remedy="Restore what the table names, or lock the present state:\n"
        + _command(locked, path),
    )


def _lock_file() -> ResultFile:
    from etdeploy.core.files.delivery import ResultFile, begins_with
    from etdeploy.graph.lockfile import FIRST_KEY

    return ResultFile("lock file", "a lock file", begins_with(FIRST_KEY), "recipe.lock")


def _beside(named: JobOptions) -> Path:
    [given] = named.recipes
    path = Path(given)
    return path.with_suffix(_SUFFIX) if path.is_file() else Path(f"{path.name}{_SUFFIX}")


def _require_same(path: Path, named: JobOptions) -> None:
    """Raise UsageError for a lock file of another recipe, which is not replaced by mistake."""
    from etdeploy.graph.lockfile import read_lock
    from etdeploy.recipe.load import load_recipe

    if not path.is_file() or not _is_lock(path):
        return  # another file is refused when the lock file is written
    locked, name = read_lock(path).name, load_recipe(named.recipes[0], named.overrides).name
    if locked != name:
        raise UsageError(
            _of_another(locked, name),
            place=str(path),
            remedy=f"Name another file: --output {quoted(name + _SUFFIX)}",
        )


def _is_lock(path: Path) -> bool:
    with path.open("rb") as stream:
        return _lock_file().is_own(stream)


def _of_another(locked: str, name: str) -> str:
    return f"this is the lock file of the recipe {locked}, not of {name}"


def _command(locked: LockFile, path: Path, output: str | None = None) -> str:
    """Return the command that locks the same recipe, run where its paths are relative to."""
    recipe, folder = locked.recipe, path.resolve().parent
    there = (folder / recipe.working_folder).resolve()
    named, file = folder / recipe.named, folder / (output or path.name)
    words = ["etdeploy", "lock", "--recipe"]
    words.append(os.path.relpath(named, there) if named.is_file() else recipe.named)
    for text in recipe.overrides:
        words += [text] if text.startswith("--") else ["--set", text]
    words += ["--target", locked.target] if locked.target else ["--device", str(locked.device)]
    command = shlex.join([*words, "--output", os.path.relpath(file, there)])
    return command if there == Path.cwd() else f"cd {quoted(there)} && {command}"


def _locked_now(
    named: JobOptions, recipe: LockedRecipe, folder: Path, *, again: bool = False
) -> LockFile:
    """Return the lock file of what is here now; with `again`, of another export."""
    from etdeploy.graph.invocation import open_named, run_recipe
    from etdeploy.graph.job import load_program
    from etdeploy.graph.lockfile import export_apart, lock_of
    from etdeploy.graph.resolve import resolve

    def locked(job: Job, program: Path) -> LockFile:
        return lock_of(
            resolve(job), program, recipe, folder, device=named.devices[0], target=named.target
        )

    if not again:
        with run_recipe(named, StepName.EXPORT) as job:
            exported, _ = load_program(job)
            return locked(job, Path(exported.folder))
    with open_named(named) as members, console.TaskDisplay(quiet=named.quiet) as display:
        job = members.all[0].require_job()
        with (
            console.lazy_task(display, StepName.EXPORT, "exported again") as progress,
            export_apart(job, progress) as program,
        ):
            return locked(job, program)


def _table(found: Sequence[LockDifference]) -> str:
    rows = [(each.part, each.name, _short(each.locked), _short(each.now)) for each in found]
    return console.table(("part", "what", "locked", "now"), rows, width=console.width())


def _short(value: str | None) -> str:
    """The first digits of a digest; a dash for what is missing."""
    if value is None:
        return "-"
    is_digest = len(value) == 64 and set(value) <= set("0123456789abcdef")
    return value[:_DIGITS] if is_digest else value


def _verdict(locked: LockFile, found: Sequence[LockDifference]) -> str:
    same = f"reproduced: {console.count(len(locked.program), 'file')} of the program and the plan"
    return f"{same} are as locked" + (
        f"; {console.count(len(found), 'other value')} changed, without effect" if found else ""
    )


def _summary(found: Sequence[LockDifference]) -> str:
    changed = [each.name for each in found if each.part == "program"]
    plan = [each.name for each in found if each.part == "plan"]
    causes = [each.name for each in found if each.part not in ("program", "plan")]
    parts = [
        f"of the {part}, {console.listed(names, counts=True)} changed"
        for part, names in (("program", changed), ("plan", plan))
        if names
    ]
    why = (
        f"{console.listed(causes)} changed, too"
        if causes
        else "recipe, files and versions are the locked ones: another processor may round "
        "otherwise, or the model's code is not deterministic"
    )
    return f"{' and '.join(parts)}; {why}"
