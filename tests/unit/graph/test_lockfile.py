"""Lock files: portable paths, overrides that are found again, and differences in causal order."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import PACKAGE
from etdeploy.graph.lockfile import (
    FIRST_KEY,
    LockDifference,
    LockedRecipe,
    LockFile,
    differences,
    is_reproduced,
    locked_recipe,
    overrides_of,
    portable_path,
    read_lock,
    recipe_name_of,
    recipe_values,
)
from etdeploy.recipe.load import load_recipe

_LOCKED = LockFile(
    name="r",
    recipe=LockedRecipe(named="r.yaml", values={"export.backend": "xnnpack"}),
    files={"m.py": "a"},
    versions={"torch": "2.13.0"},
    program={"program.pte": "b"},
    plan={"provider": "wheel"},
)


def test_a_lock_file_is_known_by_its_beginning_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "r.lock"
    _LOCKED.save(path)
    assert path.read_text().startswith(FIRST_KEY)
    assert read_lock(path) == _LOCKED


@pytest.mark.parametrize("text", ["", "{}", "model: {}", '{"etdeploy_lock": 2}'])
def test_another_file_is_no_lock_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.lock"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_lock(path)
    assert raised.value.place == str(path)
    assert "etdeploy lock" in str(raised.value.remedy)


def test_paths_are_those_of_every_machine(tmp_path: Path) -> None:
    inner = tmp_path / "locks"
    assert portable_path(str(tmp_path / "model" / "m.py"), inner) == "../model/m.py"
    text = PACKAGE / "export" / "texts" / "calibration.txt"
    assert portable_path(str(text), inner) == "<etdeploy>/export/texts/calibration.txt"


def test_a_draft_is_named_as_on_every_machine(tmp_path: Path) -> None:
    (tmp_path / "program.pte").write_bytes(b"")
    (tmp_path / "r.yaml").write_text(
        "model: {hf: org/model}\nbenchmark: {generation: {speculation: model:program.pte}}\n"
    )
    values = recipe_values(load_recipe(str(tmp_path / "r.yaml")), tmp_path / "locks")
    assert values["benchmark.generation.speculation"] == "model:../program.pte"


def test_overrides_are_found_from_any_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    (work / "model").mkdir(parents=True)
    monkeypatch.chdir(work)
    given = ("--model=model", "--model=org/name", "export.weights=w.safetensors")
    recipe = locked_recipe("xnnpack", given, tmp_path)
    assert (recipe.named, recipe.working_folder) == ("xnnpack", "work")
    monkeypatch.chdir("/")
    found = overrides_of(recipe, tmp_path)
    assert [each.text for each in found] == [f"--model={work / 'model'}", *given[1:]]
    assert {each.folder for each in found} == {work}


def test_a_recipe_is_found_from_its_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "r.yaml").touch()
    (tmp_path / "locks").mkdir()
    monkeypatch.chdir(tmp_path)
    recipe = locked_recipe("r.yaml", (), tmp_path / "locks")
    assert recipe.named == "../r.yaml"
    assert recipe_name_of(recipe, tmp_path / "locks") == str(tmp_path / "r.yaml")
    assert recipe_name_of(LockedRecipe(named="qnn"), tmp_path) == "qnn"
    # Not that of the working folder.
    moved = LockedRecipe(named="r.yaml")
    assert recipe_name_of(moved, tmp_path / "locks") == str(tmp_path / "locks" / "r.yaml")


def test_nothing_has_changed() -> None:
    assert differences(_LOCKED, _LOCKED) == ()


def test_causes_come_before_what_they_change() -> None:
    now = _LOCKED.model_copy(
        update={
            "files": {"n.py": "c"},
            "versions": {"torch": "2.14.0"},
            "program": {"program.pte": "d"},
        }
    )
    found = differences(_LOCKED, now)
    assert found == (
        LockDifference(part="files", name="m.py", locked="a", now=None),
        LockDifference(part="files", name="n.py", locked=None, now="c"),
        LockDifference(part="versions", name="torch", locked="2.13.0", now="2.14.0"),
        LockDifference(part="program", name="program.pte", locked="b", now="d"),
    )
    assert is_reproduced(found[:3])
    assert not is_reproduced(found)
