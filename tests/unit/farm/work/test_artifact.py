"""Artifacts: made once, readable elsewhere, and never used unless every file is what it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from etdeploy.bench.assemble import Revision
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.tidy import find_units, remove_units
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError
from etdeploy.core.hashing import sha256_bytes, sha256_file
from etdeploy.farm.work import artifact
from etdeploy.farm.work.artifact import ARTIFACT_FILE, RecipeCopy, open_artifact, pack
from etdeploy.program.folder import PROGRAM_FILE
from etdeploy.recipe.find import bundled_recipes
from etdeploy.recipe.load import load_recipe
from tests.support.parcels import REVISION, make_artifact, make_prepared


@pytest.fixture
def workspace() -> Workspace:
    return Workspace.opened()


def test_all_that_a_measurement_needs_is_there(tmp_path: Path, workspace: Workspace) -> None:
    prepared = make_prepared(tmp_path)
    artifact = pack(prepared, "mlp", "SM8650", REVISION, workspace)
    assert (artifact.recipe, artifact.soc, artifact.target) == (
        "mlp",
        "SM8650",
        prepared.runner.target,
    )
    # Elsewhere, without anything of what it was made from.
    elsewhere = tmp_path / "other host" / "artifact"
    shutil.copytree(artifact.folder, elsewhere)
    for folder in ("program", "runner", "etdeploy-cache"):
        shutil.rmtree(tmp_path / folder)
    for opened in (open_artifact(elsewhere), open_artifact(elsewhere, artifact)):
        assert opened.loaded == prepared.loaded
        assert opened.program == prepared.program
        assert opened.revision == REVISION
        assert opened.plan is None
        assert opened.bundle.launch == prepared.bundle.launch
        for file in opened.bundle.files:
            assert Path(file.source).is_relative_to(elsewhere)
            assert sha256_file(Path(file.source)) == file.sha256
        assert [f.path for f in opened.bundle.files] == [f.path for f in prepared.bundle.files]
        assert (opened.program_folder / PROGRAM_FILE).is_file()


def test_the_same_is_made_once(tmp_path: Path, workspace: Workspace) -> None:
    first, again = make_artifact(tmp_path, workspace), make_artifact(tmp_path, workspace)
    assert first == again
    assert f"bundle/{PROGRAM_FILE}" not in first.files  # it is in the folder of the program
    other = pack(make_prepared(tmp_path), "mlp", None, Revision("beef", False), workspace)
    assert other.key != first.key
    assert len(list(workspace.folder(CacheKind.PARCELS).iterdir())) == 2


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def test_files_of_the_cache_are_not_copied(tmp_path: Path, workspace: Workspace) -> None:
    prepared = make_prepared(tmp_path)
    entry = workspace.entry(CacheKind.PROGRAMS, "ab" * 16)
    workspace.obtain(entry, lambda folder: _copy(tmp_path / "program", folder))
    artifact = pack(replace(prepared, program_folder=entry.path), "mlp", None, REVISION, workspace)
    there = Path(artifact.folder) / "program" / PROGRAM_FILE
    assert there.stat().st_ino == (entry.path / PROGRAM_FILE).stat().st_ino
    assert not [name for name in artifact.files if "manifest" in name]
    # What is the user's may change, and is copied.
    runner = Path(artifact.folder) / "bundle/runner/etdeploy-runner"
    assert runner.stat().st_nlink == 1


def test_the_cache_keeps_what_a_night_uses(tmp_path: Path, workspace: Workspace) -> None:
    workspace.uses.mark_live()
    artifact = make_artifact(tmp_path, workspace)
    other = Workspace(workspace.root)
    units = [unit for unit in find_units(other) if unit.kind == CacheKind.PARCELS]
    assert [unit.name for unit in units] == [artifact.key]
    assert remove_units(other, units).kept == tuple(units)
    workspace.uses.release()
    assert remove_units(other, units).removed == tuple(units)


def _delete(path: Path) -> None:
    path.unlink()


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("act", [_delete, _damage])
def test_a_file_that_is_not_what_it_was_is_named(
    tmp_path: Path, workspace: Workspace, act: Callable[[Path], None]
) -> None:
    artifact = make_artifact(tmp_path, workspace)
    folder = Path(artifact.folder)
    for name in artifact.files:
        there = tmp_path / "there" / name.replace("/", "-")
        shutil.copytree(folder, there)
        open_artifact(there)  # notes what was verified
        act(there / name)
        with pytest.raises(BuildError) as caught:
            open_artifact(there, artifact)
        assert caught.value.place == str(there / name)
        assert "missing" in caught.value.message or "damaged" in caught.value.message


def test_what_is_untouched_is_read_once(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(make_artifact(tmp_path, workspace).folder)
    open_artifact(folder)

    def refuse(path: Path) -> str:
        raise AssertionError(path)

    monkeypatch.setattr(artifact, "sha256_read", refuse)
    open_artifact(folder)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "program/../../outside"])
def test_no_path_leads_out(tmp_path: Path, workspace: Workspace, name: str) -> None:
    artifact = make_artifact(tmp_path, workspace)
    (Path(artifact.folder).parent / "outside").write_text("x")
    files = {**artifact.files, name: sha256_bytes(b"x")}
    with pytest.raises(BuildError, match="outside its folder"):
        open_artifact(Path(artifact.folder), artifact.model_copy(update={"files": files}))


def test_a_link_that_leads_out_is_refused(tmp_path: Path, workspace: Workspace) -> None:
    artifact = make_artifact(tmp_path, workspace)
    there = Path(artifact.folder) / "program" / PROGRAM_FILE
    outside = tmp_path / "outside"
    there.rename(outside)
    there.symlink_to(outside)
    with pytest.raises(BuildError, match="outside its folder"):
        open_artifact(Path(artifact.folder))


def test_a_bundle_that_leads_out_is_not_packed(tmp_path: Path, workspace: Workspace) -> None:
    prepared = make_prepared(tmp_path)
    bad = tuple(
        file.model_copy(update={"path": f"../{file.path}"}) for file in prepared.bundle.files
    )
    bundle = prepared.bundle.model_copy(update={"files": bad})
    with pytest.raises(ValueError, match="leads out"):
        pack(replace(prepared, bundle=bundle), "mlp", None, REVISION, workspace)


def test_a_bundle_names_only_what_is_in_the_artifact(tmp_path: Path, workspace: Workspace) -> None:
    artifact = make_artifact(tmp_path, workspace)
    path = Path(artifact.folder) / "bundle.json"
    text = path.read_text().replace(f'"program/{PROGRAM_FILE}"', '"program/other"')
    path.write_text(text)
    files = {**artifact.files, "bundle.json": sha256_bytes(text.encode())}
    with pytest.raises(BuildError, match="not in the artifact"):
        open_artifact(Path(artifact.folder), artifact.model_copy(update={"files": files}))


def test_what_another_release_wrote_is_told(tmp_path: Path, workspace: Workspace) -> None:
    artifact = make_artifact(tmp_path, workspace)
    path = Path(artifact.folder) / ARTIFACT_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "new": 1}))
    with pytest.raises(BuildError, match="this release wrote"):
        open_artifact(Path(artifact.folder))
    path.unlink()
    with pytest.raises(BuildError, match="No such file"):
        open_artifact(Path(artifact.folder))


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_recipes_are_the_same_after_a_copy(name: str) -> None:
    loaded = load_recipe(name, ["benchmark.runs=4"])
    copy = RecipeCopy.of(loaded, REVISION)
    again = RecipeCopy.model_validate_json(copy.model_dump_json())
    assert again.loaded == loaded
    assert again.revision == REVISION
