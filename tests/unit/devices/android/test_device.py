"""Choosing among Android devices, and refusals, against stand-ins at the level of the protocol."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.devices.adb.server import ServerDevice, ServerTransport
from etdeploy.devices.adb.stream import TcpPipe, Timeouts
from etdeploy.devices.adb.wire import DirectTransport, Signer, usb_transport, user_signer
from etdeploy.devices.android.device import AndroidDevice, open_listed
from etdeploy.devices.android.link import AndroidLink
from etdeploy.devices.base import Bundle, ProcessLaunch
from etdeploy.devices.registry import list_devices, open_device
from etdeploy.devices.remote.layout import StateSampling
from etdeploy.devices.remote.run import RemoteRun
from tests.support.adb_fakes import fail, fake_adbd, fake_server


@pytest.fixture(autouse=True)
def adb_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANDROID_SERIAL", "ADB_SERVER_SOCKET", "ANDROID_ADB_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free.getsockname()[1]))


def refusal(
    monkeypatch: pytest.MonkeyPatch,
    devices: str | Sequence[str],
    spec: str = "android",
    answer: bytes = b"OKAY",
) -> DeviceError:
    """What opening a device and asking it for its facts raises."""
    with fake_server(devices, answer) as port, pytest.raises(DeviceError) as caught:  # noqa: PT012
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        open_device(spec).facts()
    return caught.value


_TWINS = (
    "0123456789ABCDEF device usb:1-1 model:One transport_id:1\n"
    "0123456789ABCDEF device usb:3-2.1 model:Two transport_id:2\n"
)
_CHOOSE_TWIN = ("--device android:usb:1-1    (One)", "--device android:usb:3-2.1    (Two)")
_OFFLINE = "10.0.0.7:5555 offline\n"


@pytest.mark.parametrize(
    ("listed", "spec", "place", "message", "commands"),
    [
        ("", "android", "android", "no Android device", ("USB debugging", "adb connect HOST:PORT")),
        (
            "A1 device model:One\nB2 device model:Two\nC3 offline\n",
            "android", "android", "2 Android devices",
            ("--device android:A1    (One)", "--device android:B2    (Two)"),
        ),
        (_TWINS, "android:0123456789ABCDEF", "android:0123456789ABCDEF", "2 devices", _CHOOSE_TWIN),
        (_TWINS, "android", "android", "2 Android devices", _CHOOSE_TWIN),
        ("A1 unauthorized usb:1-1\n", "android", "android:A1", "debugging", ("`Allow USB",)),
        ("A1 unauthorized\n", "android:A1", "android:A1", "debugging", ("`Allow USB",)),
        (
            (_OFFLINE, ""), "android", "android:10.0.0.7:5555", "offline",
            ("adb connect 10.0.0.7:5555",),
        ),
        (
            (_OFFLINE, ""), "android:10.0.0.7:5555", "android:10.0.0.7:5555", "who knows",
            ("adb connect 10.0.0.7:5555",),
        ),
        (
            "A1 no permissions (user is in the plugdev group); see [x]\n", "android",
            "android:A1", "permission", ("sudo usermod -aG plugdev $USER",),
        ),
        ("A1 recovery\n", "android", "android:A1", "state is recovery", ("adb -s A1 reboot",)),
        (
            "A1 offline\nB2 unauthorized\n", "android", "android",
            "A1 is offline, B2 is unauthorized", ("etdeploy devices",),
        ),
        (
            "R5CX1234ABC device\n", "android:R5CX1234ABD", "android:R5CX1234ABD", "not connected",
            ("Did you mean --device android:R5CX1234ABC?",),
        ),
        (
            "R5CX1234ABC device\n", "android:emulator-5554", "android:emulator-5554",
            "not connected", ("Connected are:\n--device android:R5CX1234ABC",),
        ),
    ],
)  # fmt: skip
def test_a_device_that_cannot_be_used_is_refused_with_a_command(
    monkeypatch: pytest.MonkeyPatch,
    listed: str | tuple[str, str],
    spec: str,
    place: str,
    message: str,
    commands: tuple[str, ...],
) -> None:
    error = refusal(monkeypatch, listed, spec)
    assert (error.place, error.exit_code) == (place, 6)
    assert message in error.message
    assert all(command in str(error.remedy) for command in commands)


def test_the_environment_may_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_SERIAL", "C3")
    assert refusal(monkeypatch, "A1 device\nC3 offline\n").place == "android:C3"


@pytest.mark.parametrize(
    ("state", "answer", "remedy"),
    [
        ("unauthorized", "device unauthorized.\n$ADB_VENDOR_KEYS is not set", "`Allow USB"),
        ("offline", "device offline", "adb reconnect"),
    ],
)
def test_a_state_that_changed_after_the_listing(
    monkeypatch: pytest.MonkeyPatch, state: str, answer: str, remedy: str
) -> None:
    error = refusal(monkeypatch, ("A1 device\n", f"A1 {state}\n"), answer=fail(answer))
    assert remedy in str(error.remedy)


def test_the_server_is_asked_for_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with fake_server((_TWINS, "0123456789ABCDEF offline usb:1-1\n"), requests=asked) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        with contextlib.suppress(DeviceError):
            open_device("android:usb:1-1").facts()
    assert "host:transport:usb:1-1" in asked


def test_a_port_names_the_only_device_with_its_serial_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_server("A1 device usb:1-1\nB2 device usb:1-2\n") as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert open_device("android:usb:1-2").name == "android:B2"


def test_the_only_usable_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server("A1 unauthorized\nB2 device\n") as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert open_device("android").name == "android:B2"


def test_a_server_that_is_slow_to_let_go_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    offline, usable = "10.0.0.7:5555 offline\n", "10.0.0.7:5555 device\n"
    answers = ("already connected to 10.0.0.7:5555", "connected to 10.0.0.7:5555")
    with fake_server(
        (offline, offline, "", usable), requests=asked, connect_answers=answers
    ) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert open_device("android").name == "android:10.0.0.7:5555"
    assert asked.count("host:connect:10.0.0.7:5555") == 2
    assert "has reconnected to it" in capsys.readouterr().err


def test_offline_on_a_cable(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with fake_server("A1 offline\n", requests=asked) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        with pytest.raises(DeviceError, match="is offline"):
            open_device("android")
    assert asked == ["host:devices-l"]


def test_names_in_remedies_can_be_pasted_into_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = "[fe80::1]:5555", "[fe80::2]:5555"
    error = refusal(monkeypatch, f"{first} device\n{second} device\n")
    assert shlex.split(str(error.remedy).splitlines()[-1]) == ["--device", f"android:{second}"]
    assert "'" in str(error.remedy)
    error = refusal(monkeypatch, (f"{first} offline\n", ""))
    assert shlex.split(str(error.remedy).splitlines()[-1]) == ["adb", "connect", first]
    assert "'" in str(error.remedy).splitlines()[-1]


def test_what_listens_is_no_adb_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_adbd(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        with pytest.raises(DeviceError, match="an adb server") as caught:
            open_device("android")
    assert f"127.0.0.1:{port}" in caught.value.message


def test_a_server_port_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "usb")
    with pytest.raises(UsageError, match="'usb'"):
        open_device("android")


def test_the_listing_says_what_to_do_about_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    devices = "A1 unauthorized\nB2 offline\nC3 device\n"
    with fake_server((devices, "A1 unauthorized\n"), fail("no such device")) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        listed = {d.name: d for d in list_devices()}
    states = {name: d.status for name, d in listed.items() if d.kind == "android"}
    assert states == {"android:A1": "unauthorized", "android:B2": "offline", "android:C3": "error"}
    assert "confirm the prompt" in str(listed["android:A1"].remedy)
    assert "adb reconnect" in str(listed["android:B2"].remedy)
    assert "not connected" in str(listed["android:C3"].remedy)


def through_server(
    monkeypatch: pytest.MonkeyPatch, port: int, idle_s: float = 0.3
) -> AndroidDevice:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    return AndroidDevice("A1", ServerTransport("A1"), idle_s)


@pytest.mark.parametrize(
    ("answer", "service_answer", "facts", "command"),
    [
        (None, b"", ("127.0.0.1:{port} hangs", "0.3 s", "reading its properties"), "kill-server"),
        (b"", b"", ("127.0.0.1:{port} hung up",), "adb kill-server && adb start-server"),
        (b"OKAY", None, ("stopped answering", "reading its properties"), "cable"),
        (
            b"OKAY", fail("offline, not found, closed"),
            ("reading its properties: offline, not found, closed",), "the same command",
        ),
    ],
)  # fmt: skip
def test_a_server_or_a_device_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes | None,
    service_answer: bytes | None,
    facts: tuple[str, ...],
    command: str,
) -> None:
    with fake_server("A1 device\n", answer, service_answer) as port:
        device = through_server(monkeypatch, port)
        with pytest.raises(DeviceError) as caught:
            device.facts()
    assert all(fact.format(port=port) in caught.value.message for fact in facts)
    assert command in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("answers", "told"), [((None, b""), "hangs"), ((b"OKAY", None), "the device stopped answering")]
)
def test_a_program_that_never_started_did_not_take_too_long(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[bytes | None, bytes | None], told: str
) -> None:
    bundle = Bundle(files=(), launch=ProcessLaunch(argv=("fate",)))
    with fake_server("A1 device\n", *answers) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        link = AndroidLink("android:A1", ServerTransport("A1"), Timeouts(open_s=0.3))
        with pytest.raises(DeviceError, match=f"{told}.* starting the program"):
            RemoteRun(link, bundle, "/b", "/r", StateSampling()).run([], timeout_s=0.1)


def test_a_device_that_is_gone_has_no_empty_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server("", fail("device 'A1' not found")) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        link = AndroidLink("android:A1", ServerTransport("A1"), Timeouts())
        with pytest.raises(DeviceError, match="not connected"):
            link.read("/r/.stdout", "reading the program's output")


def test_nothing_listens_at_an_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(DeviceError) as caught:
        open_device(f"android:127.0.0.1:{port}").facts()
    assert "Connection refused" in caught.value.message
    assert f"adb tcpip {port}\n" in str(caught.value.remedy)


def directly(port: int, key: Path) -> AndroidDevice:
    """A device at a port of this machine, with a key and little time for its user."""

    def signer() -> Signer:
        return user_signer(key)

    transport = DirectTransport(
        lambda timeouts: TcpPipe("127.0.0.1", port, timeouts), "TCP", signer, confirm_s=0.2
    )
    return AndroidDevice("A1", transport, idle_s=5)


def test_a_phone_that_does_not_know_our_key(tmp_path: Path) -> None:
    key = tmp_path / ".android" / "adbkey"
    with fake_adbd(b"AUTH") as port, pytest.raises(DeviceError) as caught:
        directly(port, key).facts()
    assert "`Allow USB debugging?`" in str(caught.value.remedy)
    # A key was made for it, as adb does.
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.with_name("adbkey.pub").read_text().split()[0]
    assert {p.name for p in key.parent.iterdir()} == {"adbkey", "adbkey.pub"}


def test_the_key_is_kept_and_its_public_half_made_again(tmp_path: Path) -> None:
    key = tmp_path / "adbkey"
    public = user_signer(key).GetPublicKey()
    private = key.read_bytes()
    (tmp_path / "adbkey.pub").unlink()
    again = user_signer(key)
    assert key.read_bytes() == private
    assert again.GetPublicKey().split()[0] == public.split()[0]


def _elliptic() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def _with_password() -> bytes:
    return rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
    )


@pytest.mark.parametrize(
    "content", [lambda: b"", lambda: b"-----BEGIN PRIVATE KEY-----\nx\n", _elliptic, _with_password]
)
def test_a_key_that_is_none(tmp_path: Path, content: Callable[[], bytes]) -> None:
    folder = tmp_path / "it's mine"
    folder.mkdir()
    (folder / "adbkey").write_bytes(content())
    with fake_adbd(b"AUTH") as port, pytest.raises(DeviceError) as caught:
        directly(port, folder / "adbkey").facts()
    assert "key for adb" in caught.value.message
    assert "RSA key in PEM format" in caught.value.message
    moved = shlex.split(str(caught.value.remedy).splitlines()[-1].partition(";")[0])
    assert moved == ["mv", str(folder / "adbkey"), str(folder / "adbkey.broken")]
    assert not (folder / "adbkey.pub").exists()


def test_a_key_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "adbkey").mkdir()
    with fake_adbd(b"AUTH") as port, pytest.raises(DeviceError, match="it is a folder"):
        directly(port, tmp_path / "adbkey").facts()


def test_a_key_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with fake_adbd(b"AUTH") as port, pytest.raises(DeviceError) as caught:
        directly(port, tmp_path / "file" / "adbkey").facts()
    assert "file/adbkey" in caught.value.message
    assert "chown" in str(caught.value.remedy)


class USBErrorNoDevice(Exception):  # noqa: N818 - libusb's own name
    """As libusb says it of a phone that was unplugged."""


class USBErrorAccess(Exception):  # noqa: N818
    """As libusb says it without permission."""


class USBErrorBusy(Exception):  # noqa: N818
    """As libusb says it where another program has the interface."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (USBErrorNoDevice(), "the device went away"),
        (USBErrorAccess(), "no permission"),
        (USBErrorBusy(), "another program holds"),
        (AssertionError("no endpoint"), "no endpoint"),
    ],
)
def test_a_usb_interface_that_cannot_be_opened(error: Exception, told: str) -> None:
    class Port:
        def connect(self, timeout_s: float) -> None:
            assert timeout_s > 0
            raise error

    with pytest.raises(DeviceError, match=told) as caught:
        AndroidDevice("A1", usb_transport("A1", lambda _: Port())).facts()
    assert caught.value.remedy


