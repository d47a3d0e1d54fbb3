"""`etdeploy history` and `etdeploy check`."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from etdeploy.cli import main as cli_main
from etdeploy.cli.verbs import history
from etdeploy.core.errors import UsageError
from etdeploy.history.entry import find_recorded_run
from etdeploy.history.location import require_location
from etdeploy.history.series import series_from
from etdeploy.history.store.store import Store, open_store
from tests.support.bench_values import make_device, make_record
from tests.support.histories import fill, recipe_named, run_at
from tests.support.shelf_weeks import keep_weeks

Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    return cli_main.run_cli(list(arguments))


@pytest.fixture
def store() -> Store:
    with open_store(require_location(None)) as opened:
        draw = random.Random(1)
        fill(opened, [draw.gauss(1.0, 0.01) for _ in range(10)])
        return opened


def measured(folder: Path, latency_ms: float) -> None:
    """A run in the output folder, as `etdeploy run` leaves it."""
    record = run_at(99, latency_ms)
    record.save(folder / record.run_id / "record.json")


def test_an_empty_history(capsys: Capture, data_folder: Path) -> None:
    assert run("history") == 0
    assert capsys.readouterr().out == f"no runs in {data_folder / 'history.db'}\n"
    assert run("history", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert not (data_folder / "history.db").exists()


def test_one_series_and_several(store: Store, capsys: Capture) -> None:
    assert run("history") == 0
    assert capsys.readouterr().out.startswith("mlp on host (Test CPU): xnnpack\n")
    phone = make_device("android", name="android:R5", serial="R5")
    store.add(run_at(70, device=phone, recipe=recipe_named("other")))
    assert run("history") == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[2].split()[1:3] == ["other", "android:R5"]
    assert run("history", "-d", "r5") == 0
    assert capsys.readouterr().out.startswith("other on android:R5")
    assert run("history", "--recipe", "neither") == 0
    assert capsys.readouterr().out.startswith("no matching runs in ")


def hinted_command(shown: str) -> list[str]:
    [line] = [line for line in shown.splitlines() if "etdeploy history" in line]
    return shlex.split(line.partition("etdeploy ")[2])


def test_the_hint_selects_one_of_several_series_of_a_recipe_and_device(
    store: Store, capsys: Capture
) -> None:
    content = make_record().recipe.content
    for second, size in ((80, 32), (81, 64)):
        export = {**content.get("export", {}), "group_size": size}
        recipe = recipe_named("mlp", content={**content, "export": export})
        store.add(run_at(second, recipe=recipe))
    assert run("history", "--recipe", "mlp", "--device", "host") == 0
    shown = capsys.readouterr()
    lines = [line for line in shown.out.splitlines() if "mlp" in line]
    whats = ["group_size=64", "group_size=32", "group_size not set"]
    assert all(what in line for line, what in zip(lines, whats, strict=True))
    key = lines[0].split()[0]
    command = hinted_command(shown.err)
    assert command[-2:] == ["--series", key]
    assert run(*command) == 0
    one = capsys.readouterr().out
    assert one.startswith("mlp on host (Test CPU): xnnpack\n")
    assert f"{key}" in one
    assert "1 run in the history" in one
    # As every key of the list, and the whole key.
    for line, runs in zip(lines, (1, 1, 10), strict=True):
        assert run("history", "--series", line.split()[0], "--json") == 0
        [trend] = json.loads(capsys.readouterr().out)
        assert trend["runs"] == runs
        assert run("history", "--series", trend["key"], "export") == 0
        assert len(capsys.readouterr().out.splitlines()) == runs
    assert run("history", "--series", "0000") == 0
    assert capsys.readouterr().out.startswith("no matching runs in ")


def test_the_hint_repeats_the_store(store: Store, capsys: Capture) -> None:
    store.add(run_at(70, recipe=recipe_named("other")))
    assert run("history", "--store", str(store.place.file)) == 0
    command = hinted_command(capsys.readouterr().err)
    assert command[-2:] == ["--store", str(store.place.file)]
    assert run(*command) == 0
    assert capsys.readouterr().out.startswith("other on host")


@pytest.mark.parametrize("key", ["", "abc", "mlp", "%", "ABCDEF12", "0" * 17])
def test_what_is_not_the_key_of_a_series(key: str, capsys: Capture) -> None:
    assert run("history", f"--series={key}") == 2
    assert "etdeploy history" in capsys.readouterr().err


def test_since(store: Store, capsys: Capture) -> None:
    assert run("history", "--since", "2026-11-21T00:00:04", "--json") == 0
    [trend] = json.loads(capsys.readouterr().out)
    assert len(trend["points"]) == trend["runs"] == 6
    assert run("history", "--since", "1000000000w", "--limit", "2", "--json") == 0
    [trend] = json.loads(capsys.readouterr().out)
    assert (len(trend["points"]), trend["runs"]) == (2, 10)
    assert run("history", "--since", "yesterday") == 2
    assert "neither a date" in capsys.readouterr().err


def test_a_metric_that_does_not_exist(capsys: Capture) -> None:
    assert run("history", "--metric", "latncy_ms") == 2
    assert "did you mean latency_ms" in capsys.readouterr().err


def test_export_and_import(store: Store, capsys: Capture, tmp_path: Path) -> None:
    file = str(tmp_path / "all.jsonl")
    assert run("history", "export", file) == 0
    assert capsys.readouterr().err == f"10 records written to {file}\n"
    assert run("history", "export") == 0
    assert capsys.readouterr().out == Path(file).read_text()
    other = str(tmp_path / "other.db")
    assert run("history", "--store", other, "import", file, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"new": 10, "known": 0, "bad": []}
    (tmp_path / "bad.jsonl").write_text('{"x": 1}\n')
    assert run("history", "--store", other, "import", file, str(tmp_path / "bad.jsonl")) == 2
    shown = capsys.readouterr()
    assert shown.out == f"0 new records in {other}, 10 known already\n"
    assert f"{tmp_path}/bad.jsonl:1: " in shown.err


def test_an_export_does_not_destroy_the_history(store: Store, data_folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("etdeploy.core.console.message", lambda _: None)
        assert run("history", "export", str(data_folder / "history.db")) == 2
    assert store.count() == 10


def test_old_runs_are_pruned(store: Store, capsys: Capture, tmp_path: Path) -> None:
    # The runs of the fixture started on 2026-11-21; the latest 300 of a living series stay.
    long_ago = "2020-01-"
    old = [run_at(i, 1.0, started_at=f"{long_ago}0{i}T00:00:00+00:00") for i in (1, 2, 3)]
    for number, record in enumerate(old):
        store.add(record.model_copy(update={"run_id": f"old-{number}"}))
    store.add(
        run_at(
            9, 1.0, run_id="dead", recipe=recipe_named("dead"), started_at=f"{long_ago}05T00:00:00Z"
        )
    )
    assert run("history", "prune", "--keep", "2021-01-01", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("would delete: 1 run, ")
    assert "3 older runs stay" in shown
    assert store.count() == 14
    arguments = ("prune", "--keep", "2021-01-01", "--keep-records", "2026-11-22", "--json")
    assert run("history", *arguments) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["runs"], done["records"], done["referenced"]) == (1, 12, 3)
    assert store.count() == 13
    with pytest.raises(UsageError, match="its record was deleted") as raised:
        find_recorded_run(run_at(0).run_id, tmp_path, require_location(None))
    assert "etdeploy history prune" in raised.value.message
    assert run("history", "export", str(tmp_path / "runs.jsonl")) == 0
    shown = capsys.readouterr().err
    assert "1 record written" in shown
    assert "12 runs have no record any more" in shown


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ((), "nothing says what is old"),
        (("--keep", "2h"), "--keep has to be a day ago"),
        (("--keep-records", "2999-01-01"), "--keep-records has to be a day ago"),
        (("--keep", "30d", "--keep-records", "90d"), "--keep-records is longer than --keep"),
        (("--keep", "x"), "neither a date"),
    ],
)
def test_what_cannot_be_pruned(
    options: tuple[str, ...], what: str, store: Store, capsys: Capture
) -> None:
    assert run("history", "prune", *options) == 2
    assert what in capsys.readouterr().err
    assert store.count() == 10


def test_a_run_that_passes(store: Store, capsys: Capture, tmp_path: Path) -> None:
    measured(tmp_path, 1.01)
    assert run("check", "--runs-in", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{run_at(99).run_id}: passed: ")
    entry = store.entry(run_at(99).run_id)
    assert entry
    assert entry.judgement == "passed"


def test_a_run_that_regressed(store: Store, capsys: Capture, tmp_path: Path) -> None:
    measured(tmp_path, 1.3)
    assert run("check", "--runs-in", str(tmp_path)) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{run_at(99).run_id}: REGRESSED\n")
    assert "latency              REGRESSED" in shown.out
    assert "error (regression): " in shown.err
    assert (
        f"changed then: etdeploy history --series {series_from(run_at(1)).key[:8]}\n" in shown.err
    )
    again = f"etdeploy bench --recipe mlp.yaml --device host --output {tmp_path}\n"
    assert f"Measure again: {again}" in shown.err
    assert run("check", "--runs-in", str(tmp_path), "--max-slowdown", "50%") == 0
    capsys.readouterr()
    assert run("check", "--runs-in", str(tmp_path), "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["findings"][0]["metric"]) == ("regressed", "latency_ms")


def test_too_little_history_is_no_failure(capsys: Capture, tmp_path: Path) -> None:
    measured(tmp_path, 1.3)
    assert run("check", "--runs-in", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "not enough history: 0 " in shown
    assert "etdeploy bench --recipe " in shown


@pytest.mark.parametrize("latency_ms", [None, 1.3])
def test_a_required_verdict_that_is_missing_is_a_failure_with_a_code_of_its_own(
    latency_ms: float | None, store: Store, capsys: Capture, tmp_path: Path
) -> None:
    required = ("check", "--runs-in", str(tmp_path), "--require-verdict")
    if latency_ms:
        measured(tmp_path, latency_ms)
        assert run(*required) == 1  # a regression is a verdict
        return
    record = run_at(99, 1.3, recipe=recipe_named("new"))
    record.save(tmp_path / record.run_id / "record.json")
    junit = tmp_path / "check.xml"
    assert run(*required, "--junit", str(junit)) == 6
    shown = capsys.readouterr().err
    assert "error (no verdict): " in shown
    assert "not enough history: 0 comparable runs" in shown
    assert "what to do: Measure more often: etdeploy bench --recipe " in shown
    assert Xml.parse(junit).getroot().get("failures") == "1"  # noqa: S314 - written here
    assert run(*required[:-1], "--junit", str(junit)) == 0
    assert Xml.parse(junit).getroot().get("failures") == "0"  # noqa: S314
    cases = Xml.parse(junit).getroot().findall("testsuite/testcase")  # noqa: S314
    assert all(case.find("skipped") is not None for case in cases)


def test_a_check_for_ci(
    store: Store, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, junit, markdown = (tmp_path / name for name in ("summary", "c.xml", "c.md"))
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    measured(tmp_path, 1.3)
    files = ("--junit", str(junit), "--markdown", str(markdown))
    asked = ("check", "--runs-in", str(tmp_path), *files, "--github")
    assert run(*asked) == 1
    [error] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert error.startswith("::error title=etdeploy check%3A latency regressed::mlp on host (Test")
    suite = Xml.parse(junit).getroot()[0]  # noqa: S314 - written here
    assert suite.get("name") == "host (Test CPU)"
    [bad] = [case for case in suite if case.find("failure") is not None]
    assert bad.get("name") == "mlp: latency"
    assert "🔴 REGRESSED" in markdown.read_text()
    assert summary.read_text() == "before\n" + markdown.read_text()
    # The files are written again, and JSON is alone on its stream.
    assert run(*asked, "--json") == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out)["verdict"] == "regressed"
    assert "::error title=" in shown.err
    (tmp_path / "c.xml").write_text("<mine/>")
    assert run(*asked) == 2
    assert (tmp_path / "c.xml").read_text() == "<mine/>"


def test_names_in_annotations_are_not_commands(capsys: Capture, tmp_path: Path) -> None:
    evil = "a%0A::set-output x\n::error::, b: c"
    with open_store(require_location(None)) as opened:
        fill(opened, [1.0, 1.01, 0.99, 1.0, 1.02, 0.98], recipe=recipe_named(evil))
    record = run_at(99, 1.3, recipe=recipe_named(evil))
    record.save(tmp_path / record.run_id / "record.json")
    assert run("check", "--runs-in", str(tmp_path), "--github") == 1
    out = capsys.readouterr().out
    [command] = [line for line in out.splitlines() if line.lstrip().startswith("::")]
    assert "::a%250A::set-output x%0A::error::, b: c on host" in command


def test_the_remedy_of_a_regression_can_be_followed(
    store: Store, capsys: Capture, tmp_path: Path
) -> None:
    measured(tmp_path, 1.3)
    place = store.place.file
    named = ("--store", str(place))
    assert run("check", "--runs-in", str(tmp_path), *named) == 1
    told = capsys.readouterr().err
    [line] = [line for line in told.splitlines() if "etdeploy history" in line]
    command = line.partition("etdeploy ")[2]
    assert command.endswith(f"--store {place}")
    assert run(*shlex.split(command)) == 0
    assert "mlp on host (Test CPU)" in capsys.readouterr().out


def test_the_url_of_a_server_is_not_repeated() -> None:
    series = series_from(run_at(1))
    command = history.history_command(series, "postgresql://me:secret@localhost/db")
    assert command == f"etdeploy history --series {series.key[:8]}"


def test_against_one_run(store: Store, capsys: Capture, tmp_path: Path) -> None:
    measured(tmp_path, 1.3)
    assert run("check", "--runs-in", str(tmp_path), "--against", run_at(3).run_id) == 1
    shown = capsys.readouterr()
    assert f"checked against {run_at(3).run_id}" in shown.out
    assert run("check", "--runs-in", str(tmp_path), "--against", "nothing") == 2
    assert "'nothing'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["much", "-5%", "5%%", "nan", "1e9"])
def test_what_is_no_percentage(text: str, capsys: Capture) -> None:
    assert run("check", f"--max-slowdown={text}") == 2
    assert "percentage" in capsys.readouterr().err


def test_a_history_that_cannot_be_used_is_told_once(
    capsys: Capture, tmp_path: Path, data_folder: Path
) -> None:
    measured(tmp_path, 1.0)
    data_folder.mkdir(parents=True, exist_ok=True)
    (data_folder / "history.db").write_text("something else, longer than a header" * 9)
    assert run("check", "--runs-in", str(tmp_path)) == 2
    assert capsys.readouterr().err.count("not a SQLite database") == 1


def test_no_history_is_kept(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_STORE", "none")
    measured(tmp_path, 1.0)
    assert run("check", "--runs-in", str(tmp_path)) == 2
    assert "ETDEPLOY_STORE=none" in capsys.readouterr().err


def test_a_page(
    store: Store, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("history", "--format", "html") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'etdeploy-history.html'}\n"
    page = tmp_path / "mine.html"
    for _ in range(2):
        assert run("history", "-o", str(page)) == 0
    assert "plot-0" in page.read_text()
    page.write_text("my notes")
    capsys.readouterr()
    assert run("history", "-o", str(page)) == 2
    assert "mine.html" in capsys.readouterr().err
    assert page.read_text() == "my notes"


@pytest.mark.parametrize("options", [("--json",), ("--format", "text")])
def test_a_page_is_not_printed(options: tuple[str, ...], capsys: Capture, tmp_path: Path) -> None:
    assert run("history", "-o", str(tmp_path / "x.html"), *options) == 2
    assert "page" in capsys.readouterr().err


def test_pages_of_all_series(
    store: Store, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("etdeploy.history.entry.run_git", lambda *_: None)
    store.add(run_at(70, recipe=recipe_named("other")))
    assert run("history", "pages", "pages") == 0
    assert capsys.readouterr().out == f"{tmp_path}/pages/index.html\n"
    keys = {series_from(run_at(0, recipe=recipe_named(name))).key for name in ("mlp", "other")}
    names = {path.name for path in Path("pages").iterdir()}
    assert names == {"index.html", "devices.html", *(f"series-{key}.html" for key in keys)}
    assert "2 series, 11 runs" in Path("pages/index.html").read_text()
    assert run("history", "--recipe", "other", "pages", "some") == 0
    assert len(list(Path("some").iterdir())) == 3
    assert run("history", "--recipe", "neither", "pages", "none") == 2
    assert "there are no runs to show" in capsys.readouterr().err
    assert not Path("none").exists()


def test_the_health_of_devices(capsys: Capture) -> None:
    assert run("history", "devices") == 0
    assert capsys.readouterr().out.startswith("no devices in ")
    with open_store(require_location(None)) as opened:
        keep_weeks(opened)
    assert run("history", "devices") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:4]]
    assert [row[:3] for row in rows] == [["android:S1", "33", "%"], ["android:S2", "-", "-"]]
    assert run("history", "--device", "s2", "devices", "--json") == 0
    [other] = json.loads(capsys.readouterr().out)
    assert (other["device"], other["weeks"][0]["quarantined_percent"]) == ("android:S2", 50.0)
    assert run("history", "--since", "2026-11-09", "devices", "--json") == 0
    [phone] = json.loads(capsys.readouterr().out)
    assert [week["week"] for week in phone["weeks"]] == ["2026-11-09"]
    assert run("history", "--recipe", "mlp", "devices") == 2
    assert "Leave out --recipe" in capsys.readouterr().err
