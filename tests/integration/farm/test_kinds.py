"""Devices of every kind in one night: this machine, a phone, a board and an iPhone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.integration.apps.test_run_ios import APP, archived, measuring
from tests.support.adbd import (  # noqa: F401 - fixtures
    AdbServer,
    MakeAndroid,
    adb_server,
    make_android,
)
from tests.support.cli import Cli
from tests.support.export import export_workspace  # noqa: F401 - a fixture
from tests.support.ios_phone import UDID, IosPhone
from tests.support.pymobiledevice3 import pymobiledevice3  # noqa: F401 - a fixture
from tests.support.sshd import MakeBoard, make_board  # noqa: F401 - a fixture

pytestmark = pytest.mark.integration

# The program is that of the tests of apps, so that it is exported once for all.
RECIPE = f"""
model: {{example: mlp, arguments: {{features: 48, width: 96, layers: 2}}}}
export: {{backend: xnnpack}}
benchmark: {{runs: 1, iterations: 20, warmup: 3}}
app: {{id: {APP}}}
"""
FARM = """\
name: kinds
recipes: [{recipe: net.yaml, app: mine.ipa}]
devices:
  here: {name: host}
  phones: {kind: android}
  boards: {name: "BOARD"}
  iphones: {kind: ios}
repeats: 1
reports: {html: night.html, markdown: night.md, junit: night.xml}
"""


@pytest.fixture
def iphone(tmp_path: Path) -> Iterator[IosPhone]:
    folder = tmp_path / "iphone"
    folder.mkdir()
    with IosPhone(folder) as phone:
        yield phone


@pytest.mark.nightly
def test_a_night_on_devices_of_every_kind(
    make_android: MakeAndroid,  # noqa: F811
    adb_server: AdbServer,  # noqa: F811
    make_board: MakeBoard,  # noqa: F811
    iphone: IosPhone,
    pymobiledevice3: Path,  # noqa: F811
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
) -> None:
    phone, swollen, board = make_android(), make_android(), make_board()
    for each in (phone, swollen):
        adb_server.connect(each)
    folder = tmp_path / "farm"
    folder.mkdir()
    env = {
        **iphone.environment, "ETDEPLOY_PYMOBILEDEVICE3": str(pymobiledevice3),
        "ETDEPLOY_STORE": str(tmp_path / "history.db"), "HOME": str(tmp_path),
    }  # fmt: skip
    cli = Cli(export_workspace.root, folder, env)
    cli.recipe(RECIPE, "net.yaml")
    cli.ok("app", "ios", "-r", "net.yaml", "-o", "MyApp")
    payload = folder / "MyApp" / "Model"
    iphone.app = measuring(payload, json.loads((payload / "model.json").read_text()))
    archived(payload, folder / "mine.ipa")
    (folder / "farm.yaml").write_text(FARM.replace("BOARD", board.spec))
    # Its app is given, so that nothing is built for the iPhone, which would take a Mac.
    pieces = cli.ok("farm", "plan", "--json").json["pieces"]
    classes = [name for each in pieces if each["step"] == "build" for name in each["classes"]]
    assert classes
    assert not [name for name in classes if name.startswith("ios")]

    cli.ok("farm", "quarantine", swollen.spec, "--reason", "its battery is swollen")
    done = cli("farm", "run", "--json")
    *visits, totals = map(json.loads, done.stdout.splitlines())
    assert (done.code, totals["exit_code"]) == (0, 0), done.stderr
    done_on = {each["device"] for each in visits if each["standing"] == "done"}
    assert done_on == {"host", phone.spec, board.spec, f"ios:{UDID}"}
    [left] = [each for each in visits if each["standing"] != "done"]
    assert left["reason"].endswith("its battery is swollen")
    # A device that was not measured has its name nevertheless.
    cli.ok("farm", "reserve", "host", "--owner", "anna@wolf", "--for", "1h")
    assert f"1 visit missed: net on {swollen.spec}" in cli.ok("farm", "report").stdout
    devices = cli.ok("farm", "status", "--json").json["devices"]
    now = {each["label"]: each["now"] for each in devices}
    assert (now[swollen.spec], now["host"]) == ("quarantined", "reserved")
