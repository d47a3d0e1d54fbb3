"""Records as JSON lines."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.history.jsonl import Imported, import_all, write_lines
from etdeploy.history.location import HistoryLocation
from etdeploy.history.store.store import open_store
from tests.support.bench_values import make_record
from tests.support.histories import run_at


def imported(place: HistoryLocation, *names: str, standard_input: bytes = b"") -> Imported:
    with open_store(place) as store:
        return import_all(store, names, io.BytesIO(standard_input))


def line(**changes: Any) -> str:
    return make_record(**changes).model_dump_json()


def test_bad_lines_are_named_and_lose_nothing(place: HistoryLocation, tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    newer, older = (
        json.dumps({**json.loads(line()), "schema_version": version}) for version in (99, 2)
    )
    cut = line(run_id="cut")[:50]
    lines = ["{}", line(run_id="a"), "", cut, newer, "[1]", "\x00", line(run_id="b"), older]
    file.write_text("\n".join(lines))
    done = imported(place, str(file))
    assert (done.new, done.known) == (2, 0)
    assert [text.split(": ")[0] for text in done.bad] == [
        f"{file}:{number}" for number in (1, 4, 5, 6, 7, 9)
    ]
    assert "has version 99" in done.bad[2]


def test_folders_records_and_standard_input(place: HistoryLocation, tmp_path: Path) -> None:
    for number in range(2):
        run_at(number).save(tmp_path / f"run{number}" / "record.json")
    names = (str(tmp_path / "run0"), str(tmp_path / "run1" / "record.json"), "-")
    done = imported(place, *names, standard_input=line(run_id="x").encode() + b"\n\n")
    assert done == Imported(new=3)


def test_a_file_that_cannot_be_read_loses_no_other(place: HistoryLocation, tmp_path: Path) -> None:
    run_at(0).save(tmp_path / "run" / "record.json")
    (tmp_path / "empty").mkdir()
    done = imported(
        place, str(tmp_path / "nowhere"), str(tmp_path / "empty"), str(tmp_path / "run")
    )
    assert done.new == 1
    assert [text.partition(": ")[0] for text in done.bad] == [
        str(tmp_path / "nowhere"), str(tmp_path / "empty"),
    ]  # fmt: skip


def test_lines_replace_lines(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "there" / "out.jsonl")
    line = make_record().model_dump_json()
    for count in (1, 2):
        assert write_lines(tmp_path / "out.jsonl", [line] * count) == count
    assert (tmp_path / "there" / "out.jsonl").read_text() == f"{line}\n{line}\n"


@pytest.mark.parametrize(
    "content",
    ["SQLite format 3", '{"name": "my package"}\n', make_record().model_dump_json(indent=2)],
)
def test_what_is_no_list_of_records_stays(tmp_path: Path, content: str) -> None:
    file = tmp_path / "my file"
    file.write_text(content)
    with pytest.raises(UsageError, match="not a list of records") as caught:
        write_lines(file, ["{}"])
    assert file.read_text() == content
    assert "history export FILE" in str(caught.value.remedy)


def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    def fills() -> Iterator[str]:
        yield "{}"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        write_lines(tmp_path / "out.jsonl", fills())
    assert caught.value.filename == str(tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> object:
        yield "{}"
        raise KeyError

    with pytest.raises(KeyError):
        write_lines(tmp_path / "out.jsonl", fails())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="does not exist"):
        write_lines(tmp_path / "nowhere" / "out.jsonl", [])
