"""Lock files: everything that decides a program and its plan, with digests, and what has changed.

`etdeploy lock` writes one. `etdeploy verify` exports the same recipe again, apart from the cache,
and compares what it finds with the file. Paths are relative to the lock file's folder, so that the
file is the same on every machine that has the recipe, the model and the lock file in one tree.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from etdeploy import __version__
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import PACKAGE, folder_files, not_regular, working_folder
from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import Progress, Value, flattened
from etdeploy.export.cache import ExportContext, tool_versions
from etdeploy.export.run import export_program
from etdeploy.graph.job import Job, StepName
from etdeploy.graph.resolve import Resolved, export_spec_of
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import (
    ETRECORD_FILE,
    EXPORT_INFO,
    PROGRAM_FILE,
    PROGRAM_INFO,
    load_provenance,
)
from etdeploy.program.model import Program
from etdeploy.recipe.load import LoadedRecipe, Override, Overrides
from etdeploy.recipe.sections.benchmark import DRAFT

# Begins the text of every lock file; `ResultFile` knows one by it.
FIRST_KEY = '{\n  "etdeploy_lock":'
# Has times and absolute paths, or follows from the program.
_NOT_LOCKED = (EXPORT_INFO, PROGRAM_INFO, ETRECORD_FILE)
_RECIPES = (".yaml", ".yml")
# Folders that are elsewhere on another machine; the inner one first.
_ROOTS = {"etdeploy": PACKAGE, "site-packages": Path(sysconfig.get_path("purelib"))}

Part = Literal["recipe", "files", "commit", "versions", "program", "plan"]


class LockedRecipe(Value):
    """The recipe as it is named, and its values.

    Attributes:
        named: The bundled recipe, or the file.
        overrides: As `--set` and the other options gave them.
        working_folder: What paths in the overrides are relative to.
        values: Of all keys.
    """

    named: str
    overrides: tuple[str, ...] = ()
    working_folder: str = "."
    values: dict[str, Any] = {}


class LockFile(Value):
    """A locked deployment.

    Attributes:
        etdeploy_lock: The version of this form.
        etdeploy: The release that wrote it.
        device, target: Which of the two was named, for the plan.
        commit: Of models from the Hugging Face hub.
        files: SHA-256 of the files that the program was made from, and of a draft.
        versions: Of what is installed to export it.
        program: SHA-256 of the files of the program folder, but not of reports about the export.
        program_bytes: Size of the `.pte`.
        plan: The provider, components and CMake options of the runner, by name.
    """

    etdeploy_lock: Literal[1] = 1
    etdeploy: str = __version__
    name: str
    recipe: LockedRecipe
    device: str | None = None
    target: str | None = None
    commit: str | None = None
    files: dict[str, str] = {}
    versions: dict[str, str] = {}
    program: dict[str, str] = {}
    program_bytes: int = 0
    plan: dict[str, str] = {}


class LockDifference(Value):
    """Something that is not as it was locked; None where it is missing."""

    part: Part
    name: str
    locked: str | None
    now: str | None


def read_lock(path: Path) -> LockFile:
    """Reads a lock file.

    Raises:
        UsageError: It cannot be read, or is something else.
    """
    try:
        if what := not_regular(path):
            raise UsageError(f"a lock file is needed, and this is {what}", place=str(path))
        return LockFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the lock file cannot be read: {error.strerror or error}",
            place=str(path),
            remedy="Write it first: etdeploy lock --recipe RECIPE",
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"this is not a lock file of this release: {where or 'the file'}: {first['msg']}",
            place=str(path),
            remedy="Remove it, then write it again: etdeploy lock --recipe RECIPE --output FILE",
        ) from error


def lock_of(
    resolved: Resolved,
    program: Path,
    recipe: LockedRecipe,
    folder: Path,
    *,
    device: str | None,
    target: str | None,
) -> LockFile:
    """The lock file of an exported program.

    Args:
        resolved: The job, with its plan from the program.
        program: The program folder.
        recipe: How the recipe was named.
        folder: The lock file's, which paths are relative to.
        device: As on the command line.
        target: There, too.
    """
    situation = ExportContext.now(resolved.export_spec, resolved.job.workspace)
    made = load_provenance(program)
    tools = tool_versions(resolved.export_spec)
    names = (name for name in folder_files(program) if not name.startswith("."))
    draft = resolved.draft
    drafts = {str(path): sha256_file(path) for path in (draft.path, *draft.data)} if draft else {}
    files = {**situation.named_digests(), **made.code_files, **drafts}
    return LockFile(
        name=resolved.job.loaded.name,
        recipe=recipe.model_copy(update={"values": recipe_values(resolved.job.loaded, folder)}),
        device=device,
        target=target,
        commit=situation.commit,
        files={portable_path(path, folder): digest for path, digest in sorted(files.items())},
        versions={name: found for name, found in tools.items() if found},
        program={n: sha256_file(program / n) for n in sorted(names) if n not in _NOT_LOCKED},
        program_bytes=(program / PROGRAM_FILE).stat().st_size,
        plan=plan_values(resolved.with_program(Program.load(program / PROGRAM_INFO)).plan),
    )


@contextmanager
def export_apart(job: Job, progress: Progress) -> Iterator[Path]:
    """Exports a job's program again without the cache, and yields its folder.

    Raises as `export_program`.
    """
    log = job.state / "logs" / f"{StepName.EXPORT}.log"
    programs = job.workspace.folder(CacheKind.PROGRAMS)
    programs.mkdir(parents=True, exist_ok=True)
    with working_folder(programs, ".staging-") as apart:
        made = export_program(export_spec_of(job), Workspace(apart), progress, log)
        yield Path(made.folder)


def recipe_values(loaded: LoadedRecipe, folder: Path) -> dict[str, Any]:
    """Every value of a recipe, by the dotted name of its key."""
    values = loaded.recipe.model_dump(mode="json", exclude_none=True)
    return {key: _portable(value, folder) for key, value in flattened(values) if value != []}


def _portable(value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_portable(each, folder) for each in value]
    if isinstance(value, str) and value.startswith(DRAFT):
        return DRAFT + _portable(value.removeprefix(DRAFT), folder)
    is_path = isinstance(value, str) and Path(value).is_absolute()
    return portable_path(value, folder) if is_path else value


def portable_path(path: str, folder: Path) -> str:
    """A path that is the same on every machine: in a package, or relative to a folder."""
    for name, root in _ROOTS.items():
        if Path(path).is_relative_to(root) and not folder.is_relative_to(root):
            return f"<{name}>/{Path(path).relative_to(root).as_posix()}"
    return Path(os.path.relpath(path, folder)).as_posix()


def plan_values(plan: RuntimePlan) -> dict[str, str]:
    """What a plan decides, by name, without the reasons."""
    found = {
        "target": plan.target,
        "provider": plan.provider.value,
        "executorch": plan.executorch_version,
        "toolchain": plan.toolchain.value if plan.toolchain else None,
        **{f"component {each.name}": each.value or "linked" for each in plan.components},
        **{each.name: each.value for each in plan.options},
        "selected operators": plan.selection,
        "custom operators": plan.custom_ops,
    }
    return {name: value for name, value in found.items() if value is not None}


def locked_recipe(named: str, overrides: Overrides, folder: Path) -> LockedRecipe:
    """How a recipe is named in a lock file in `folder`."""
    is_file = Path(named).is_file()
    return LockedRecipe(
        named=Path(os.path.relpath(named, folder)).as_posix() if is_file else named,
        overrides=tuple(each if isinstance(each, str) else each.text for each in overrides),
        # Without overrides, no path depends on it.
        working_folder=Path(os.path.relpath(Path.cwd(), folder)).as_posix() if overrides else ".",
    )


def overrides_of(recipe: LockedRecipe, folder: Path) -> tuple[Override, ...]:
    """The overrides again, whose paths are found from any working folder."""
    there = (folder / recipe.working_folder).resolve()
    return tuple(Override(_found_from(there, text), folder=there) for text in recipe.overrides)


def _found_from(there: Path, text: str) -> str:
    """An option whose whole value is a model or a file, which no folder is joined with later."""
    option, equals, value = text.partition("=")
    if not option.startswith("--") or not value or not (there / value).exists():
        return text
    return f"{option}{equals}{there / value}"


def recipe_name_of(recipe: LockedRecipe, folder: Path) -> str:
    """What the recipe is loaded by: its file, or the name of a bundled one."""
    path = (folder / recipe.named).resolve()
    return str(path) if path.suffix in _RECIPES or path.is_file() else recipe.named


def differences(locked: LockFile, now: LockFile) -> tuple[LockDifference, ...]:
    """Everything that is not as it was locked, causes before what they change."""
    parts: dict[Part, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
        "recipe": (locked.recipe.values, now.recipe.values),
        "commit": ({"model": locked.commit}, {"model": now.commit}),
        "files": (locked.files, now.files),
        "versions": (
            {"etdeploy": locked.etdeploy, **locked.versions},
            {"etdeploy": now.etdeploy, **now.versions},
        ),
        "program": (locked.program, now.program),
        "plan": (locked.plan, now.plan),
    }
    return tuple(_changed(parts))


def _changed(
    parts: Mapping[Part, tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> Iterator[LockDifference]:
    for part, (before, after) in parts.items():
        for name in dict.fromkeys([*before, *after]):
            locked, now = (
                None if values.get(name) is None else str(values[name])
                for values in (before, after)
            )
            if locked != now:
                yield LockDifference(part=part, name=name, locked=locked, now=now)


def is_reproduced(found: Iterable[LockDifference]) -> bool:
    """Whether the program and the plan are the locked ones, whatever else has changed."""
    return not any(each.part in ("program", "plan") for each in found)
