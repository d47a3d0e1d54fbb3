"""How a run is named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from etdeploy.bench.records.find import find_run
from etdeploy.bench.records.stored import RECORD_FILE
from etdeploy.core.errors import UsageError
from tests.support.bench_values import make_record

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


def test_a_run_is_found_by_the_path_of_its_folder_or_its_record(output: Path) -> None:
    for path in (output / _OLD, output / _OLD / RECORD_FILE):
        assert find_run(str(path), output / "elsewhere").folder == output / _OLD


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


@pytest.mark.parametrize("there", [True, False])
def test_last_of_an_output_folder_without_runs_says_so(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="the output folder has no run record"):
        find_run("last", tmp_path / "out")


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
