"""Every kind of device behind its name."""

from __future__ import annotations

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import DeviceError
from etdeploy.devices.base import Device, DeviceListing
from etdeploy.devices.spec import parse_spec

# How long a listing waits for each device.
_LIST_S = 10.0

LOCAL_KIND = "bundles"
"""Where bundles of host and qemu are kept in the cache."""


def open_device(spec: str, workspace: Workspace | None = None) -> Device:
    """The device that `--device` names.

    Args:
        spec: host, qemu, android, android:SERIAL, android:HOST:PORT or ios[:UDID].
        workspace: The cache, for devices on this machine; the user's own by default.

    Raises:
        UsageError: There is no such kind of device.
        DeviceError: It is not connected, cannot be used, or one of several has to be named.
    """
    parsed = parse_spec(spec)
    if parsed.kind == "ios":
        raise _no_ios(spec)
    if parsed.kind == "android":
        from etdeploy.devices.android.choice import open_android

        return open_android(parsed)
    from etdeploy.devices.local import device as local

    folder = (workspace or Workspace.default()).root / LOCAL_KIND
    return local.open_host(folder) if parsed.kind == "host" else local.open_qemu(folder)


def list_devices(workspace: Workspace | None = None) -> list[DeviceListing]:
    """Every device that can be reached, and what to do about those that cannot be used.

    Devices on the network that no adb server knows are not searched for.

    Raises:
        UsageError: The environment variables of the adb server do not hold an address.
    """
    return [*_local_devices(workspace), *_android_devices()]


def _local_devices(workspace: Workspace | None) -> list[DeviceListing]:
    return [_described(name, name, workspace) for name in ("host", "qemu")]


def _android_devices() -> list[DeviceListing]:
    from concurrent.futures import ThreadPoolExecutor

    from etdeploy.devices.android.choice import known_devices, open_listed, remedy_for

    try:
        known = known_devices()
    except DeviceError as error:
        return [_failed("android", "android", "error", error)]
    usable = [d for d in known if remedy_for(d) is None]
    with ThreadPoolExecutor(max_workers=8) as pool:
        described = dict(
            zip(
                [d.serial for d in usable],
                pool.map(lambda d: _queried(open_listed(d, _LIST_S), "android"), usable),
                strict=True,
            )
        )
    return [
        described.get(d.serial)
        or DeviceListing(
            name=f"android:{d.serial}", kind="android", status=d.state, remedy=remedy_for(d)
        )
        for d in known
    ]


def _described(name: str, kind: str, workspace: Workspace | None) -> DeviceListing:
    try:
        device = open_device(name, workspace)
    except DeviceError as error:
        return _failed(name, kind, "missing", error)
    return _queried(device, kind)


def _queried(device: Device, kind: str) -> DeviceListing:
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
        return _failed(device.name, kind, "error", error)
    finally:
        device.close()


def _failed(name: str, kind: str, status: str, error: DeviceError) -> DeviceListing:
    remedy = "\n".join(filter(None, (error.message, error.remedy)))
    return DeviceListing(name=name, kind=kind, status=status, remedy=remedy)


def _no_ios(spec: str) -> DeviceError:
    return DeviceError(
        "iOS devices are not available in this release",
        place=spec,
        remedy="They will need a Mac with Xcode, a signing identity, and the pymobiledevice3\n"
        "command. Until then use host, qemu or android.",
    )
