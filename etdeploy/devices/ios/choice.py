"""Which iPhone a name means, and which ones there are."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError
from etdeploy.devices.base import DeviceListing
from etdeploy.devices.ios.command import (
    Attached,
    MuxError,
    PhoneCommand,
    attached,
    dashed,
    find_program,
    require_program,
    socket_address,
)
from etdeploy.devices.ios.device import IosDevice
from etdeploy.devices.ios.diagnostics import CONNECT_STEPS, UntrustedError, phone_error
from etdeploy.devices.kinds import DeviceSpec, described, failed

# How long a listing waits for each request to a phone.
_LIST_S = 30.0


def open_ios(spec: DeviceSpec) -> IosDevice:
    """The phone that `ios` or `ios:UDID` means."""
    place = f"ios:{spec.serial}" if spec.serial else "ios"
    known = _known(place)
    if known is None:
        raise phone_error("connect to usbmuxd", place)
    phone = _named(spec.serial, known) if spec.serial else _only(known)
    return IosDevice(PhoneCommand(require_program(place), phone.udid), phone.connection)


def list_ios() -> list[DeviceListing]:
    """Every iPhone that usbmuxd knows, with what to do about each.

    Without a phone, no process is started.
    """
    try:
        known = _known("ios") or []
    except DeviceError as error:
        return [failed("ios", "ios", "error", error)]
    if not known:
        return []
    return cancel.in_threads(_listing, known)


def plugged_ios() -> list[DeviceListing]:
    """Every iPhone that usbmuxd knows; none is asked anything, and no process is started."""
    try:
        known = _known("ios") or []
    except DeviceError as error:
        return [failed("ios", "ios", "error", error)]
    return [DeviceListing(name=f"ios:{phone.udid}", kind="ios", status="device") for phone in known]


def _listing(phone: Attached) -> DeviceListing:
    name = f"ios:{phone.udid}"
    if find_program() is None:
        try:
            require_program(name)
        except DeviceError as error:
            return failed(name, "ios", "missing", error)
    device = IosDevice(PhoneCommand(require_program(name), phone.udid), phone.connection, _LIST_S)
    try:
        device.facts()
    except UntrustedError as error:
        return failed(name, "ios", "unauthorized", error)
    except DeviceError as error:
        return failed(name, "ios", "error", error)
    return described(device, "ios")


def _known(place: str) -> list[Attached] | None:
    try:
        return attached()
    except MuxError as error:
        raise DeviceError(
            f"what listens on {socket_address()} does not answer like usbmuxd: {error}",
            place=place,
            remedy="sudo systemctl restart usbmuxd   (on a Mac: restart it), then plug the phone "
            "in again.",
        ) from error


def _only(known: Sequence[Attached]) -> Attached:
    if len(known) == 1:
        return known[0]
    if known:
        names = "\n".join(f"--device ios:{phone.udid}" for phone in known)
        raise DeviceError(
            f"{len(known)} iPhones are connected, and none is chosen",
            place="ios",
            remedy=f"Choose one (`etdeploy devices` shows their models):\n{names}",
        )
    raise DeviceError("no iPhone is connected", place="ios", remedy=CONNECT_STEPS)


def _named(udid: str, known: Sequence[Attached]) -> Attached:
    wanted = dashed(udid).lower()
    for phone in known:
        if phone.udid.lower() == wanted:
            return phone
    close = difflib.get_close_matches(dashed(udid), [phone.udid for phone in known], n=1)
    if close:
        remedy = f"Did you mean --device ios:{close[0]}?"
    elif known:
        remedy = "Connected are:\n" + "\n".join(f"--device ios:{phone.udid}" for phone in known)
    else:
        remedy = CONNECT_STEPS
    raise DeviceError("the phone is not connected", place=f"ios:{udid}", remedy=remedy)
