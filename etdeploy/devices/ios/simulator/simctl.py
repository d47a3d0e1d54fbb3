"""`xcrun simctl`: its command lines, its list of simulators, the apps that it takes."""

from __future__ import annotations

import json
import plistlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.core.errors import DeviceError
from etdeploy.core.processes import process

REQUEST_S = 120.0
"""How long a request may take; the first one starts a service of Xcode's."""

_RUNTIME = "com.apple.CoreSimulator.SimRuntime."


@dataclass(frozen=True)
class Simulator:
    """A simulated phone.

    Attributes:
        udid, name: As Xcode shows them.
        system: iOS 18.1 and the like.
        is_booted: Whether it runs.
        data: Its folder on this machine.
    """

    udid: str
    name: str
    system: str
    is_booted: bool
    data: Path


def parse_simulators(text: str) -> list[Simulator]:
    """The iPhones and iPads of `simctl list devices -j`."""
    try:
        by_runtime = json.loads(text)["devices"]
    except (ValueError, KeyError, TypeError):
        return []
    return [
        Simulator(
            udid=str(device["udid"]),
            name=str(device["name"]),
            system=_system(runtime),
            is_booted=device.get("state") == "Booted",
            data=Path(str(device.get("dataPath", ""))),
        )
        for runtime, devices in by_runtime.items()
        if runtime.startswith(f"{_RUNTIME}iOS-")
        for device in devices
    ]


def _system(runtime: str) -> str:
    """`...SimRuntime.iOS-18-1` is iOS 18.1."""
    name, *version = runtime.removeprefix(_RUNTIME).split("-")
    return f"{name} {'.'.join(version)}"


def unpacked(archive: Path, folder: Path, place: str) -> Path:
    """The .app of an .ipa, unpacked into a folder with its files' modes.

    Raises:
        DeviceError: It is no such archive.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            for member in file.infolist():
                written = Path(file.extract(member, folder))
                mode = member.external_attr >> 16
                if mode & 0o100 and not written.is_dir():
                    written.chmod(0o755)
    except (zipfile.BadZipFile, OSError) as error:
        raise DeviceError(f"{archive.name} cannot be unpacked: {error}", place=place) from error
    found = sorted(folder.glob("Payload/*.app"))
    if not found:
        raise DeviceError(
            f"{archive.name} is no app",
            place=place,
            remedy="An .ipa is a ZIP file with the folder Payload and the .app in it.",
        )
    return found[0]


def simctl(words: Sequence[str], place: str, doing: str) -> str:
    """What simctl prints.

    Raises:
        DeviceError: It fails.
    """
    outcome = process.run(process.Request(command_line(*words), timeout_s=REQUEST_S))
    if not outcome.ok:
        raise failure(outcome.stderr, place, doing)
    return outcome.stdout


def failure(said: str, place: str, doing: str) -> DeviceError:
    """The error for what simctl wrote to stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1].rstrip(".") if lines else "it says nothing"
    return DeviceError(
        f"simctl failed while {doing}: {last}",
        place=place,
        remedy="The app has to be built with -destination 'generic/platform=iOS Simulator'. Start "
        "the\nsimulator again: xcrun simctl shutdown all",
    )


def command_line(*words: str) -> tuple[str, ...]:
    """The words that run simctl."""
    return (str(process.which("xcrun") or "xcrun"), "simctl", *words)


def property_list(path: Path) -> dict[str, Any]:
    """What a file of properties says; nothing where it cannot be read."""
    try:
        found = plistlib.loads(path.read_bytes())
    except (OSError, ValueError, plistlib.InvalidFileException):
        return {}
    return found if isinstance(found, dict) else {}
