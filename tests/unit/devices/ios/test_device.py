"""A phone as a device: what it is, what goes to it, what is removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.core.hashing import sha256_file
from etdeploy.devices.base import AppLaunch, Bundle, BundleFile, DeviceState, ProcessLaunch
from etdeploy.devices.ios.apps import Marker, PhoneFile
from etdeploy.devices.ios.device import IosDevice
from tests.support.ios_command import IosCommand, logged
from tests.support.ios_phone import UDID

DATA = Path(__file__).parents[3] / "data" / "ios"
APP = "org.example.convnet"
PATH = "/private/var/containers/Bundle/Application/1/ConvNet.app"
MISSING = logged("Opcode: GET_FILE_INFO failed with status: 8 (AFC status OBJECT_NOT_FOUND).")


def apps(path: str = PATH, *, debuggable: bool = True) -> str:
    return json.dumps({APP: {"Path": path, "Entitlements": {"get-task-allow": debuggable}}})


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    files = []
    for path, text in (("app.ipa", "archive"), ("program.pte", "program"), ("in/0.bin", "0")):
        source = tmp_path / path.replace("/", "-")
        source.write_text(text)
        digest = sha256_file(source)
        files.append(BundleFile(source=str(source), path=path, sha256=digest, size_bytes=len(text)))
    return Bundle(files=tuple(files), launch=AppLaunch(id=APP, archive="app.ipa"))


def marker(bundle: Bundle, **changes: object) -> dict[str, str]:
    """The file that pulling the marker of a bundle gives, as it is after a push."""
    files = {f.path: PhoneFile(sha256=f.sha256, size_bytes=f.size_bytes) for f in bundle.files[1:]}
    there = Marker(archive_sha256=bundle.files[0].sha256, installed_path=PATH, files=files)
    return {"bundle.json": there.model_copy(update=changes).model_dump_json()}


@pytest.fixture
def info(tool: IosCommand) -> None:
    """The phone tells its facts."""
    tool.answers("lockdown info", stdout=(DATA / "lockdown-info.json").read_text())


def verbs(tool: IosCommand) -> list[str]:
    return [" ".join(words[:2]) for words, _ in tool.calls]


def test_a_phone_starts_apps_and_nothing_else(phone: IosDevice) -> None:
    assert phone.name == f"ios:{UDID}"
    assert phone.identity == f"ios-{UDID}"
    assert phone.capabilities.launches == ("app",)
    assert phone.end_leftovers() == ()
    program = Bundle(files=(), launch=ProcessLaunch(argv=("runner",)))
    with pytest.raises(DeviceError, match="can run apps"):
        phone.push(program)
    with pytest.raises(DeviceError, match="can run apps"), phone.open_run(program, "r"):
        pass


def test_a_state_is_that_of_the_battery(phone: IosDevice, tool: IosCommand) -> None:
    tool.answers("diagnostics battery single", stdout=(DATA / "battery.json").read_text())
    tool.answers("diagnostics battery single", stdout="null\n")
    assert phone.state().battery_percent == 81
    assert phone.state() == DeviceState()


def test_an_answer_that_is_not_known_is_told(phone: IosDevice, tool: IosCommand) -> None:
    tool.answers("lockdown info", stdout="Usage: pymobiledevice3")
    with pytest.raises(DeviceError, match="reading its facts"):
        phone.facts()


def test_a_first_push_installs_and_sends_everything(
    phone: IosDevice, tool: IosCommand, info: None, bundle: Bundle
) -> None:
    tool.answers("apps query", stdout="{}")
    tool.answers("apps query", stdout=apps())
    tool.answers("apps install")
    tool.answers("apps push")
    report = phone.push(bundle)
    assert verbs(tool)[1:] == [
        "apps query", "apps install", "apps query", "apps push", "apps push",
    ]  # fmt: skip
    assert tool.calls[2][0][2:] == ["--developer", bundle.files[0].source]
    assert tool.lines[4].endswith("/bundle Documents")
    assert tool.lines[5].endswith("/bundle.json Documents/bundle.json")
    assert (report.pushed_files, report.pushed_bytes, report.kept_files) == (3, 15, 0)


def test_a_second_push_sends_nothing(
    phone: IosDevice, tool: IosCommand, info: None, bundle: Bundle
) -> None:
    tool.answers("apps query", stdout=apps())
    tool.answers("apps pull", files=marker(bundle))
    report = phone.push(bundle)
    assert verbs(tool)[1:] == ["apps query", "apps pull"]
    assert (report.pushed_files, report.kept_files) == (0, 3)


def test_a_push_that_changes_files_says_so_before(
    phone: IosDevice, tool: IosCommand, info: None, bundle: Bundle
) -> None:
    there = {
        "program.pte": PhoneFile(sha256="e" * 64, size_bytes=1),
        "old.bin": PhoneFile(sha256="f" * 64, size_bytes=1),
    }
    tool.answers("apps query", stdout=apps())
    tool.answers("apps pull", files=marker(bundle, files=there))
    tool.answers("apps rm")
    tool.answers("apps push", exit_code=0)
    tool.answers("apps push", stderr=logged("Connection was terminated abruptly."), exit_code=1)
    with pytest.raises(DeviceError, match="was unplugged"):
        phone.push(bundle)
    assert verbs(tool)[3:] == ["apps push", "apps rm", "apps push"]
    assert tool.lines[3].endswith("Documents/bundle.json")
    assert tool.lines[4].endswith("Documents/bundle/old.bin")


def test_an_old_system_is_refused_before_anything_is_sent(
    phone: IosDevice, tool: IosCommand, bundle: Bundle
) -> None:
    tool.answers("lockdown info", stdout=json.dumps({"ProductVersion": "16.7.2"}))
    with pytest.raises(DeviceError, match=r"iOS 16\.7\.2.* iOS 17"):
        phone.push(bundle)
    assert verbs(tool) == ["lockdown info"]


@pytest.mark.parametrize("path", [PATH, PATH.replace("/1/", "/2/")])
def test_cleaning_removes_what_was_sent_and_leaves_the_app(
    phone: IosDevice, tool: IosCommand, bundle: Bundle, path: str
) -> None:
    """Whoever installed it last: its data are the user's."""
    tool.answers("apps list", stdout=apps(path))
    tool.answers("apps pull", files=marker(bundle))
    tool.answers("apps rm")
    assert phone.clean() == {APP: 8}
    assert tool.lines[-2:] == [
        f"apps rm {APP} Documents/bundle", f"apps rm {APP} Documents/bundle.json",
    ]  # fmt: skip


def test_cleaning_leaves_apps_alone_that_etdeploy_does_not_know(
    phone: IosDevice, tool: IosCommand
) -> None:
    tool.answers("apps list", stdout=apps(debuggable=False))
    assert phone.clean() == {}
    assert verbs(tool) == ["apps list"]


def test_cleaning_leaves_apps_without_a_marker(phone: IosDevice, tool: IosCommand) -> None:
    tool.answers("apps list", stdout=apps())
    tool.answers("apps pull", stderr=MISSING, exit_code=1)
    assert phone.clean() == {}
    assert verbs(tool) == ["apps list", "apps pull"]
