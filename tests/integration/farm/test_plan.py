"""`farm init` and `farm plan` by the real command line, with the devices of this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.adbd import (  # noqa: F401 - fixtures
    AdbServer,
    MakeAndroid,
    adb_server,
    make_android,
)
from tests.support.cli import Cli

pytestmark = pytest.mark.integration


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "cache", tmp_path, {"ETDEPLOY_STORE": str(tmp_path / "history.db")})


def test_what_init_writes_can_be_planned(cli: Cli) -> None:
    written = cli.ok("farm", "init", "lab").stdout.splitlines()
    assert {Path(name).name for name in written} >= {"farm.yaml", "farm.yml"}
    plan = cli("farm", "plan", "lab/farm.yaml", "--json")
    # A phone that is plugged in here may be of no use now.
    assert plan.code in (0, 6)
    assert plan.json["farm"] == "lab"
    again = cli.ok("farm", "init", "lab")
    assert again.stdout == ""
    assert "farm plan lab/farm.yaml" in again.stderr


def test_a_plan_tells_what_is_made_once_and_what_is_not_there(cli: Cli) -> None:
    (cli.folder / "farm.yaml").write_text(
        """
recipes: [portable, {recipe: portable, label: again, set: [benchmark.runs=2]}]
devices: {here: {name: host}, bench: {name: "android:R5CT20XYZ"}, next: {name: "ssh:a@127.0.0.1:1"}}
repeats: 2
"""
    )
    done = cli.ok("farm", "plan", "--json")
    plan = done.json
    assert plan["visits"] == 4
    assert plan["guessed"]
    assert [(piece["step"], piece["recipes"]) for piece in plan["pieces"]] == [
        ("export", ["portable", "again"]),
        ("build", ["portable", "again"]),
    ]
    reasons = {each["group"]: each["reason"] for each in plan["unsatisfied"]}
    assert "android:R5CT20XYZ" in reasons["bench"]
    assert "host" in reasons["bench"]
    assert reasons["next"].startswith("ssh:a@127.0.0.1:1 ")
    assert not (cli.folder / "farm-results").exists()


def test_two_phones_with_one_serial_number(
    cli: Cli,
    make_android: MakeAndroid,  # noqa: F811
    adb_server: AdbServer,  # noqa: F811
) -> None:
    first, second = (make_android(ro_serialno="0123456789ABCDEF") for _ in range(2))
    for phone in (first, second):
        adb_server.connect(phone)
    (cli.folder / "farm.yaml").write_text(
        f"recipes: [portable]\nrepeats: 1\n"
        f"devices: {{a: {{name: '{first.spec}'}}, b: {{name: '{second.spec}'}}}}\n"
    )
    plan = cli.ok("farm", "plan", "--json").json
    assert plan["visits"] == 1
    [missing] = plan["unsatisfied"]
    names = {"a": (first.spec, second.spec), "b": (second.spec, first.spec)}
    dropped, used = names[missing["group"]]
    assert missing["reason"].startswith(f"{dropped} ")
    assert f"serial number as {used}" in missing["reason"]


def test_nothing_at_all_can_be_measured(cli: Cli) -> None:
    text = "recipes: [portable]\ndevices: {bench: {name: 'android:R5CT20XYZ'}}\n"
    (cli.folder / "farm.yaml").write_text(text)
    done = cli("farm", "plan")
    assert done.code == 6
    assert "android:R5CT20XYZ" in done.stdout
    assert "farm.yaml" in done.stderr


def test_a_wrong_farm_is_one_message_without_a_traceback(cli: Cli) -> None:
    (cli.folder / "farm.yaml").write_text("recipes: [portable]\ndevices: {a: {knd: host}}\n")
    done = cli("farm", "plan")
    assert (done.code, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error (farm): ")
    assert " farm.yaml:2:15: " in line
    assert all(key in line for key in ("'devices.a.knd'", "'kind'"))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_the_units(cli: Cli) -> None:
    cli.ok("farm", "init", "50% of it")
    units = sorted((cli.folder / "50% of it" / "systemd").iterdir())
    assert [unit.suffix for unit in units] == [".service", ".timer"]
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # It only warns of keys that it does not know, and finds that the command is a file.
    assert (done.returncode, done.stderr) == (0, "")
