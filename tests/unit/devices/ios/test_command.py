"""pymobiledevice3 as a command: found, and started with the variables that it heeds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
from etdeploy.devices.ios.command import PhoneCommand, find_program, require_program
from tests.support.ios_command import IosCommand


def test_else_it_is_found_beside_python_then_on_the_path(
    tmp_path: Path, tool: IosCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ETDEPLOY_PYMOBILEDEVICE3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_program() is None
    monkeypatch.setenv("PATH", str(tool.folder))
    assert find_program() == tool.program
    monkeypatch.setattr(sys, "executable", str(tool.folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_program() == tool.program


def test_a_missing_program_is_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ETDEPLOY_PYMOBILEDEVICE3", raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="is not installed") as caught:
        require_program("ios")
    assert "[ios]'" in (caught.value.remedy or "")
    monkeypatch.setenv("ETDEPLOY_PYMOBILEDEVICE3", str(tmp_path / "none"))
    with pytest.raises(DeviceError, match=f"names {tmp_path / 'none'}, which cannot be run"):
        require_program("ios")


def test_only_developer_services_go_through_a_tunnel_of_the_users(
    tool: IosCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYMOBILEDEVICE3_TUNNEL", "U:49151")
    monkeypatch.setenv("USBMUXD_SOCKET_ADDRESS", "UNIX:/run/mux")
    command = PhoneCommand(tool.program, "U")
    tool.answers("")
    command.ask(["apps", "list"])
    command.ask(["developer", "core-device", "list-processes"])
    [(_, plain), (_, tunnelled)] = tool.calls
    assert plain["PYMOBILEDEVICE3_UDID"] == "U"
    assert plain["USBMUXD_SOCKET_ADDRESS"] == "/run/mux"
    assert "PYMOBILEDEVICE3_TUNNEL" not in plain
    assert tunnelled["PYMOBILEDEVICE3_TUNNEL"] == "U:49151"


def test_a_program_that_cannot_run_is_told(tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/no/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(DeviceError, match="broken cannot be started"):
        PhoneCommand(program, "U").ask(["usbmux", "list"])
    assert PhoneCommand(program, "U").best_effort_cleanup(["usbmux", "list"]) == ""
