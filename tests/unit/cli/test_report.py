"""The verb report against exact text."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from etdeploy.bench.records.record import RunRecord
from etdeploy.cli.main import run_cli
from etdeploy.report.formats import BEGINNINGS, Format
from tests.support.bench_values import make_record

Capture = pytest.CaptureFixture[str]
IDS = ("20261121T084449Z-mlp-host-ab12cd34", "20261121T094449Z-mlp-host-ef56ab78")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two runs in the folder for them."""
    monkeypatch.chdir(tmp_path)
    for run_id in IDS:
        folder = tmp_path / "etdeploy-out" / run_id
        folder.mkdir(parents=True)
        make_record(run_id=run_id).save(folder / "record.json")
    return tmp_path


def report(*arguments: str) -> int:
    return run_cli(["report", "--quiet", "--no-profile", *arguments])


def test_the_last_run_is_a_page_in_its_folder(runs: Path, capsys: Capture) -> None:
    assert report() == 0
    page = runs / "etdeploy-out" / IDS[1] / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text().startswith(BEGINNINGS[Format.HTML])
    assert report() == 0, "a report may be made again"


def test_several_runs_are_a_page_here(runs: Path, capsys: Capture) -> None:
    assert report("ab12cd34", f"etdeploy-out/{IDS[1]}") == 0
    assert capsys.readouterr().out == f"{runs / 'etdeploy-report.html'}\n"
    assert "2 runs compared" in (runs / "etdeploy-report.html").read_text()


@pytest.mark.parametrize("form", ["markdown", "csv", "jsonl", "pytorch-oss"])
def test_text_is_printed_or_written(form: str, runs: Path, capsys: Capture) -> None:
    assert report("--format", form) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(BEGINNINGS[Format(form)])
    assert report("--format", form, "--output", "-") == 0
    assert capsys.readouterr().out == printed
    assert report("--format", form, "--output", "report") == 0
    assert (runs / "report").read_text() == printed


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.html", "html"), ("A.HTM", "html"), ("a.md", "markdown"), ("a.csv", "csv"),
     ("a.jsonl", "jsonl")],
)  # fmt: skip
def test_the_name_of_the_file_says_the_format(
    name: str, form: str, runs: Path, capsys: Capture
) -> None:
    assert report("-o", name) == 0
    assert capsys.readouterr().out == f"{runs / name}\n"
    assert (runs / name).read_text().startswith(BEGINNINGS[Format(form)])


def test_another_name_does_not(runs: Path, capsys: Capture) -> None:
    assert report("-o", "a.json") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error (usage): a.json: ")
    assert "--format html|markdown|csv|jsonl|pytorch-oss\n" in shown


def test_a_page_may_go_through_a_pipe_but_not_to_a_terminal(
    runs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report("-o", "-") == 0
    assert capsys.readouterr().out.startswith(BEGINNINGS[Format.HTML])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert report("-o", "-") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--output report.html" in captured.err


def test_a_file_of_the_user_is_refused_before_the_work(
    runs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (runs / "index.html").write_text("<html>my page</html>")
    monkeypatch.setattr(
        "etdeploy.report.report_data.collect_report", lambda *_: pytest.fail("it was made")
    )
    assert report("-o", "index.html") == 2
    assert "index.html" in capsys.readouterr().err
    assert (runs / "index.html").read_text() == "<html>my page</html>"


@pytest.mark.parametrize(("path", "what"), [("etdeploy-out", "a folder"), (os.devnull, "a device")])
def test_what_is_no_file_is_refused(path: str, what: str, runs: Path, capsys: Capture) -> None:
    assert report("-o", path) == 2
    assert f"this is {what}\n" in capsys.readouterr().err


def test_a_run_that_does_not_exist(runs: Path, capsys: Capture) -> None:
    assert report("--runs-in", "elsewhere") == 2
    assert report("none") == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("version", [2, 99])
def test_a_record_of_another_version_is_refused(version: int, runs: Path, capsys: Capture) -> None:
    other = {**make_record().model_dump(mode="json"), "schema_version": version}
    (runs / "other.json").write_text(json.dumps(other))
    assert report("other.json") == 2
    assert f"version {version}" in capsys.readouterr().err


def test_the_schema_is_that_of_records(runs: Path, capsys: Capture) -> None:
    assert report("--schema") == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {*RunRecord.model_fields, "folder"}
    assert report("--schema", "last") == 2
    assert report("--schema", "--format", "csv") == 2
