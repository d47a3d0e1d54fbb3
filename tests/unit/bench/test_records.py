"""Run records as they are read back, found, and measured again."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.record import RecipeRecord
from etdeploy.bench.records.stored import (
    RECORD_FILE,
    StoredRun,
    find_run,
    load_record,
    load_run,
    measure_again,
)
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import resource_folder
from etdeploy.core.hashing import sha256_file
from tests.support.bench_values import FOLDER, make_device, make_record
from tests.support.text_values import make_text_record


def _write(folder: Path, content: object) -> Path:
    path = folder / RECORD_FILE
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_what_run_printed_is_read_too(tmp_path: Path) -> None:
    run = StoredRun(tmp_path / "out", make_record())
    printed = run.printed()
    assert printed["folder"] == str(tmp_path / "out")
    assert load_record(_write(tmp_path, printed)) == run.record


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(1, "etdeploy run"), (9, "etdeploy run"), (11, "pip install --upgrade etdeploy")],
)
def test_another_version_is_refused_with_what_to_do(
    tmp_path: Path, version: int, remedy: str
) -> None:
    path = _write(tmp_path, _changed(schema_version=version))
    with pytest.raises(UsageError, match=f"has version {version}; .* reads version 10") as raised:
        load_record(path)
    assert raised.value.exit_code == 2
    assert raised.value.place == str(path)
    assert remedy in str(raised.value.remedy)


def _changed(**changes: Any) -> dict[str, Any]:
    return make_record().model_dump(mode="json") | changes


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (_changed(energy_j=3.0), "does not know the run record's value of energy_j"),
        (_changed(workload={**_changed()["workload"], "kind": "training"}),
         "does not know the run record's value of workload.kind"),
    ],
)  # fmt: skip
def test_what_only_a_newer_release_knows_is_named(
    tmp_path: Path, content: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told) as raised:
        load_record(_write(tmp_path, content))
    assert "--upgrade" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not a run record"),
        ('{"schema_version": 10', "not a run record"),
        ("[1]", "no schema_version"),
        ({"name": "mlp"}, "no schema_version"),
        ({"schema_version": "10"}, "no schema_version"),
        ({"schema_version": True}, "no schema_version"),
        ({"schema_version": 0}, "no schema_version"),
        ({"schema_version": 10}, "not complete: run_id: Field required"),
        (_changed(workload={**_changed()["workload"], "runs": []}), "not complete: workload.runs"),
        (_changed(load_ms="soon"), "not complete: load_ms"),
    ],
)
def test_what_is_no_whole_record_is_told(tmp_path: Path, content: object, told: str) -> None:
    path = _write(tmp_path, content)
    with pytest.raises(UsageError, match=told) as raised:
        load_record(path)
    assert raised.value.place == str(path)


@pytest.mark.parametrize("path", ["/etc/passwd", "../secret", "outputs/../../secret", "", "a\\b"])
def test_a_file_outside_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    content = _changed(files={"record": "record.json", "log": path})
    with pytest.raises(UsageError, match=r"files\.log"):
        load_record(_write(tmp_path, content))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_text("")
    make_record().save(tmp_path / "run" / RECORD_FILE)
    (tmp_path / "run" / "runner.stderr.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="leads out"):
        load_run(tmp_path / "run").path("log")


def test_only_a_run_of_inferences_has_some() -> None:
    assert make_record().inference == make_record().workload
    with pytest.raises(TypeError, match="is generation"):
        _ = make_text_record().inference


_OLD = "20261121T084449Z-mlp-host-ab12cd34"
_NEW = "20261122T070000Z-conv-android_x-77aacd34"


def _run(folder: Path, run_id: str = "") -> Path:
    folder.mkdir(parents=True)
    make_record(run_id=run_id or folder.name).save(folder / RECORD_FILE)
    return folder


@pytest.fixture
def output(tmp_path: Path) -> Path:
    _run(tmp_path / "out" / _OLD)
    _run(tmp_path / "out" / _NEW)
    _run(tmp_path / "out" / "zz baseline", "20261101T000000Z-mlp-host-00000001")
    (tmp_path / "out" / "20271122T070000Z-mlp-host-99999999").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("last", _NEW),
        (_OLD, _OLD),
        ("ab12cd34", _OLD),
        ("cd34".rjust(6, "a"), _NEW),
        ("zz baseline", "zz baseline"),
        ("20261101T000000Z-mlp-host-00000001", "zz baseline"),
        ("0001", "zz baseline"),
    ],
)
def test_a_run_in_the_output_folder_is_found(output: Path, text: str, name: str) -> None:
    run = find_run(text, output)
    assert run.folder == output / name
    assert run.record.workload == make_record().workload


def test_a_path_is_preferred_to_an_id(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _run(tmp_path / _OLD, "copied")
    assert find_run(_OLD, output).record.run_id == "copied"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cd34", "2 runs have an id that ends with 'cd34'"),
        ("034", "there is no run '034' in the output folder"),
        ("20261121T084449Z-mlp-host-ab12cd3", f"did you mean {_OLD}?"),
        ("no/such/run", "there is no run 'no/such/run'"),
        ("x" * 5000, "there is no run"),
        ("a\0b", "there is no run"),
        ("", "there is no run"),
    ],
)
def test_a_run_that_is_not_there_is_told_with_those_that_are(
    output: Path, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        find_run(text, output)


def test_the_remedy_lists_what_can_be_named(output: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_run("nothing like it", output)
    assert str(caught.value.remedy).splitlines()[1:] == ["'zz baseline'", _OLD, _NEW]


def test_a_folder_of_runs_is_no_run(output: Path) -> None:
    with pytest.raises(UsageError, match=r"has no record\.json") as caught:
        find_run(str(output), output)
    assert str(output / _OLD) in str(caught.value)


def test_of_two_in_the_same_second_the_last_is_the_one_written_last(tmp_path: Path) -> None:
    for run_id in ("20261122T070000Z-a-host-ffffffff", "20261122T070000Z-b-host-00000000"):
        os.utime(_run(tmp_path / run_id) / RECORD_FILE, ns=(0, len(list(tmp_path.iterdir()))))
    assert find_run("last", tmp_path).folder.name == "20261122T070000Z-b-host-00000000"


def test_a_damaged_record_is_not_passed_over(output: Path) -> None:
    (output / _NEW / RECORD_FILE).write_text("{")
    with pytest.raises(UsageError, match="not a run record"):
        find_run("last", output)


def test_the_remedy_puts_a_run_where_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = {"etdeploy-out": "etdeploy run\n", "my runs": "etdeploy run --output 'my runs'\n"}
    for folder, command in told.items():
        with pytest.raises(UsageError) as caught:
            find_run("last", Path(folder))
        assert str(caught.value.remedy).startswith(f"Measure first: {command}")


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
