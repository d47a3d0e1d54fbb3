"""Run records as they are read back: older and newer versions, damaged ones, in other folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import RECORD_FILE, StoredRun, load_record, load_run
from etdeploy.core.errors import UsageError
from tests.support.bench_values import make_record

_OLD_FOLDER = "/home/somebody/out/20261121T084449Z-mlp-host-ab12"


def _version_1() -> dict[str, Any]:
    """What a release with version 1 wrote."""
    content = make_record().model_dump(mode="json", exclude={"verify_ms"})
    workload = content.pop("workload")
    for key in ("kind", "sizes", "runs", "spread", "threads", "sustained", "outside"):
        del workload[key]
    for key in ("memory", "disturbances", "interleaved_with"):
        del content[key]
    for check in workload["outputs"]:
        for key in ("remark", "rms_error", "tolerance_rms", "step"):
            del check[key]
    del content["recipe"]["file"]
    content["recipe"]["path"] = "/home/somebody/mlp.yaml"
    content["recipe"]["files"] = {"/home/somebody/mlp.yaml": "ef" * 32}
    return {
        **content,
        **workload,
        "schema_version": 1,
        "files": {
            "record": f"{_OLD_FOLDER}/record.json",
            "outputs": f"{_OLD_FOLDER}/outputs",
            "log": f"{_OLD_FOLDER}/runner.stderr.txt",
            "program": "/home/somebody/.cache/etdeploy/programs/ab/program.pte",
        },
    }


def _write(folder: Path, content: object) -> Path:
    path = folder / RECORD_FILE
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = make_record()
    record.save(tmp_path / RECORD_FILE)
    assert load_record(tmp_path / RECORD_FILE) == record
    assert load_run(tmp_path) == load_run(tmp_path / RECORD_FILE) == StoredRun(tmp_path, record)


def test_what_run_printed_is_read_too(tmp_path: Path) -> None:
    run = StoredRun(tmp_path / "out", make_record())
    printed = run.printed()
    assert printed["folder"] == str(tmp_path / "out")
    assert load_record(_write(tmp_path, printed)) == run.record


def test_version_1_is_read_as_the_newest(tmp_path: Path) -> None:
    run = load_run(_write(tmp_path, _version_1()))
    now = make_record()
    assert run.record.schema_version == 9
    assert run.record.workload == now.workload.model_copy(update={"runs": (), "spread": None})
    assert run.record.verify_ms is None
    assert (run.record.load_ms, run.record.device) == (now.load_ms, now.device)
    assert run.record.recipe.file == "mlp.yaml"
    assert run.record.recipe.files == {"mlp.yaml": "ef" * 32}
    assert run.record.files == {
        "record": "record.json", "outputs": "outputs", "log": "runner.stderr.txt",
    }  # fmt: skip
    assert run.path("outputs") == tmp_path / "outputs"
    assert run.path("program") is None


def test_version_2_is_read_as_one_that_was_not_simulated(tmp_path: Path) -> None:
    now = make_record()
    before = now.model_dump(mode="json", exclude={"simulated"}) | {"schema_version": 2}
    assert load_run(_write(tmp_path, before)).record == now


def test_a_newer_version_says_what_to_do(tmp_path: Path) -> None:
    path = _write(tmp_path, {"schema_version": 10, "anything": "else"})
    with pytest.raises(
        UsageError, match="has version 10; this etdeploy reads versions 1 to 9"
    ) as e:
        load_record(path)
    assert e.value.exit_code == 2
    assert e.value.place == str(path)
    assert "pip install --upgrade etdeploy" in str(e.value.remedy)


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
        ('{"schema_version": 2', "not a run record"),
        ("[1]", "no schema_version"),
        ({"name": "mlp"}, "no schema_version"),
        ({"schema_version": "2"}, "no schema_version"),
        ({"schema_version": True}, "no schema_version"),
        ({"schema_version": 0}, "no schema_version"),
        ({"schema_version": 1}, "not complete"),
        ({**_version_1(), "files": {}}, "not complete"),
        ({**_version_1(), "recipe": "mlp"}, "not complete"),
        ({"schema_version": 2}, "not complete: run_id: Field required"),
        (_changed(load_ms="soon"), "not complete: load_ms"),
    ],
)
def test_what_is_no_whole_record_is_told(tmp_path: Path, content: object, told: str) -> None:
    path = _write(tmp_path, content)
    with pytest.raises(UsageError, match=told) as raised:
        load_record(path)
    assert raised.value.place == str(path)


def test_a_record_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_run(tmp_path)


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


def test_no_path_of_this_machine_can_be_written() -> None:
    with pytest.raises(ValueError, match="not a path inside"):
        RunRecord(**{**dict(make_record()), "files": {"record": "/out/record.json"}})
