"""Runs whose folder was moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.history.entry import find_recorded_run, find_run_anywhere
from etdeploy.history.location import HistoryLocation
from etdeploy.history.store.store import open_store
from tests.support.histories import fill, run_at

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize("name", ["last", "", "00", "nowhere", "20261121", "%%%%"])
def test_what_is_nowhere(name: str, place: HistoryLocation, output: Path) -> None:
    with open_store(place) as store:
        fill(store, [1.0])
    with pytest.raises(UsageError):
        find_recorded_run(name, output, place)


def test_several_with_that_end(place: HistoryLocation, output: Path) -> None:
    with open_store(place) as store:
        for beginning in ("a", "b"):
            store.add(run_at(0, run_id=f"{beginning}-1234"))
    with pytest.raises(UsageError, match="2 runs in the history") as caught:
        find_recorded_run("1234", output, place)
    assert "b-1234\n" in f"{caught.value}\n"


def test_a_history_that_cannot_be_read(
    place: HistoryLocation, output: Path, capsys: Capture
) -> None:
    assert place.file
    place.file.parent.mkdir(parents=True)
    place.file.write_text("something else, longer than a header" * 9)
    with pytest.raises(UsageError, match="there is no run"):
        find_recorded_run("ab12", output, place)
    assert "warning: " in capsys.readouterr().err


def test_the_users_history_is_asked_only_where_the_folder_is_gone(
    place: HistoryLocation, output: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(place) as store:
        [gone] = fill(store, [1.0])
    for name in (gone.run_id, gone.run_id[-8:]):
        assert find_run_anywhere(name, output).record == gone
        assert "its folder is not in" in capsys.readouterr().err
    there = run_at(9)
    there.save(output / there.run_id / "record.json")
    monkeypatch.setenv("ETDEPLOY_STORE", "mysql://nowhere")
    assert find_run_anywhere("last", output).record == there
    assert capsys.readouterr().err == ""
    with pytest.raises(UsageError, match="there is no run"):
        find_run_anywhere(gone.run_id, output)
    assert "warning: " in capsys.readouterr().err
