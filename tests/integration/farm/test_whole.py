"""Whole nights by the real command line: a phone and this machine, a history, reports."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.adbd import (  # noqa: F401 - fixtures
    AdbServer,
    AndroidRoot,
    MakeAndroid,
    adb_server,
    make_android,
)
from tests.support.cli import Cli
from tests.support.export import export_workspace  # noqa: F401 - a fixture

pytestmark = pytest.mark.integration

MLP = "model: {example: mlp}\nexport: {backend: xnnpack}\n"
ONCE = "benchmark: {runs: 1, iterations: 5, warmup: 1}\n"
FARM = """\
name: shelf
recipes: [mlp.yaml, {recipe: mlp.yaml, label: more, set: [benchmark.iterations=7]}]
devices: {here: {name: host}, phones: {kind: android}}
repeats: 2
reports: {html: night.html, markdown: night.md, junit: night.xml}
"""


@pytest.fixture
def phone(
    make_android: MakeAndroid,  # noqa: F811
    adb_server: AdbServer,  # noqa: F811
) -> AndroidRoot:
    found = make_android()
    adb_server.connect(found)
    return found


@pytest.fixture
def cli(
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
    phone: AndroidRoot,
) -> Cli:
    folder = tmp_path / "farm"
    folder.mkdir()
    (folder / "mlp.yaml").write_text(MLP + ONCE)
    # adb's key is the test's own.
    env = {"ETDEPLOY_STORE": str(tmp_path / "history.db"), "HOME": str(tmp_path)}
    return Cli(export_workspace.root, folder, env)


def lines_of(stdout: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The visits of `--json`, and the totals."""
    *visits, totals = map(json.loads, stdout.splitlines())
    return visits, totals


def test_a_night_that_is_stopped_in_the_middle_and_gone_on_with(
    cli: Cli, phone: AndroidRoot
) -> None:
    told = [sys.executable, "-c", "import sys; open('told.json', 'w').write(sys.stdin.read())"]
    (cli.folder / "farm.yaml").write_text(f"{FARM}on_end: {json.dumps(told)}\n")
    night = cli.start("farm", "run", "--now", "--json")
    assert night.stdout is not None
    before = json.loads(night.stdout.readline())
    night.send_signal(signal.SIGINT)
    stdout, stderr = night.communicate(timeout=60)
    first, totals = lines_of(stdout)
    first.insert(0, before)
    assert (night.returncode, totals["exit_code"], totals["stopped"]) == (130, 130, True), stderr
    # One export for both recipes and both devices.
    made = [line for line in stderr.splitlines() if "program.pte" in line and line[:6] == "export"]
    assert len(made) == 1, stderr
    assert "verifying" not in stderr, "live display"
    assert not (cli.folder / "told.json").exists()
    assert "stopped: etdeploy farm" in cli.ok("farm", "status").stdout

    rest = cli.ok("farm", "run", "--now", "--json")
    assert f"resuming night {totals['night']}" in rest.stderr
    second, totals = lines_of(rest.stdout)
    visits = first + second
    assert len({each["visit"] for each in visits}) == len(visits) == 8
    assert {(each["recipe"], each["device"], each["repeat"]) for each in visits} == {
        (recipe, device, repeat)
        for recipe in ("mlp", "more")
        for device in ("host", phone.spec)
        for repeat in (1, 2)
    }
    assert {each["standing"] for each in visits} == {"done"}
    assert (totals["stopped"], totals["totals"]["done"], totals["exit_code"]) == (False, 8, 0)
    # Each pair is judged with its last repeat; there are no earlier nights.
    assert [each["verdict"] for each in visits].count("not judged") == 4
    results = cli.folder / "farm-results"
    assert (results / ".etdeploy-farm").is_file()
    records = {json.loads(p.read_text())["run_id"] for p in results.glob("*/*/record.json")}
    assert records == {each["run_id"] for each in visits}

    assert totals["records"] == [str(path) for path in results.iterdir() if path.is_dir()]
    assert totals["reports"] == [str(cli.folder / f"night.{end}") for end in ("html", "md", "xml")]
    assert "<html" in (cli.folder / "night.html").read_text()
    assert "| mlp |" in (cli.folder / "night.md").read_text()
    suites = ElementTree.parse(cli.folder / "night.xml").getroot()  # noqa: S314 - our own
    assert len(list(suites.iter("testcase"))) == 4
    summary = json.loads((cli.folder / "told.json").read_text())
    assert (summary["night"], summary["totals"]["done"]) == (totals["night"], 8)
    assert summary["files"] == totals["reports"]
    assert summary | {"files": []} == json.loads(cli.ok("farm", "report", "--json").stdout)
    shown = cli.ok("farm", "report").stdout
    assert "8 of 8 visits measured" in shown


def test_a_recipe_that_crashes_and_a_phone_of_somebody_else(cli: Cli, phone: AndroidRoot) -> None:
    (cli.folder / "broken.py").write_text("def make():\n    raise ValueError('no such model')\n")
    (cli.folder / "broken.yaml").write_text("model: {python: 'broken.py:make'}\n")
    changed = FARM.replace("recipes: [", "recipes: [broken.yaml, ").replace("repeats: 2", _TODAY)
    (cli.folder / "farm.yaml").write_text(changed)
    cli.ok("farm", "reserve", phone.spec, "--owner", "anna@wolf", "--for", "3d")
    done = cli("farm", "run", "--json")
    visits, totals = lines_of(done.stdout)
    assert done.code == totals["exit_code"] == 3, done.stderr
    found = {(each["recipe"], each["device"] or each["identity"]): each for each in visits}
    assert len(found) == 6
    for (recipe, device), each in found.items():
        if recipe == "broken":
            assert (each["standing"], each["failure"]["kind"]) == ("failed", "export")
            assert "no such model" in each["failure"]["message"]
        elif device == "host":
            assert each["standing"] == "done"
        else:
            assert each["standing"] == "missed"
            assert "anna@wolf" in each["reason"]
    assert "the worst: " in done.stderr
    # A person's own run is refused, too.
    refused = cli("run", "--recipe", "mlp.yaml", "--device", phone.spec)
    assert refused.code == 6
    assert "anna@wolf" in refused.stderr


# Open all day, so that a reservation for days outlasts it.
_TODAY = 'repeats: 1\nspread: false\nwindow: {from: "00:00", until: "24:00"}'
