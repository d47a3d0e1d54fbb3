"""A phone behind a stand-in for pymobiledevice3."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.devices.ios.command import PhoneCommand
from etdeploy.devices.ios.device import IosDevice
from tests.support.ios_command import IosCommand
from tests.support.ios_phone import UDID


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IosCommand:
    """The stand-in."""
    stand_in = IosCommand(tmp_path / "tool")
    monkeypatch.setenv("ETDEPLOY_PYMOBILEDEVICE3", str(stand_in.program))
    return stand_in


@pytest.fixture
def phone(tool: IosCommand) -> IosDevice:
    """A phone on a cable."""
    return IosDevice(PhoneCommand(tool.program, UDID), "USB")
