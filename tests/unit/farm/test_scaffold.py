"""The files that `farm init` writes."""

from __future__ import annotations

import shlex
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from etdeploy.core.errors import UsageError
from etdeploy.devices.base import DeviceFacts, DeviceListing
from etdeploy.farm.scaffold import FarmSite, cron_of, farm_files, groups_of, unit_word, write_new
from etdeploy.farm.spec.load import load_farm


def listing(name: str, model: str | None = None, status: str = "device") -> DeviceListing:
    kind = name.partition(":")[0]
    facts = DeviceFacts(name=name, kind=kind, target="android-arm64", model=model)
    return DeviceListing(name=name, kind=kind, status=status, facts=facts if model else None)


def here(folder: Path, *devices: DeviceListing, **changes: Any) -> FarmSite:
    values: dict[str, Any] = {
        "folder": folder, "devices": devices, "command": Path("/opt/a b/etdeploy"),
        "repository": folder, "timezone": "Europe/Berlin", "recipe": "xnnpack",
    }  # fmt: skip
    return FarmSite(**(values | changes))


PHONES = (listing("host"), listing("android:A1", "Pixel 8"), listing("android:B2", "Pixel 8"))


def texts(folder: Path, *devices: DeviceListing, **changes: Any) -> dict[str, str]:
    files = farm_files(here(folder, *devices, **changes))
    return {path.relative_to(folder).as_posix(): text for path, text in files.items()}


def unit(text: str) -> RawConfigParser:
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return parser


@pytest.mark.parametrize("devices", [(), PHONES])
def test_the_farm_can_be_read(tmp_path: Path, devices: tuple[DeviceListing, ...]) -> None:
    write_new(farm_files(here(tmp_path / "lab", *devices)))
    farm = load_farm(tmp_path / "lab" / "farm.yaml").farm
    assert farm.name == "lab"
    assert list(farm.groups) == (["pixel-8", "pixel-8-2"] if devices else ["here"])
    assert (farm.window is not None) == (farm.gates.battery_percent is not None) == bool(devices)
    assert farm.reports.junit == tmp_path / "lab/farm-results/night.xml"


def test_each_device_has_a_group_and_what_it_lacks() -> None:
    found = groups_of([listing("host"), listing("android:A'1", status="unauthorized")])
    assert [(g.name, g.properties, g.comment) for g in found] == [
        ("android-a-1", "name: 'android:A''1'", "now: unauthorized")
    ]


def test_the_workflow_runs_the_farm_and_uploads_its_reports(tmp_path: Path) -> None:
    folder = tmp_path / "my lab"
    files = farm_files(here(folder, *PHONES, repository=tmp_path))
    content = yaml.safe_load(files[tmp_path / ".github/workflows/farm.yml"])
    assert set(content) == {"name", True, "concurrency", "permissions", "jobs"}  # YAML 1.1: on
    [job] = content["jobs"].values()
    assert job["runs-on"] == ["self-hosted", "etdeploy"]
    by_name = {step.get("name"): step for step in job["steps"]}
    removed, measured = map(shlex.split, by_name["Measure"]["run"].splitlines())
    assert measured[-2:] == ["run", "my lab/farm.yaml"]
    # Those of an earlier night would else be published where this one ends early.
    reports = [f"my lab/farm-results/night.{kind}" for kind in ("html", "md", "xml")]
    assert removed == ["rm", "-f", *reports]
    assert f"cat '{reports[1]}' >> " in by_name["Summary"]["run"]
    upload = by_name["Reports"]
    assert upload["with"]["path"].splitlines() == reports
    assert upload["with"]["name"] == "my-lab-${{ github.run_id }}"
    assert upload["if"] == by_name["Summary"]["if"] == "always()"


def test_the_units_start_this_etdeploy_in_that_folder(tmp_path: Path) -> None:
    folder = tmp_path / "50% lab"
    files = texts(folder, *PHONES)
    service = unit(files["systemd/etdeploy-50-lab.service"])["Service"]
    assert service["ExecStart"] == (f'"/opt/a b/etdeploy" farm run "{tmp_path}/50%% lab/farm.yaml"')
    assert service["WorkingDirectory"] == f"{tmp_path}/50%% lab"
    assert service["SuccessExitStatus"] == "1"
    timer = unit(files["systemd/etdeploy-50-lab.timer"])
    assert timer["Timer"]["OnCalendar"] == "*-*-* 21:55:00"
    assert timer["Install"]["WantedBy"] == "timers.target"


@pytest.mark.parametrize(
    ("word", "written"),
    [("/a/b", "/a/b"), ("a b", '"a b"'), ("50%", "50%%"), ('a"b', '"a\\"b"'), ("$HOME", '"$$HOME"'),
     ("a\\b", '"a\\\\b"')],
)  # fmt: skip
def test_words_of_a_unit(word: str, written: str) -> None:
    assert unit_word(word) == written


def test_a_line_break_in_the_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line break"):
        farm_files(here(tmp_path / "a\nExecStart=/bin/x"))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    files = farm_files(here(tmp_path, *PHONES))
    assert write_new(files) == list(files)
    assert write_new(files) == []
    (tmp_path / "farm.yaml").write_text("mine")
    (tmp_path / ".github/workflows/farm.yml").unlink()
    with pytest.raises(UsageError, match="nothing was written") as caught:
        write_new(files)
    assert caught.value.place == str(tmp_path / "farm.yaml")
    assert (tmp_path / "farm.yaml").read_text() == "mine"
    assert not (tmp_path / ".github/workflows/farm.yml").exists()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="Not a directory"):
        write_new(farm_files(here(tmp_path / "file" / "lab")))


@pytest.mark.parametrize(
    ("timezone", "cron"),
    [
        (None, "55 21 * * *"),
        ("Etc/UTC", "55 21 * * *"),
        ("Europe/Berlin", "55 19 * * *"),  # 20:55 in winter, by summer's clock
        ("Asia/Kolkata", "25 16 * * *"),
        ("Pacific/Auckland", "55 8 * * *"),
        ("America/Los_Angeles", "55 4 * * *"),
        ("America/Miquelon", "55 23 * * *"),
    ],
)
def test_a_workflow_starts_before_the_window_opens_in_summer_and_in_winter(
    timezone: str | None, cron: str
) -> None:
    assert cron_of(timezone) == cron
