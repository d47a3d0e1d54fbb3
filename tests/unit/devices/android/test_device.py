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
from etdeploy.devices.adb.stream import Patience, TcpPipe
from etdeploy.devices.adb.wire import DirectTransport, Signer, usb_transport, user_signer
from etdeploy.devices.android.device import AndroidDevice, list_android, open_listed
from etdeploy.devices.android.link import AndroidLink
from etdeploy.devices.base import Bundle, ProcessLaunch
from etdeploy.devices.registry import list_devices, open_device
from etdeploy.devices.remote.layout import StateSampling
from etdeploy.devices.remote.run import RemoteRun
from tests.support.adb_fakes import fail, fake_adbd, fake_server

UNAUTHORIZED = (
    "android:A1: the device does not allow USB debugging from this computer yet\n"
    "  what to do: Unlock the phone and confirm the prompt `Allow USB debugging?` on its screen,\n"
    "              then run the same command again. If no prompt shows: Settings > Developer"
    " options >\n"
    "              Revoke USB debugging authorizations, and plug the phone in again."
)


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


def test_none_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(monkeypatch, "")
    assert str(error).splitlines()[0] == "android: no Android device is connected"
    assert "turn on USB debugging" in str(error.remedy)
    assert "adb connect HOST:PORT" in str(error.remedy)
    assert error.exit_code == 6


def test_no_server_and_no_usb(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="no Android device is connected"):
        open_device("android")


def test_two_and_none_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = "A1 device model:One\nB2 device model:Two\nC3 offline\n"
    assert str(refusal(monkeypatch, devices)) == (
        "android: 2 Android devices are connected, and none is chosen\n"
        "  what to do: Choose one:\n"
        "              --device android:A1    (One)\n"
        "              --device android:B2    (Two)"
    )


_TWINS = (
    "0123456789ABCDEF device usb:1-1 model:One transport_id:1\n"
    "0123456789ABCDEF device usb:3-2.1 model:Two transport_id:2\n"
)


def test_two_with_one_serial_number_are_chosen_by_their_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose = (
        "              --device android:usb:1-1    (One)\n"
        "              --device android:usb:3-2.1    (Two)"
    )
    error = refusal(monkeypatch, _TWINS, "android:0123456789ABCDEF")
    assert str(error) == (
        "android:0123456789ABCDEF: 2 devices have this serial number\n"
        f"  what to do: Choose one by the port that it is plugged into:\n{choose}"
    )
    error = refusal(monkeypatch, _TWINS)
    assert str(error) == (
        "android: 2 Android devices are connected, and none is chosen\n"
        f"  what to do: Choose one:\n{choose}"
    )
    with fake_server(_TWINS) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert open_device("android:usb:3-2.1").name == "android:usb:3-2.1"
        assert [each.name for each in list_android()] == [
            "android:usb:1-1",
            "android:usb:3-2.1",
        ]


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


def test_the_environment_may_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_SERIAL", "C3")
    error = refusal(monkeypatch, "A1 device\nC3 offline\n")
    assert error.place == "android:C3"


def test_the_only_usable_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server("A1 unauthorized\nB2 device\n") as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert open_device("android").name == "android:B2"


