"""What `--device` accepts, and what the errors say."""

from __future__ import annotations

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.devices.kinds import DeviceSpec
from etdeploy.devices.registry import list_devices, open_device, parse_spec


@pytest.mark.parametrize(
    ("text", "kind", "serial", "address"),
    [
        ("host", "host", None, None),
        ("android", "android", None, None),
        ("android:R5CX1234ABC", "android", "R5CX1234ABC", None),
        ("android:emulator-5554", "android", "emulator-5554", None),
        ("android:10.0.0.7:5555", "android", "10.0.0.7:5555", ("10.0.0.7", 5555)),
        ("android:phone.local:41234", "android", "phone.local:41234", ("phone.local", 41234)),
        ("android:[fe80::1]:5555", "android", "[fe80::1]:5555", ("fe80::1", 5555)),
        ("android:adb-A1._adb-tls-connect._tcp", "android", "adb-A1._adb-tls-connect._tcp", None),
        ("android:10.0.0.7:99999", "android", "10.0.0.7:99999", None),
        ("ios:00008110-000A", "ios", "00008110-000A", None),
    ],
)
def test_specifications(
    text: str, kind: str, serial: str | None, address: tuple[str, int] | None
) -> None:
    found, spec = parse_spec(text)
    assert found.name == kind
    assert spec == DeviceSpec(kind, serial)
    assert spec.address == address


FORMS = (
    "Devices: host, qemu, android, android:SERIAL, android:HOST:PORT, "
    "ssh:[USER@]HOST[:PORT][:/FOLDER], ios, ios:UDID, ios:simulator[:UDID]"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("andriod", "there is no device 'andriod'\n  what to do: Did you mean android?"),
        (
            "Android:ABC",
            "there is no device 'Android:ABC'\n  what to do: Did you mean android:ABC?",
        ),
        (
            "R5CX1234ABC",
            "there is no device 'R5CX1234ABC'\n"
            "  what to do: A serial number is written android:R5CX1234ABC, the host name of a "
            f"board ssh:R5CX1234ABC. {FORMS}",
        ),
        (
            "pi@board:22",
            "there is no device 'pi@board:22'\n  what to do: Did you mean ssh:pi@board:22?",
        ),
        (
            "",
            f"there is no device ''\n  what to do: {FORMS}",
        ),
        (
            "host:x",
            "'host:x': the device host does not take a serial number\n  what to do: --device host",
        ),
        (
            "ssh",
            "'ssh' has no host after ssh:\n"
            "  what to do: --device 'ssh:[USER@]HOST[:PORT][:/FOLDER]'",
        ),
        (
            "android:",
            "'android:' has no serial number after the colon\n  what to do: --device android",
        ),
    ],
)
def test_what_is_no_specification(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_device(text)
    assert str(caught.value) == message


def test_a_phone_is_missed_where_nothing_finds_phones() -> None:
    with pytest.raises(DeviceError) as caught:
        open_device("ios:1234")
    assert (caught.value.place, caught.value.exit_code) == ("ios:1234", 6)
    assert "sudo apt-get install usbmuxd" in str(caught.value.remedy)


def test_missing_qemu_is_told_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "1")
    workspace = Workspace(empty / "cache")
    with pytest.raises(DeviceError) as caught:
        open_device("qemu", workspace)
    assert (caught.value.place, caught.value.remedy) == ("qemu", "apt install qemu-user-static")
    listed = {d.name: d for d in list_devices(workspace)}
    assert (listed["host"].status, listed["qemu"].status) == ("device", "missing")
    assert str(caught.value.remedy) in str(listed["qemu"].remedy)
