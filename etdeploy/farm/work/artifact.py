"""Artifacts: folders with all that a measurement needs, which can be copied to another host.

    recipe.json   the recipe with the places of its keys, and the revision of its folder
    runner.json   the runner                    plan.json   its plan
    bundle.json   the bundle, with sources relative to the artifact's folder
    program/      the program's folder          bundle/     what else goes to the device
    parcel.json   the value `BuildArtifact`; not among its own files

Files of the cache are hard links. Everything is verified by digest before it is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from etdeploy.bench.assemble import Revision
from etdeploy.bench.measure import PreparedMeasurement
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import NOTES, Workspace
from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import BuildError, DeviceError, EtdeployError, Interrupted
from etdeploy.core.files.basic import (
    annotate_oserror,
    disk_full_error,
    find_disk_full,
    folder_files,
    inside,
    write_atomic,
)
from etdeploy.core.hashing import (
    digest_json,
    sha256_bytes,
    sha256_file,
    sha256_read,
    stat_signature,
)
from etdeploy.core.plugins import plugin_error
from etdeploy.core.values import Value
from etdeploy.devices.base import Bundle, BundleFile
from etdeploy.farm.model import AttemptFailure, BuildArtifact
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import PROGRAM_INFO
from etdeploy.program.model import Program
from etdeploy.recipe.document import SourceLocation
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.recipe.model import Recipe
from etdeploy.runner.model import BuiltRunner

ARTIFACT_FILE = "parcel.json"
_RECIPE, _RUNNER, _PLAN, _BUNDLE = "recipe.json", "runner.json", "plan.json", "bundle.json"
_PROGRAM_FOLDER, _BUNDLE_FOLDER = "program", "bundle"
# Digests that were verified, with the stamps that the files had.
_VERIFIED = ".verified.json"


@dataclass(frozen=True)
class _Content:
    """One file of an artifact: what is written, or what is linked."""

    sha256: str
    source: Path | None = None
    text: str = ""


def pack(
    prepared: PreparedMeasurement,
    label: str,
    soc: str | None,
    revision: Revision,
    workspace: Workspace,
    app: bool = False,
) -> BuildArtifact:
    """Pack what was exported and built for a measurement, once, into the cache.

    While the workspace is `in_use`, nobody removes it.
    """
    contents = _of_program(prepared.program_folder, workspace)
    bundle = _add_bundle(prepared.bundle, contents)
    runner = prepared.runner
    values: dict[str, Value | None] = {
        _RECIPE: RecipeCopy.of(prepared.loaded, revision),
        # The folder is another one on each host.
        _RUNNER: runner.model_copy(update={"path": "" if app else f"{_BUNDLE_FOLDER}/runner"}),
        _PLAN: prepared.plan,
        _BUNDLE: bundle,
    }
    for name, value in values.items():
        if value is not None:
            text = value.model_dump_json(indent=2) + "\n"
            contents[name] = _Content(sha256_bytes(text.encode()), text=text)
    files = {name: content.sha256 for name, content in sorted(contents.items())}
    entry = workspace.entry(CacheKind.PARCELS, digest_json([label, runner.target, soc, files]))
    artifact = BuildArtifact(
        key=entry.key,
        recipe=label,
        target=runner.target,
        soc=soc,
        folder=str(entry.path),
        bundle=bundle,
        files=files,
    )
    workspace.obtain(entry, lambda folder: _write(folder, contents, artifact, workspace.root))
    return artifact


def open_artifact(folder: Path, artifact: BuildArtifact | None = None) -> PreparedMeasurement:
    """What an artifact's folder holds, ready to measure with."""
    try:
        artifact = artifact or BuildArtifact.load(folder / ARTIFACT_FILE)
        verify(folder, artifact.files)
        copy = RecipeCopy.load(folder / _RECIPE)
        runner = BuiltRunner.load(folder / _RUNNER)
        bundle = _placed(Bundle.load(folder / _BUNDLE), folder, artifact.files)
        plan = RuntimePlan.load(folder / _PLAN) if _PLAN in artifact.files else None
        program = Program.load(folder / _PROGRAM_FOLDER / PROGRAM_INFO)
    except (OSError, ValidationError, ValueError) as error:
        if find_disk_full(error):
            raise
        what = error.strerror if isinstance(error, OSError) else "it is not what this release wrote"
        place = getattr(error, "filename", None) or folder
        raise _broken(f"the artifact cannot be read: {what}", Path(place)) from error
    return PreparedMeasurement(
        bundle,
        copy.loaded,
        folder / _PROGRAM_FOLDER,
        program,
        runner.model_copy(update={"path": str(folder / runner.path)}),
        plan,
        copy.revision,
    )


