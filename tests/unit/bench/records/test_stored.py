"""Run records as they are read back: of other versions, damaged ones, in other folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import RECORD_FILE, StoredRun, load_record, load_run
from etdeploy.core.errors import UsageError
from tests.support.bench_values import make_record


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


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(1, "etdeploy run"), (8, "etdeploy run"), (10, "pip install --upgrade etdeploy")],
)
def test_another_version_is_refused_with_what_to_do(
    tmp_path: Path, version: int, remedy: str
) -> None:
    path = _write(tmp_path, _changed(schema_version=version))
    with pytest.raises(UsageError, match=f"has version {version}; .* reads version 9") as raised:
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
        ('{"schema_version": 9', "not a run record"),
        ("[1]", "no schema_version"),
        ({"name": "mlp"}, "no schema_version"),
        ({"schema_version": "9"}, "no schema_version"),
        ({"schema_version": True}, "no schema_version"),
        ({"schema_version": 0}, "no schema_version"),
        ({"schema_version": 9}, "not complete: run_id: Field required"),
        (_changed(workload={**_changed()["workload"], "runs": []}), "not complete: workload.runs"),
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
