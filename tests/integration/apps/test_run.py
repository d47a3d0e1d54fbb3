"""A recipe's program in an app, from the command line: real exports, a real adbd, a played app."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.adbd import MakeAndroid, make_android, no_adb_server
from tests.support.app_phone import APP_ID, WRITE, AppPhone, make_app_phone
from tests.support.cli import Cli
from tests.support.export import export_workspace
from tests.support.reached import Reached

pytestmark = pytest.mark.integration

__all__ = ["export_workspace", "make_android", "no_adb_server"]

RECIPE = f"""
model: {{example: mlp, arguments: {{features: 48, width: 96, layers: 2}}}}
export: {{backend: xnnpack}}
benchmark: {{iterations: 20, warmup: 3, timeout_s: 60}}
app: {{id: {APP_ID}}}
"""
PAYLOAD = "app/src/main/assets/model"
STRINGS = "app/src/main/res/values/strings.xml"


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:
    found = Cli(export_workspace.root, tmp_path, {})
    found.recipe(RECIPE)
    return found


@pytest.fixture
def project(cli: Cli) -> Path:
    cli.ok("app", "android", "-r", "recipe.yaml", "-o", "MyApp")
    return cli.folder / "MyApp"


@pytest.fixture
def apk(project: Path) -> Path:
    """An archive with what a build puts into an app, as far as etdeploy looks at it."""
    path = project.parent / "mine.apk"
    with zipfile.ZipFile(path, "w") as archive:
        for file in (project / PAYLOAD).rglob("*"):
            archive.write(file, f"assets/model/{file.relative_to(project / PAYLOAD)}")
    return path


@pytest.fixture
def phone(make_android: MakeAndroid, no_adb_server: None, project: Path) -> AppPhone:
    """A phone whose app gives what the model gives."""
    root = make_android(size_mib=64)
    made = make_app_phone(Reached(root, None, None))  # type: ignore[arg-type]
    model = json.loads((project / PAYLOAD / "model.json").read_text())
    [expected] = model["sizes"][0]["expected"]
    made.put("output-0.bin", (project / PAYLOAD / expected["path"]).read_bytes())
    written = {key: expected[key] for key in ("kind", "dtype", "shape")}
    results = {
        "schema_version": 1,
        "executorch_version": "1.5.1",
        "started_unix_s": 1,
        "threads": 4,
        "load_program_ms": 1.5,
        "rss_after_load_bytes": 50_000_000,
        "peak_rss_bytes": 60_000_000,
        "method": "forward",
        "warmup": 3,
        "load_method_ms": 0.5,
        "first_inference_ms": 2.0,
        "outputs": [{**written, "path": "output-0.bin"}],
        "samples_ms": [1.0, 1.25] * 10,
    }
    made.results(results=results)
    made.plays(
        f"{WRITE}\n"
        "for to in $private $external; do mkdir -p $to/outputs\n"
        "cat /mnt/output-0.bin >$to/outputs/output-0.bin; write $run_id $to\n"
        "done; sleep 1000\n"
    )
    return made


def run(cli: Cli, phone: AppPhone, apk: Path, *more: str) -> list[str]:
    return [
        "run", "-r", "recipe.yaml", "--device", phone.reached.root.spec, "--as", "app",
        "--app", str(apk), *more,
    ]  # fmt: skip


def test_an_app_gives_the_record_that_a_runner_gives(cli: Cli, phone: AppPhone, apk: Path) -> None:
    record = cli.ok(*run(cli, phone, apk, "--runs", "2", "--json")).json
    assert record["runner"]["app"] == {
        "id": APP_ID,
        "version": "",
        "artifacts": ["org.pytorch:executorch-android:1.5.1"],
        "build": "given",
    }
    assert record["runner"]["provider"] == "prebuilt"
    assert record["workload"]["latency_ms"]["samples"] == [1.0, 1.25] * 20
    assert [o["within_tolerance"] for o in record["workload"]["outputs"]] == [True]
    assert record["peak_rss_bytes"] == 60_000_000
    assert sorted(record["passes"]) == ["memory", "timing", "timing.2"]
    assert any("records no trace" in note for note in record["notes"])
    started = [line for line in phone.log("am") if line.startswith("start")]
    assert len(started) == 3
    assert all(f"{APP_ID}/.MainActivity" in line for line in started)
    assert "--ei iterations 20" in started[0]
    assert "--ez outputs true" in started[0]
    assert "--ez" not in started[1]


def test_the_summary_names_the_app_and_nothing_is_done_twice(
    cli: Cli, phone: AppPhone, apk: Path
) -> None:
    first = cli.ok(*run(cli, phone, apk))
    assert f" app {APP_ID}" in first.stdout
    assert "correct" in first.stdout
    again = cli.ok(*run(cli, phone, apk))
    assert "Nothing has changed" in again.stderr
    assert len([line for line in phone.log("pm") if line.startswith("install")]) == 1


def test_an_app_of_another_program_is_refused(
    cli: Cli, phone: AppPhone, project: Path, tmp_path: Path
) -> None:
    model = json.loads((project / PAYLOAD / "model.json").read_text())
    with zipfile.ZipFile(tmp_path / "other.apk", "w") as archive:
        text = json.dumps(model | {"program_sha256": "ab" * 32})
        archive.writestr("assets/model/model.json", text)
    result = cli(*run(cli, phone, tmp_path / "other.apk"))
    assert result.code == 5
    assert "made for another program" in result.stderr
    assert "etdeploy app android" in result.stderr
    assert not phone.log("am")


@pytest.mark.nightly
def test_an_archive_that_is_no_app_is_refused(cli: Cli, phone: AppPhone, tmp_path: Path) -> None:
    (tmp_path / "mine.apk").write_bytes(b"no archive")
    result = cli(*run(cli, phone, tmp_path / "mine.apk"))
    assert result.code == 2
    assert "mine.apk" in result.stderr


@pytest.mark.nightly
def test_a_failed_app_is_told_with_its_own_words(cli: Cli, phone: AppPhone, apk: Path) -> None:
    error = {"kind": "load", "message": "Missing operator: [0] mine::op.out"}
    phone.results(status="failed", error=error, results=None)
    result = cli(*run(cli, phone, apk))
    assert result.code == 7
    assert "mine::op.out" in result.stderr
    assert not list(cli.folder.glob("etdeploy-out/**/record.json"))


def test_an_app_without_memory_is_told_what_helps(cli: Cli, phone: AppPhone, apk: Path) -> None:
    error = {"kind": "memory", "message": "no room for 4 GB of weights"}
    phone.results(status="failed", error=error, results=None)
    result = cli(*run(cli, phone, apk))
    assert result.code == 7
    for fact in ("timing pass", "memory ran out", error["message"], "make the model smaller"):
        assert fact in result.stderr


def test_a_crash_of_an_app_is_named(cli: Cli, phone: AppPhone, apk: Path) -> None:
    phone.plays(
        'echo "$(date "+%m-%d %H:%M:%S").900 $$ $$ F libc    : Fatal signal 11 (SIGSEGV), code 1 '
        '(SEGV_MAPERR), fault addr 0x40 in tid $$ (Thread-6), pid $$ (example.convnet)" '
        ">/mnt/says/logcat-crash; sleep 0.3"
    )
    result = cli(*run(cli, phone, apk))
    assert result.code == 7
    for fact in ("SIGSEGV", "timing pass", "Fatal signal 11", "--device host"):
        assert fact in result.stderr
    assert not list(cli.folder.glob("etdeploy-out/**/record.json"))


@pytest.mark.nightly
def test_a_locked_phone_starts_no_app(cli: Cli, phone: AppPhone, apk: Path) -> None:
    trust = phone.path("dumpsys-trust").read_text().replace("deviceLocked=0", "deviceLocked=1")
    phone.put("dumpsys-trust", trust)
    result = cli(*run(cli, phone, apk))
    assert result.code == 6
    assert "the phone is locked" in result.stderr
    assert not any(line.startswith("start") for line in phone.log("am"))


@pytest.mark.nightly
def test_results_of_another_run_are_none(cli: Cli, phone: AppPhone, apk: Path) -> None:
    phone.plays(f"{WRITE}\nwrite 00of-another $private; sleep 1000")
    result = cli(*run(cli, phone, apk, "--set", "benchmark.timeout_s=3"))
    assert result.code == 7
    assert "longer than 3 s" in result.stderr
    assert not list(cli.folder.glob("etdeploy-out/**/record.json"))


def test_wrong_outputs_of_an_app_are_wrong(cli: Cli, phone: AppPhone, apk: Path) -> None:
    phone.put("output-0.bin", bytes(len((phone.path("output-0.bin")).read_bytes())))
    result = cli(*run(cli, phone, apk))
    assert result.code == 8
    assert "WRONG" in result.stdout


def test_the_users_edits_stay_are_merged_and_conflicts_are_named(cli: Cli, project: Path) -> None:
    strings = project / STRINGS
    mine = strings.read_text() + "<!-- mine -->\n"
    strings.write_text(mine)
    words = ("app", "android", "-r", "recipe.yaml", "-o", "MyApp")
    assert cli.ok(*words, "--json").json["kept"] == [STRINGS]
    merged = cli.ok(*words, "--set", "app.name=Another", "--json").json["merged"]
    assert merged == [STRINGS]
    assert app_name(strings.read_text()) == "Another"
    assert strings.read_text().endswith("<!-- mine -->\n")
    mine = strings.read_text().replace(">Another<", ">My own<")
    strings.write_text(mine)
    result = cli(*words, "--set", "app.name=Third")
    assert result.code == 2
    assert STRINGS in result.stderr
    assert strings.read_text() == mine
    cli.ok(*words, "--set", "app.name=Third", "--conflicts", "overwrite")
    assert app_name(strings.read_text()) == "Third"
    assert (project / "yours" / STRINGS).read_text() == mine


def app_name(strings: str) -> str:
    """The app's name among its resources."""
    found = re.search(r'<string name="app_name">(.*)</string>', strings)
    assert found
    return found[1]