def verify(folder: Path, files: Mapping[str, str]) -> None:
    """Compares every file with its digest; what is untouched since is not read again."""
    known = _known_stamps(folder)
    stamps: dict[str, list[int]] = {}
    for name, sha256 in files.items():
        checkpoint()
        path = _within(folder, name)
        if not path.is_file():
            raise _broken("a file of the artifact is missing", path)
        stamps[name] = list(stat_signature(path))
        if known.get(name) != [sha256, *stamps[name]] and sha256_read(path) != sha256:
            raise _broken("a file of the artifact is damaged", path)
    now = {name: [files[name], *each] for name, each in stamps.items()}
    if now != known:
        write_atomic(folder / _VERIFIED, json.dumps(now))


def _known_stamps(folder: Path) -> dict[str, list[object]]:
    try:
        known = json.loads((folder / _VERIFIED).read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _of_program(folder: Path, workspace: Workspace) -> dict[str, _Content]:
    """The files of a program's folder; the cache knows their digests."""
    known: Mapping[str, str] = {}
    if folder.parent == workspace.folder(CacheKind.PROGRAMS):
        known = workspace.entry(CacheKind.PROGRAMS, folder.name).digests()
    return {
        f"{_PROGRAM_FOLDER}/{name}": _Content(
            known.get(name) or sha256_file(folder / name), folder / name
        )
        for name in folder_files(folder)
        if name not in NOTES
    }


def _add_bundle(bundle: Bundle, contents: dict[str, _Content]) -> Bundle:
    """Adds what is not there yet; the bundle with sources relative to the artifact's folder."""
    there = {content.sha256: name for name, content in contents.items()}
    placed: list[BundleFile] = []
    for file in bundle.files:
        name = there.get(file.sha256)
        if name is None:
            name = f"{_BUNDLE_FOLDER}/{file.path}"
            inside(Path("/artifact") / _BUNDLE_FOLDER, file.path)
            contents[name] = _Content(file.sha256, Path(file.source))
            there[file.sha256] = name
        placed.append(file.model_copy(update={"source": name}))
    return bundle.model_copy(update={"files": tuple(placed)})


def _placed(bundle: Bundle, folder: Path, files: Mapping[str, str]) -> Bundle:
    """The bundle with sources in the folder."""
    placed = []
    for file in bundle.files:
        if files.get(file.source) != file.sha256:
            raise _broken("the bundle names a file that is not in the artifact", Path(file.source))
        source = str(_within(folder, file.source))
        placed.append(file.model_copy(update={"source": source}))
    return bundle.model_copy(update={"files": tuple(placed)})


def _write(
    folder: Path, contents: Mapping[str, _Content], artifact: BuildArtifact, cache: Path
) -> None:
    for name, content in contents.items():
        checkpoint()
        target = _within(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with annotate_oserror(target):
            if content.source is None:
                target.write_text(content.text)
            else:
                _link_or_copy(content.source, target, cache, content.sha256)
    artifact.save(folder / ARTIFACT_FILE)


def _link_or_copy(source: Path, target: Path, cache: Path, sha256: str) -> None:
    """A hard link to what only the cache writes; what is the user's may change, and is copied."""
    if source.resolve().is_relative_to(cache):
        try:
            os.link(source.resolve(), target)
        except OSError as error:
            if find_disk_full(error):
                raise
        else:
            return
    with target.open("wb") as stream:
        if sha256_read(source, stream.write) != sha256:
            raise _broken("a file changed while it was packed", source)


def _within(folder: Path, name: str) -> Path:
    try:
        return inside(folder, name)
    except ValueError as error:
        raise _broken(f"the artifact names a path outside its folder: {error}", folder) from error


def _broken(message: str, place: Path) -> BuildError:
    return BuildError(
        message,
        place=str(place),
        remedy="It is made, or fetched, again with the next night. If it happens again, check the "
        "disk of this host.",
    )


class PlaceCopy(Value):
    """The place of one key."""

    keys: tuple[int | str, ...]
    file: str
    line: int | None
    column: int | None
    folder: str


class RecipeCopy(Value):
    """A loaded recipe.

    Attributes:
        name, path: As the coordinator knows it; nothing is read there.
        recipe: The values, with the coordinator's paths.
        files: What was read for it, with SHA-256.
        places: For messages.
        commit, dirty: The revision of its folder.
    """

    name: str
    path: str
    recipe: Recipe
    files: tuple[tuple[str, str], ...]
    places: tuple[PlaceCopy, ...]
    commit: str | None
    dirty: bool | None

    @classmethod
    def of(cls, loaded: LoadedRecipe, revision: Revision) -> RecipeCopy:
        """The copy of a recipe, and of the revision that its folder has now."""
        return cls(
            name=loaded.name,
            path=str(loaded.path),
            recipe=loaded.recipe,
            files=tuple((str(path), sha256) for path, sha256 in loaded.files),
            places=tuple(_copied(keys, place) for keys, place in loaded.places.items()),
            commit=revision.commit,
            dirty=revision.dirty,
        )

    @property
    def loaded(self) -> LoadedRecipe:
        """The recipe as it was loaded."""
        return LoadedRecipe(
            self.name,
            Path(self.path),
            self.recipe,
            tuple((Path(path), sha256) for path, sha256 in self.files),
            {
                each.keys: SourceLocation(each.file, each.line, each.column, Path(each.folder))
                for each in self.places
            },
        )

    @property
    def revision(self) -> Revision:
        """Of its folder, when it was copied."""
        return Revision(self.commit, self.dirty)


def _copied(keys: tuple[str | int, ...], place: SourceLocation) -> PlaceCopy:
    return PlaceCopy(
        keys=keys,
        file=place.file,
        line=place.line,
        column=place.column,
        folder=str(place.folder),
    )


BUG = "bug"
DISK_FULL = "disk full"
"""On the device's host: neither the device nor the recipe is at fault."""
GATE = "gate"
IN_USE = "in use"
"""Another run, or a person, has the device."""
HOST = "host"
"""The process that measured is gone, or an artifact on this host is damaged."""
TIME_LIMIT = "time limit"


def failure_of(error: BaseException, cache: Path) -> AttemptFailure:
    """An error as a value."""
    error = plugin_error(error) or error
    if isinstance(error, EtdeployError):
        message = f"{error.message}\nlog: {error.log}" if error.log else error.message
        return AttemptFailure(
            kind=error.kind,
            exit_code=error.exit_code,
            message=message or str(error),
            place=error.place,
            remedy=error.remedy,
        )
    full = find_disk_full(error)
    if full:
        told = disk_full_error(full, cache)
        return AttemptFailure(
            kind=DISK_FULL,
            exit_code=told.exit_code,
            message=told.message,
            place=told.place,
            remedy="Make room on this host: the night tries again by itself.",
        )
    if isinstance(error, KeyboardInterrupt):
        return failure_of(Interrupted(), cache)
    return AttemptFailure(
        kind=BUG, exit_code=EtdeployError.exit_code, message=f"{type(error).__name__}: {error}"
    )


def host_failure(
    message: str, place: str | None = None, remedy: str | None = None
) -> AttemptFailure:
    """What went wrong on the device's host, with neither the device nor the recipe to blame."""
    return AttemptFailure(
        kind=HOST, exit_code=BuildError.exit_code, message=message, place=place, remedy=remedy
    )


def time_limit_failure(limit_s: float, name: str, doing: str) -> AttemptFailure:
    """An attempt that had to be ended from outside."""
    return AttemptFailure(
        kind=TIME_LIMIT,
        exit_code=DeviceError.exit_code,
        message=f"the attempt did not end within {limit_s:g} s{f': {doing}' if doing else ''}",
        place=name,
        remedy="Allow more time with limit_s in farm.yaml, or ask for fewer runs or iterations in "
        "the recipe.",
    )
