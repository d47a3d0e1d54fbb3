"""A kind of device: how the user names one, and how it is opened and listed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Literal

from etdeploy.core.errors import DeviceError, EtdeployError
from etdeploy.core.values import StrEnum
from etdeploy.devices.base import Device, DeviceListing

if TYPE_CHECKING:
    from etdeploy.cache.workspace import Workspace


@dataclass(frozen=True)
class DeviceSpec:
    """A device as the user names it.

    Attributes:
        kind: host, qemu, android, ssh, ios, or one of another package.
        serial: What follows the colon, if anything: a serial number, HOST:PORT, a host.
    """

    kind: str
    serial: str | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port where the serial is such an address (IPv6 in brackets)."""
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+):(\d{1,5})", self.serial or "")
        if not match or not 0 < int(match[2]) < 65536:
            return None
        return match[1].strip("[]"), int(match[2])


def split_spec(text: str) -> DeviceSpec:
    """Splits it at its first colon; whether there is such a kind is the registry's to say."""
    kind, _, serial = text.strip().partition(":")
    return DeviceSpec(kind, serial or None)


Listing = Callable[["Workspace"], list[DeviceListing]]


class Recovery(StrEnum):
    """Steps to get back a device that does not work, the mildest first."""

    RECONNECT = "reconnect"
    """Connects to it anew."""
    RESTART = "restart"
    """Restarts what this machine reaches it by, which breaks the connections to others, too."""
    REBOOT = "reboot"
    """Restarts the device."""


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device; a package that brings one names it in `etdeploy.devices`.

    Attributes:
        name: What `--device` begins with.
        forms: How its devices are named, for people: `android`, `android:SERIAL`.
        open: Makes the device that was named. May raise DeviceError; need not connect.
        list: Every such device that can be reached, usually each by `describe_device`.
        address: Whether a word follows the name and a colon: a serial number, a host.
        noun: The name of that word.
        plugged_in: The same as `list`, but asks no device anything, so that one that is measured is
            left alone; a status of `device` says no more than that. None to use `list`.
        recover: Takes a step to get back a device that does not work, and tells what it does. None
            where there is nothing to do.
    """

    name: str
    forms: tuple[str, ...]
    open: Callable[[DeviceSpec, Workspace], Device]
    list: Listing
    address: Literal["none", "optional", "required"] = "optional"
    noun: str = "serial number"
    plugged_in: Listing | None = None
    recover: Callable[[DeviceSpec, Recovery, Callable[[str], None]], None] | None = None


def describe_device(device: Device, kind: str) -> DeviceListing:
    """The facts and state of a device, or why it has none; closes the device."""
    try:
        facts = device.facts()
        return DeviceListing(
            name=device.name,
            kind=kind,
            status="device",
            facts=facts,
            device_state=device.state(),
            connection=facts.connection,
        )
    except DeviceError as error:
        return failed_listing(device.name, kind, "error", error)
    finally:
        device.close()


def present_listing(name: str, kind: str) -> DeviceListing:
    """A device that can be used and was asked nothing."""
    return DeviceListing(name=name, kind=kind, status="device")


def not_chosen(kind: str, count: str, options: Sequence[str]) -> DeviceError:
    """The error where several devices are connected and the user names none; "2 iPhones"."""
    return DeviceError(
        f"{count} are connected, and none is chosen",
        place=kind,
        remedy="\n".join(["Choose one:", *options]),
    )


def not_connected(
    spec: DeviceSpec, message: str, known: Sequence[str], connect_steps: str
) -> DeviceError:
    """The error where the device that the user names is not among those with known serials."""
    close = difflib.get_close_matches(spec.serial or "", known, n=1)
    options = [f"--device {quote(f'{spec.kind}:{serial}')}" for serial in close or known]
    if close:
        remedy = f"Did you mean {options[0]}?"
    else:
        remedy = "\n".join(["Connected are:", *options]) if known else connect_steps
    return DeviceError(message, place=f"{spec.kind}:{spec.serial}", remedy=remedy)


def failed_listing(name: str, kind: str, status: str, error: EtdeployError) -> DeviceListing:
    """A device that cannot be used, with what to do about it."""
    remedy = "\n".join(filter(None, (error.message, error.remedy)))
    return DeviceListing(name=name, kind=kind, status=status, remedy=remedy)