def test_a_folder_of_the_users_own_is_refused_before_anything_is_exported(cli: Cli) -> None:
    (cli.folder / "mine").mkdir()
    (cli.folder / "mine" / "notes.txt").write_text("mine")
    result = cli("app", "android", "-r", "recipe.yaml", "-o", "mine", "--set", "export.seed=77")
    assert result.code == 2
    assert "export " not in result.stderr
    assert [p.name for p in (cli.folder / "mine").iterdir()] == ["notes.txt"]


def test_a_plan_tells_which_executorch_the_app_has(cli: Cli) -> None:
    plan = cli.ok("plan", "-r", "recipe.yaml", "-t", "android-arm64", "--as", "app", "--json").json
    assert plan["provider"]["value"] == "prebuilt"
    assert [task["name"] for task in plan["tasks"]] == [
        "export", "plan", "project", "runner", "bundle",
    ]  # fmt: skip


def test_an_executorch_from_source_is_named_before_android_studio(cli: Cli) -> None:
    words = ("app", "android", "-r", "recipe.yaml", "-o", "Own", "--set", "app.runtime=source")
    told = cli.ok(*words).stdout
    assert "app.runtime is source" in told
    assert "next: add --build" in told
    assert "--build" in (cli.folder / "Own" / "README.md").read_text()
    assert "Android Studio" in cli.ok(*words[:-2], "--conflicts", "overwrite").stdout


def test_a_device_without_apps_is_refused(cli: Cli) -> None:
    result = cli("run", "-r", "recipe.yaml", "--as", "app")
    assert result.code == 2
    assert "host runs no apps" in result.stderr
