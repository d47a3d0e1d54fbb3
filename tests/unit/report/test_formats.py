"""A report goes where it was asked to, and over no file that is not a report."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.report.formats import (
    BEGINNINGS,
    Format,
    render_report,
    require_free,
    write_pages,
    write_report,
)
from etdeploy.report.html import HISTORY_MARK, MARK
from etdeploy.report.report_data import Report
from tests.support.report_values import make_report_data

REPORT = Report((make_report_data(),))


@pytest.mark.parametrize("form", list(Format))
def test_a_report_is_known_again_and_replaced(form: Format, tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.touch()
    text = render_report(REPORT, form)
    assert text.startswith(BEGINNINGS[form])
    for _ in range(2):
        assert write_report(text, path, form) == path
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize(
    "content", [b"# My notes\n", b"\xff\xfe", b"<", b"<!doctype html>\n<html>"]
)
def test_another_s_file_is_left_alone(form: Format, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "my notes"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"not a report in {form}") as caught:
        write_report("text", path, form)
    assert path.read_bytes() == content
    assert str(caught.value.remedy).endswith(": --output FILE")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="this is a FIFO") as caught:
        require_free(tmp_path / "pipe", Format.CSV)
    assert str(caught.value.remedy).endswith("--output -")


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        write_report("text", tmp_path / "typo" / "report.html", Format.HTML)
    assert f"mkdir -p {tmp_path}/typo" in str(caught.value.remedy)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_known_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_folder: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("etdeploy.core.files.delivery.require_writable", refuse)
    with pytest.raises(UsageError, match="Read-only file system") as caught:
        require_free(tmp_path / "report.html", Format.HTML)
    assert str(caught.value.remedy).endswith(": --output FILE")


def test_a_full_disk_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path, _text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    monkeypatch.setattr("etdeploy.core.files.delivery.write_atomic", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_report("text", tmp_path / "report.html", Format.HTML)


def test_a_path_through_a_file_is_an_error_for_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="Not a directory"):
        write_report("text", tmp_path / "file" / "report.html", Format.HTML)


OURS = f"{HISTORY_MARK}\n<p>page</p>"
NAMES = ("index.html", "series-a.html", "series-b.html")


def pages(text: str = OURS) -> list[tuple[str, str]]:
    return [(name, text) for name in reversed(NAMES)]


def test_pages_replace_their_own_and_leave_everything_else(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    write_pages(folder, NAMES, pages())
    (folder / "notes.html").write_text("mine")
    (folder / "series-gone.html").write_text(OURS)
    write_pages(folder, NAMES, pages(f"{OURS}again"))
    assert {path.name: path.read_text()[-5:] for path in folder.iterdir()} == {
        **dict.fromkeys(NAMES, "again"), "notes.html": "mine", "series-gone.html": "e</p>",
    }  # fmt: skip


@pytest.mark.parametrize("content", ["<!doctype html>\n<p>mine", f"{MARK}\na dashboard"])
@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_page_of_that_name_stops_everything(
    name: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match="not a page of etdeploy's history") as caught:
        write_pages(tmp_path, NAMES, pages())
    assert caught.value.remedy == "Name another folder, or move the file."
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == content


def test_a_stop_leaves_the_earlier_pages(tmp_path: Path) -> None:
    write_pages(tmp_path, NAMES, pages())

    def stopped() -> Iterator[tuple[str, str]]:
        yield "series-b.html", f"{OURS}again"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_pages(tmp_path, NAMES, stopped())
    assert {path.name: path.read_text().endswith("again") for path in tmp_path.iterdir()} == {
        "index.html": False, "series-a.html": False, "series-b.html": True,
    }  # fmt: skip


def test_pages_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="parent folder") as caught:
        write_pages(tmp_path / "typo" / "pages", NAMES, pages())
    assert caught.value.remedy == f"Create it: mkdir -p {tmp_path}/typo"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be used"):
        write_pages(tmp_path / "file", NAMES, pages())
