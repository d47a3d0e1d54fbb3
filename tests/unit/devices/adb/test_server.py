"""What the adb server lists."""

from __future__ import annotations

from etdeploy.devices.adb.server import ServerDevice, parse_devices


def test_devices_of_an_adb_server() -> None:
    text = (
        "R5CX1234ABC            device usb:1-4 product:e3q model:EX_S928B device:e3q "
        "transport_id:3\n"
        "emulator-5554          offline transport_id:1\n"
        "10.0.0.7:5555          unauthorized transport_id:2\n"
        "0123456789             no permissions (missing udev rules? user is in the plugdev "
        "group); see [http://developer.android.com/tools/device.html] usb:1-3 transport_id:9\n"
        "\n"
    )
    assert parse_devices(text) == [
        ServerDevice("R5CX1234ABC", "device", "EX_S928B", "usb:1-4"),
        ServerDevice("emulator-5554", "offline"),
        ServerDevice("10.0.0.7:5555", "unauthorized"),
        ServerDevice("0123456789", "no permissions", usb="usb:1-3"),
    ]