def test_unauthorized(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(refusal(monkeypatch, "A1 unauthorized usb:1-1\n")) == UNAUTHORIZED
    assert str(refusal(monkeypatch, "A1 unauthorized\n", "android:A1")) == UNAUTHORIZED


def test_unauthorized_after_it_was_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = fail("device unauthorized.\nThis adb server's $ADB_VENDOR_KEYS is not set")
    devices = ("A1 device\n", "A1 unauthorized\n")
    assert str(refusal(monkeypatch, devices, answer=answer)) == UNAUTHORIZED


@pytest.mark.parametrize("spec", ["android", "android:10.0.0.7:5555"])
def test_offline_in_the_network(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    assert str(refusal(monkeypatch, ("10.0.0.7:5555 offline\n", ""), spec)) == (
        "android:10.0.0.7:5555: the device is offline, and the adb server could not reconnect to "
        "it: who knows\n"
        "  what to do: Wake the device, check that it is on the network and its debugger is on, "
        "then:\n"
        "              adb connect 10.0.0.7:5555"
    )


def test_a_device_that_is_back_in_the_network_is_connected_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    offline, usable = "10.0.0.7:5555 offline\n", "10.0.0.7:5555 device\n"
    with fake_server((offline, offline, usable), requests=asked) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        assert open_device("android").name == "android:10.0.0.7:5555"
    assert [r for r in asked if "connect" in r] == [
        "host:disconnect:10.0.0.7:5555",
        "host:connect:10.0.0.7:5555",
    ]
    assert "android:10.0.0.7:5555: the adb server listed it as offline" in capsys.readouterr().err


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
        with pytest.raises(DeviceError, match="the device is offline: the adb server knows it"):
            open_device("android")
    assert asked == ["host:devices-l"]
    error = refusal(monkeypatch, ("A1 device\n", "A1 offline\n"), answer=fail("device offline"))
    assert "adb reconnect" in str(error.remedy)


def test_no_permissions(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(monkeypatch, "A1 no permissions (user is in the plugdev group); see [x]\n")
    assert "has no permission to use the device's USB interface" in error.message
    assert "usermod -aG plugdev" in str(error.remedy)


def test_another_state(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(monkeypatch, "A1 recovery\n")
    assert error.message == "the device cannot be used: its state is recovery"
    assert "adb -s A1 reboot" in str(error.remedy)


def test_several_and_none_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(monkeypatch, "A1 offline\nB2 unauthorized\n")
    assert error.message == "no Android device can be used: A1 is offline, B2 is unauthorized"


def test_a_serial_number_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refusal(monkeypatch, "R5CX1234ABC device\n", "android:R5CX1234ABD")
    assert error.remedy == "Did you mean --device android:R5CX1234ABC?"
    error = refusal(monkeypatch, "R5CX1234ABC device\n", "android:emulator-5554")
    assert error.remedy == "Connected are:\n--device android:R5CX1234ABC"


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
        with pytest.raises(DeviceError, match="does not answer like an adb server") as caught:
            open_device("android")
    assert f"127.0.0.1:{port}" in caught.value.message


def test_a_server_port_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", "usb")
    with pytest.raises(UsageError, match="ANDROID_ADB_SERVER_PORT is 'usb'"):
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
    assert "the device is not connected any more" in str(listed["android:C3"].remedy)


def through_server(
    monkeypatch: pytest.MonkeyPatch, port: int, idle_s: float = 0.3
) -> AndroidDevice:
    monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
    return AndroidDevice("A1", ServerTransport("A1"), idle_s)


def test_a_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server("A1 device\n", None) as port, pytest.raises(DeviceError) as caught:
        through_server(monkeypatch, port).facts()
    assert caught.value.message == (
        f"the adb server on 127.0.0.1:{port} hangs: no answer within 0.3 s, "
        "while reading its properties"
    )
    assert caught.value.remedy == "adb kill-server && adb start-server"


def test_a_server_that_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server("A1 device\n", b"") as port, pytest.raises(DeviceError) as caught:
        through_server(monkeypatch, port).facts()
    assert f"the adb server on 127.0.0.1:{port} hung up" in caught.value.message


def test_a_device_behind_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        fake_server("A1 device\n", service_answer=None) as port,
        pytest.raises(
            DeviceError, match="the device stopped answering while reading its properties"
        ),
    ):
        through_server(monkeypatch, port).facts()


@pytest.mark.parametrize(
    ("answers", "told"), [((None, b""), "hangs"), ((b"OKAY", None), "the device stopped answering")]
)
def test_a_program_that_never_started_did_not_take_too_long(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[bytes | None, bytes | None], told: str
) -> None:
    bundle = Bundle(files=(), launch=ProcessLaunch(argv=("fate",)))
    with fake_server("A1 device\n", *answers) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        link = AndroidLink("android:A1", ServerTransport("A1"), Patience(open_s=0.3))
        with pytest.raises(DeviceError, match=f"{told}.* starting the program"):
            RemoteRun(link, bundle, "/b", "/r", StateSampling()).run([], timeout_s=0.1)


def test_a_device_that_is_gone_has_no_empty_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server("", fail("device 'A1' not found")) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        link = AndroidLink("android:A1", ServerTransport("A1"), Patience())
        with pytest.raises(DeviceError, match="the device is not connected any more"):
            link.read("/r/.stdout", "reading the program's output")


def test_what_the_device_refuses_is_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server("A1 device\n", service_answer=fail("offline, not found, closed")) as port:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(port))
        device = AndroidDevice("A1", ServerTransport("A1"))
        with pytest.raises(DeviceError) as caught:
            device.facts()
    assert caught.value.message == (
        "the device failed while reading its properties: offline, not found, closed"
    )
    assert caught.value.remedy


def test_nothing_listens_at_an_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(DeviceError) as caught:
        open_device(f"android:127.0.0.1:{port}").facts()
    assert caught.value.message == "nothing answers at this address (Connection refused)"
    assert f"adb tcpip {port}\n" in str(caught.value.remedy)


def directly(port: int, key: Path) -> AndroidDevice:
    """A device at a port of this machine, with a key and little patience for its user."""

    def signer() -> Signer:
        return user_signer(key)

    transport = DirectTransport(
        lambda patience: TcpPipe("127.0.0.1", port, patience), "TCP", signer, confirm_s=0.2
    )
    return AndroidDevice("A1", transport, idle_s=5)


def test_a_phone_that_does_not_know_our_key(tmp_path: Path) -> None:
    key = tmp_path / ".android" / "adbkey"
    with fake_adbd(b"AUTH") as port, pytest.raises(DeviceError) as caught:
        directly(port, key).facts()
    assert str(caught.value) == UNAUTHORIZED
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
    assert "does not hold an RSA key in PEM format" in caught.value.message
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
    assert "file/adbkey, cannot be used" in caught.value.message
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
        (USBErrorAccess(), "this user has no permission"),
        (USBErrorBusy(), "another program holds"),
        (AssertionError("no endpoint"), "its USB interface cannot be opened"),
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
        pytest.raises(DeviceError, match="the device has no service 'exec'"),
    ):
        directly(port, tmp_path / "adbkey").facts()


@pytest.mark.parametrize(
    ("drops", "told"), [(2, "the device has no service 'exec'"), (3, "the device went away")]
)
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
    assert "requires an encrypted connection" in caught.value.message
    assert "adb pair HOST:PAIRING_PORT && adb connect A1" in str(caught.value.remedy)
    assert not (tmp_path / "adbkey").exists()


def test_something_else_listens(tmp_path: Path) -> None:
    with (
        fake_adbd(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n") as port,
        pytest.raises(DeviceError, match="what answers there does not speak adb"),
    ):
        directly(port, tmp_path / "adbkey").facts()
