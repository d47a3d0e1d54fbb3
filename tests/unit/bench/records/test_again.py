"""The command that measures again is one that can be pasted into a shell."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from etdeploy.bench.records.find import measure_again
from etdeploy.bench.records.record import RecipeRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.hashing import sha256_file
from etdeploy.core.resources import resource_folder
from tests.support.bench_values import FOLDER, make_device, make_record


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _recipe(file: str, sha256: str = "ef" * 32) -> RecipeRecord:
    return RecipeRecord(
        name="x", file=file, files={file: sha256}, git_revision=None, git_dirty=None, content={}
    )


def test_of_a_file_on_this_machine() -> None:
    run = StoredRun(Path("etdeploy-out", FOLDER.name), make_record(recipe=_recipe("my net.yaml")))
    assert measure_again(run) == "etdeploy bench --recipe 'my net.yaml' --device host"


def test_of_a_bundled_recipe() -> None:
    bundled = sha256_file(resource_folder("recipes") / "xnnpack.yaml")
    run = StoredRun(Path("moved"), make_record(recipe=_recipe("xnnpack.yaml", bundled)))
    assert measure_again(run) == "etdeploy bench --recipe xnnpack --device host"
    # A file of the user's may have the same name.
    run = StoredRun(Path("moved"), make_record(recipe=_recipe("xnnpack.yaml")))
    assert measure_again(run) == "etdeploy bench --recipe xnnpack.yaml --device host"


def test_of_a_bundled_recipe_for_language_models(here: Path) -> None:
    bundled = resource_folder("recipes")
    recipe = _recipe("llm-xnnpack.yaml", sha256_file(bundled / "llm-xnnpack.yaml"))

    def again(hf: str) -> str:
        named = recipe.model_copy(update={"content": {"model": {"hf": hf}}})
        return measure_again(StoredRun(Path("moved"), make_record(recipe=named)))

    assert again("org/m") == "etdeploy bench --recipe llm-xnnpack --model org/m --device host"
    # As records have it: relative to the recipe's file.
    (here / "my model").mkdir()
    told = again(os.path.relpath(here / "my model", bundled))
    assert shlex.split(told)[4:6] == ["--model", str(here / "my model")]


def test_of_another_device_and_folder(here: Path) -> None:
    phone = make_device("android", name="android:R5 1", target="android-x86_64")
    run = StoredRun(here / "my runs" / FOLDER.name, make_record(device=phone))
    assert shlex.split(measure_again(run)) == [
        *("etdeploy", "bench", "--recipe", "mlp.yaml", "--device", "android:R5 1"),
        *("--output", str(here / "my runs")),
    ]


@pytest.mark.parametrize(
    ("device", "built", "portable", "option"),
    [
        ("linux-x86_64", "linux-x86_64", False, ""),
        ("linux-x86_64", "linux-x86_64", True, " --target linux-x86_64-portable"),
        ("linux-x86_64-portable", "linux-x86_64", True, ""),
        ("linux-aarch64", "linux-aarch64-musl", False, " --target linux-aarch64-musl"),
        ("android-x86_64", "linux-x86_64", True, ""),
        ("android-arm64", "android-arm64", False, ""),
    ],
)
def test_the_target_is_named_where_it_was_chosen(
    device: str, built: str, portable: bool, option: str
) -> None:
    runner = make_record().runner.model_copy(update={"target": built, "portable": portable})
    record = make_record(device=make_device(target=device), runner=runner)
    command = "etdeploy bench --recipe mlp.yaml --device host"
    assert measure_again(StoredRun(Path("moved"), record)) == f"{command}{option}"
