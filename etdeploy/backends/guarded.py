"""A backend of another package, whose mistakes are told as that package's."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

from etdeploy.backends.base import Backend
from etdeploy.backends.registry import GROUP, exporting_backends, plugged_backend
from etdeploy.backends.values import Extras, Package, Payload, Simulated, Workstation
from etdeploy.core.diagnostics import Diagnosis
from etdeploy.core.errors import Blocker, PluginError, UsageError
from etdeploy.core.finding import Finding
from etdeploy.core.flatbuffer import CorruptError
from etdeploy.core.plugins import Origin, each_given, one_given, plugin_names, plugin_owner
from etdeploy.core.values import Explained

EACH: Mapping[str, type] = {
    "plan_notes": str,
    "cmake_options": Explained,
    "build_notes": str,
    "target_blockers": Blocker,
    "packages_for": Package,
    "export_blockers": Blocker,
    "program_blockers": Blocker,
    "build_blockers": Blocker,
    "bundle_blockers": Blocker,
    "bundle_notes": str,
    "findings": Finding,
}
"""The hooks that give several things, by what each of these is."""

ONE: Mapping[str, type | tuple[type, ...]] = {
    "runs_on": bool,
    "export_environment": Mapping,
    "versions": Mapping,
    "prepare_export": type(None),
    "export_failure": (Diagnosis, type(None)),
    "read_payload": Payload,
    "describe_target": str,
    "device_blocker": (Blocker, type(None)),
    "definitions": Mapping,
    "build_key": str,
    "bundle_inputs": Mapping,
    "extras": Extras,
    "simulated": (Simulated, type(None)),
    "failure": (Diagnosis, type(None)),
}
"""The hooks that give one thing, by what that is."""

_ALLOWED: Mapping[str, type[Exception]] = {"read_payload": CorruptError}


def guarded(backend: Backend, origin: Origin) -> Backend:
    """The same backend, whose hooks raise PluginError where they fail or give what they must not.

    Its own code still calls the hooks as they are.
    """
    same = copy.copy(backend)
    for hook, expected in EACH.items():
        call = each_given(origin, hook, getattr(backend, hook), expected)
        object.__setattr__(same, hook, call)  # backends are frozen
    for hook, kinds in ONE.items():
        allowed = [_ALLOWED[hook]] if hook in _ALLOWED else []
        asked = one_given(origin, hook, getattr(backend, hook), kinds, *allowed)
        object.__setattr__(same, hook, asked)
    return same


def plugged_findings(station: Workstation) -> Iterator[Finding]:
    """Each of them, with what it looks for itself, or why it cannot be used."""
    for name in plugin_names(GROUP):
        owner = plugin_owner(GROUP, name)
        if name in exporting_backends():
            why = f"{owner} has a backend {name!r}, and so has etdeploy, which uses its own."
            yield _finding(name, None, f"{why}\nTell its author, who can choose another name.")
            continue
        try:
            backend = plugged_backend(name)
        except UsageError as error:
            yield _finding(name, None, f"{error.message}\n{error.remedy}")
            continue
        yield _finding(name, owner, None)
        try:
            yield from backend.findings(station) if backend else ()
        except PluginError as error:
            yield _finding(f"{name}: its findings", None, str(error))


def _finding(name: str, found: str | None, remedy: str | None) -> Finding:
    return Finding(
        name=f"backend {name}",
        state="ok" if found else "optional",
        found=found,
        needed_for="recipes and programs that name it",
        remedy=remedy,
    )
