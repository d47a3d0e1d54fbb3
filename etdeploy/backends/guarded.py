"""A backend of another package, whose mistakes are told as that package's."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from etdeploy.backends.base import Backend
from etdeploy.backends.causes import Cause
from etdeploy.backends.payload import Payload
from etdeploy.backends.values import Extras, Package, Simulated
from etdeploy.core.blame import Origin, each_given, one_given
from etdeploy.core.blocker import Blocker
from etdeploy.core.finding import Finding
from etdeploy.core.flatbuffer import CorruptError
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
    "export_failure": (Cause, type(None)),
    "read_payload": Payload,
    "describe_target": str,
    "device_blocker": (Blocker, type(None)),
    "definitions": Mapping,
    "build_key": str,
    "bundle_inputs": Mapping,
    "extras": Extras,
    "simulated": (Simulated, type(None)),
    "failure": (Cause, type(None)),
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