def test_a_phone_that_left_usb_after_it_was_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etdeploy.devices.adb.stream.usb_transports", dict)
    with pytest.raises(DeviceError, match="not connected any more"):
        open_listed(ServerDevice("A1", "device")).facts()


def test_a_phone_that_knows_our_key_lets_us_in(tmp_path: Path) -> None:
    with (
        fake_adbd(b"AUTH", knows_key=True) as port,
        pytest.raises(DeviceError, match="service 'exec'"),
    ):
        directly(port, tmp_path / "adbkey").facts()


@pytest.mark.parametrize(("drops", "told"), [(2, "service 'exec'"), (3, "the device went away")])
def test_a_phone_that_drops_a_new_connection_is_greeted_again(
    tmp_path: Path, drops: int, told: str
) -> None:
    with (
        fake_adbd(b"AUTH", knows_key=True, drops=drops) as port,
        pytest.raises(DeviceError, match=told),
    ):
        directly(port, tmp_path / "adbkey").facts()


def test_a_phone_that_wants_tls(tmp_path: Path) -> None:
    with fake_adbd(b"STLS") as port, pytest.raises(DeviceError) as caught:
        directly(port, tmp_path / "adbkey").facts()
    assert str(caught.value.remedy).endswith("adb connect A1")
    assert not (tmp_path / "adbkey").exists()


def test_something_else_listens(tmp_path: Path) -> None:
    with (
        fake_adbd(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n") as port,
        pytest.raises(DeviceError, match="does not speak adb"),
    ):
        directly(port, tmp_path / "adbkey").facts()
