"""Which iPhone a name means, and which ones there are."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError
from etdeploy.devices.base import DeviceListing
from etdeploy.devices.ios.command import (
    Attached,
    MuxError,
    PhoneCommand,
    format_udid,
    list_attached,
    require_program,
    socket_address,
)
from etdeploy.devices.ios.device import IosDevice
from etdeploy.devices.ios.diagnostics import CONNECT_STEPS, UntrustedError, phone_error
from etdeploy.devices.ios.simulator import SimulatorDevice, open_simulator
from etdeploy.devices.kinds import (
    DeviceSpec,
    describe_device,
    failed_listing,
    not_chosen,
    not_connected,
    present_listing,
)

# How long a listing waits for each request to a phone.
_LIST_S = 30.0


def open_ios(spec: DeviceSpec) -> IosDevice | SimulatorDevice:
    """The phone or simulator that `ios`, `ios:UDID` or `ios:simulator[:UDID]` means."""
    kind, _, udid = (spec.serial or "").partition(":")
    if kind == "simulator":
        return open_simulator(udid or None)
    place = f"ios:{spec.serial}" if spec.serial else "ios"
    known = _known(place)
    if known is None:
        raise phone_error("connect to usbmuxd", place)
    phone = _named(spec, known) if spec.serial else _only(known)
    return IosDevice(PhoneCommand(require_program(place), phone.udid), phone.connection)


def list_ios(*, ask: bool = True) -> list[DeviceListing]:
    """Every iPhone that usbmuxd knows, with what to do about each.

    No process is started where no phone is connected, or where none is asked anything.
    """
    try:
        known = _known("ios") or []
    except DeviceError as error:
        return [failed_listing("ios", "ios", "error", error)]
    if not ask:
        return [present_listing(f"ios:{phone.udid}", "ios") for phone in known]
    return cancel.in_threads(_listing, known) if known else []


def _listing(phone: Attached) -> DeviceListing:
    name = f"ios:{phone.udid}"
    try:
        program = require_program(name)
    except DeviceError as error:
        return failed_listing(name, "ios", "missing", error)
    device = IosDevice(PhoneCommand(program, phone.udid), phone.connection, _LIST_S)
    try:
        device.facts()
    except DeviceError as error:
        status = "unauthorized" if isinstance(error, UntrustedError) else "error"
        return failed_listing(name, "ios", status, error)
    return describe_device(device, "ios")


def _known(place: str) -> list[Attached] | None:
    try:
        return list_attached()
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
        options = [f"--device ios:{phone.udid}" for phone in known]
        raise not_chosen("ios", f"{len(known)} iPhones", options)
    raise DeviceError("no iPhone is connected", place="ios", remedy=CONNECT_STEPS)


def _named(spec: DeviceSpec, known: Sequence[Attached]) -> Attached:
    udid = format_udid(spec.serial or "")
    for phone in known:
        if phone.udid.lower() == udid.lower():
            return phone
    serials = [phone.udid for phone in known]
    raise not_connected(
        DeviceSpec("ios", udid), "the phone is not connected", serials, CONNECT_STEPS
    )
