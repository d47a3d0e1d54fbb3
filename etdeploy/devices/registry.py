"""Every kind of device behind its name: etdeploy's own, and those of other packages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from shlex import quote

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import DeviceError, EtdeployError, UsageError
from etdeploy.core.plugins import attributed, call_hook, check_hooks, load_plugin, plugin_names
from etdeploy.devices.base import Device, DeviceListing
from etdeploy.devices.kinds import DeviceKind, DeviceSpec, Recovery, described, failed, split_spec

GROUP = "etdeploy.devices"
"""The entry points by which other packages add kinds of devices."""

LOCAL_KIND = "bundles"
"""Where bundles of host and qemu are kept in the cache."""


def open_device(text: str, workspace: Workspace | None = None) -> Device:
    """The device that `--device` names.

    Args:
        text: A kind, and what names one device of it: host, android:SERIAL.
        workspace: The cache, for devices on this machine; the user's own by default.

    Raises:
        UsageError: There is no such kind of device, or its name is wrong.
        DeviceError: It is not connected, cannot be used, or one of several has to be named.
    """
    kind, spec = parse_spec(text)
    device = kind.open(spec, workspace or Workspace.default())
    if kind.name not in BUILT_IN:
        check_hooks(GROUP, kind.name, device, Device)
    return device


def parse_spec(text: str) -> tuple[DeviceKind, DeviceSpec]:
    """The kind that a device's name begins with, and the rest of the name.

    Raises:
        UsageError: There is no such kind, it cannot be loaded, or it takes no such name.
    """
    spec = split_spec(text)
    kind = BUILT_IN.get(spec.kind) or load_plugin(GROUP, spec.kind, DeviceKind)
    if kind is None:
        raise UsageError(f"there is no device {text!r}", remedy=_suggestion(spec))
    if spec.serial and kind.address == "none":
        raise UsageError(
            f"{text!r}: the device {kind.name} does not take a {kind.noun}",
            remedy=f"--device {kind.name}",
        )
    if not spec.serial and (kind.address == "required" or ":" in text):
        missing = "after the colon" if ":" in text else f"after {kind.name}:"
        raise UsageError(
            f"{text!r} has no {kind.noun} {missing}", remedy=f"--device {quote(kind.forms[0])}"
        )
    return kind, spec


def list_devices(workspace: Workspace | None = None) -> list[DeviceListing]:
    """Every device that can be reached, and what to do about those that cannot be used.

    Devices on the network that no adb server knows are not searched for.

    Raises:
        UsageError: The environment variables of the adb server do not hold an address.
    """
    cache = workspace or Workspace.default()
    own = [device for kind in BUILT_IN.values() for device in kind.list(cache)]
    others = [device for name in _plugins() for device in _listed(name, cache)]
    return own + others


def plugged_in(workspace: Workspace | None = None) -> list[DeviceListing]:
    """The same as `list_devices`, but devices are asked nothing: one may be measured now.

    Raises:
        UsageError: The environment variables of the adb server do not hold an address.
    """
    cache = workspace or Workspace.default()
    own = [each for kind in BUILT_IN.values() for each in (kind.plugged_in or kind.list)(cache)]
    return own + [device for name in _plugins() for device in _listed(name, cache)]


def recover_device(text: str, step: Recovery, tell: Callable[[str], None]) -> bool:
    """Takes a step to get back a device that does not work.

    Args:
        text: As `--device` takes it.
        step: What to do.
        tell: Told what is done.

    Returns:
        Whether there was anything to do.

    Raises:
        UsageError: There is no such kind of device.
        DeviceError: It is not back after a while, or the step cannot be taken.
        Interrupted: The run was asked to stop.
    """
    kind, spec = parse_spec(text)
    if kind.recover is None:
        return False
    kind.recover(spec, step, tell)
    return True


def device_names() -> tuple[str, ...]:
    """The names of all kinds; nothing is imported for them."""
    return (*BUILT_IN, *_plugins())


def device_forms() -> tuple[str, ...]:
    """How devices of every kind are named, for help and messages; plug-ins by name only."""
    own = [form for kind in BUILT_IN.values() for form in kind.forms]
    return (*own, *(f"{name}[:...]" for name in _plugins()))


def _plugins() -> list[str]:
    return [name for name in plugin_names(GROUP) if name not in BUILT_IN]


def _listed(name: str, workspace: Workspace) -> list[DeviceListing]:
    """The devices of a plug-in; one that does not work is listed, and hides no others."""
    try:
        with attributed():
            kind = load_plugin(GROUP, name, DeviceKind)
            return call_hook(kind.list, list, workspace) if kind else []
    except EtdeployError as error:
        return [failed(name, name, "error", error)]


def _suggestion(spec: DeviceSpec) -> str:
    rest = f":{spec.serial}" if spec.serial else ""
    close = difflib.get_close_matches(spec.kind.lower(), device_names(), n=1, cutoff=0.6)
    if close:
        return f"Did you mean {quote(close[0] + rest)}?"
    forms = f"Devices: {', '.join(device_forms())}"
    named = quote(f"ssh:{spec.kind}{rest}")
    if "@" in spec.kind:
        return f"Did you mean {named}?"
    if re.fullmatch(r"[A-Za-z0-9._-]{6,}", spec.kind):
        serial = quote(f"android:{spec.kind}{rest}")
        return f"A serial number is written {serial}, the host name of a board {named}. {forms}"
    return forms


def _open_host(_spec: DeviceSpec, workspace: Workspace) -> Device:
    from etdeploy.devices.local.device import open_host

    return open_host(workspace.root / LOCAL_KIND)


def _open_qemu(_spec: DeviceSpec, workspace: Workspace) -> Device:
    from etdeploy.devices.local.device import open_qemu

    return open_qemu(workspace.root / LOCAL_KIND)


def _open_android(spec: DeviceSpec, _workspace: Workspace) -> Device:
    from etdeploy.devices.android.device import open_android

    return open_android(spec)


def _open_ssh(spec: DeviceSpec, _workspace: Workspace) -> Device:
    from etdeploy.devices.ssh.device import open_ssh

    return open_ssh(spec)


def _open_ios(spec: DeviceSpec, _workspace: Workspace) -> Device:
    kind, _, udid = (spec.serial or "").partition(":")
    if kind == "simulator":
        from etdeploy.devices.ios.simulator import open_simulator

        return open_simulator(udid or None)
    from etdeploy.devices.ios.choice import open_ios

    return open_ios(spec)


def _list_host(workspace: Workspace) -> list[DeviceListing]:
    return [described(_open_host(DeviceSpec("host"), workspace), "host")]


def _list_qemu(workspace: Workspace) -> list[DeviceListing]:
    try:
        return [described(_open_qemu(DeviceSpec("qemu"), workspace), "qemu")]
    except DeviceError as error:
        return [failed("qemu", "qemu", "missing", error)]


def _here_host(_workspace: Workspace) -> list[DeviceListing]:
    return [DeviceListing(name="host", kind="host", status="device")]


def _here_qemu(workspace: Workspace) -> list[DeviceListing]:
    try:
        _open_qemu(DeviceSpec("qemu"), workspace)
    except DeviceError as error:
        return [failed("qemu", "qemu", "missing", error)]
    return [DeviceListing(name="qemu", kind="qemu", status="device")]


def _here_android(_workspace: Workspace) -> list[DeviceListing]:
    from etdeploy.devices.android.device import plugged_android

    return plugged_android()


def _here_ios(_workspace: Workspace) -> list[DeviceListing]:
    from etdeploy.devices.ios.choice import plugged_ios

    return plugged_ios()


def _recover_android(spec: DeviceSpec, step: Recovery, tell: Callable[[str], None]) -> None:
    from etdeploy.devices.android.device import recover_android

    recover_android(spec, step, tell)


def _list_android(_workspace: Workspace) -> list[DeviceListing]:
    from etdeploy.devices.android.device import list_android

    return list_android()


def _list_ios(_workspace: Workspace) -> list[DeviceListing]:
    from etdeploy.devices.ios.choice import list_ios

    return list_ios()


def _list_nothing(_workspace: Workspace) -> list[DeviceListing]:
    return []


BUILT_IN: dict[str, DeviceKind] = {
    kind.name: kind
    for kind in (
        DeviceKind(
            "host", ("host",), _open_host, _list_host, address="none", plugged_in=_here_host,
        ),
        DeviceKind(
            "qemu", ("qemu",), _open_qemu, _list_qemu, address="none", plugged_in=_here_qemu,
        ),
        DeviceKind(
            "android", ("android", "android:SERIAL", "android:HOST:PORT"),
            _open_android, _list_android, plugged_in=_here_android, recover=_recover_android,
        ),
        DeviceKind(
            "ssh", ("ssh:[USER@]HOST[:PORT][:/FOLDER]",), _open_ssh, _list_nothing,
            address="required", noun="host",
        ),
        DeviceKind(
            "ios", ("ios", "ios:UDID", "ios:simulator[:UDID]"), _open_ios, _list_ios, noun="UDID",
            plugged_in=_here_ios,
        ),
    )
}  # fmt: skip
