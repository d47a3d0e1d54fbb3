"""Groups of devices and pools, with what can be checked before any device is asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from re import fullmatch

from etdeploy.core.errors import EtdeployError
from etdeploy.devices.registry import device_names, parse_spec
from etdeploy.farm.spec.conditions import ConditionError, group_of, is_pattern, matches
from etdeploy.farm.spec.findings import Findings, dotted
from etdeploy.farm.spec.model import DeviceGroup
from etdeploy.farm.spec.written import NAME, Group
from etdeploy.recipe.place import KeyPath
from etdeploy.targets.platforms import TARGETS

NAMED = "named"
"""The pool of devices that groups name and no list finds."""


def read_groups(written: Mapping[str, Group], findings: Findings) -> dict[str, DeviceGroup]:
    """The groups that can be read."""
    found = {}
    for name, group in written.items():
        keys = ("devices", name)
        require_name(keys, findings)
        try:
            found[name] = group_of(group)
        except ConditionError as error:
            if not error.key and findings.is_bad(keys):
                continue
            where = (*keys, error.key) if error.key else keys
            findings.add(where, f"{dotted(keys)}: {error}", error.hint)
        _require_known((*keys, "kind"), group.kind, device_names(), findings)
        _require_known((*keys, "target"), group.target, TARGETS, findings)
        if group.name and not is_pattern(group.name) and group.name not in device_names():
            _require_device((*keys, "name"), group.name, findings)
    return found


def read_pools(
    written: Mapping[str, Sequence[str]],
    groups: Mapping[str, Group],
    alone: bool,
    findings: Findings,
) -> dict[str, tuple[str, ...]]:
    """The pools of this machine's devices; those that groups name and no list finds are one, too.

    Args:
        written: By name.
        groups: That may ask for one.
        alone: Whether no other host can have pools.
        findings: Gets what is wrong.
    """
    for name, devices in written.items():
        require_name(("pools", name), findings)
        for number, device in enumerate(devices):
            if device not in device_names():
                _require_device(("pools", name, number), device, findings)
    for name, group in groups.items():
        if alone and group.pool and not findings.is_bad(("pools",)):
            _require_known(("devices", name, "pool"), group.pool, written, findings)
    pools = {name: tuple(devices) for name, devices in written.items()}
    named = [g.name for g in groups.values() if alone and g.name and _is_unlisted(g.name)]
    return {**pools, NAMED: (*pools.get(NAMED, ()), *named)} if named else pools


def _is_unlisted(name: str) -> bool:
    """Whether a device is found by its name alone: no list has boards, and those on a network."""
    if is_pattern(name):
        return False
    try:
        kind, spec = parse_spec(name)
    except EtdeployError:
        return False
    return kind.address == "required" or spec.address is not None


def require_name(keys: KeyPath, findings: Findings) -> None:
    """Notes a name of the user's own that reports and the command line could not show."""
    if not fullmatch(NAME, str(keys[-1])):
        findings.add(
            keys,
            f"{keys[-1]!r} cannot be a name in {keys[0]}",
            "use letters, digits, dot, dash and underscore",
        )


def _require_known(
    keys: KeyPath, value: str | None, known: Collection[str], findings: Findings
) -> None:
    if value is None or any(matches(each, value) for each in known):
        return
    near = get_close_matches(value, known, n=1)
    there = ", ".join(known) or "none"
    findings.add(
        keys,
        f"{dotted(keys)}: there is no {keys[-1]} {value!r}",
        f"did you mean {near[0]!r}?" if near else f"there are: {there}",
    )


def _require_device(keys: KeyPath, name: str, findings: Findings) -> None:
    try:
        parse_spec(name)
    except EtdeployError as error:
        findings.add(keys, f"{dotted(keys)}: {error.message}", error.remedy)
