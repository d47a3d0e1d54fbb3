"""Every kind of device behind its name: etdeploy's own, and those of other packages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from shlex import quote
from types import ModuleType

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import EtdeployError, UsageError
from etdeploy.core.plugins import attributed, call_hook, check_hooks, load_plugin, plugin_names
from etdeploy.devices.base import Device, DeviceListing
from etdeploy.devices.kinds import (
    DeviceKind,
    DeviceSpec,
    Recovery,
    failed_listing,
    present_listing,
    split_spec,
)

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
        return [failed_listing(name, name, "error", error)]


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


def _local() -> ModuleType:
    from etdeploy.devices.local import device

    return device


def _android() -> ModuleType:
    from etdeploy.devices.android import device

    return device


def _ios() -> ModuleType:
    from etdeploy.devices.ios import choice

    return choice


def _open_ssh(spec: DeviceSpec, _workspace: Workspace) -> Device:
    from etdeploy.devices.ssh.device import open_ssh

    return open_ssh(spec)


# The modules of a kind are imported when a device of that kind is used.
BUILT_IN: dict[str, DeviceKind] = {
    kind.name: kind
    for kind in (
        DeviceKind(
            "host", ("host",), address="none",
            open=lambda _, workspace: _local().open_host(workspace.root / LOCAL_KIND),
            list=lambda workspace: _local().list_host(workspace.root / LOCAL_KIND),
            plugged_in=lambda _: [present_listing("host", "host")],
        ),
        DeviceKind(
            "qemu", ("qemu",), address="none",
            open=lambda _, workspace: _local().open_qemu(workspace.root / LOCAL_KIND),
            list=lambda workspace: _local().list_qemu(workspace.root / LOCAL_KIND),
            plugged_in=lambda w: _local().list_qemu(w.root / LOCAL_KIND, ask=False),
        ),
        DeviceKind(
            "android", ("android", "android:SERIAL", "android:HOST:PORT"),
            open=lambda spec, _: _android().open_android(spec),
            list=lambda _: _android().list_android(),
            plugged_in=lambda _: _android().list_android(ask=False),
            recover=lambda *step: _android().recover_android(*step),
        ),
        DeviceKind(
            "ssh", ("ssh:[USER@]HOST[:PORT][:/FOLDER]",), address="required", noun="host",
            open=_open_ssh, list=lambda _: [],
        ),
        DeviceKind(
            "ios", ("ios", "ios:UDID", "ios:simulator[:UDID]"), noun="UDID",
            open=lambda spec, _: _ios().open_ios(spec),
            list=lambda _: _ios().list_ios(),
            plugged_in=lambda _: _ios().list_ios(ask=False),
        ),
    )
}  # fmt: skip
