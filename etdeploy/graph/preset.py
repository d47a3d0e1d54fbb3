"""The runtime plan as a CMakePresets.json: the same build by plain cmake or an IDE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etdeploy.core.errors import BuildError
from etdeploy.core.resources import resource_folder
from etdeploy.graph.job import Job
from etdeploy.graph.line import current_program_path, known_plan
from etdeploy.graph.provision import checkout_for
from etdeploy.runtime.checkout import SOURCE_VARIABLE, Checkout
from etdeploy.runtime.compile import plan_definitions
from etdeploy.runtime.derive import QNN_SDK
from etdeploy.runtime.plan_model import RuntimePlan
from etdeploy.runtime.wheel import find_installed
from etdeploy.targets.platforms import find_target

# Version 6 of the format: CMake 3.25 and newer.
_FORMAT = 6


def cmake_presets(job: Job) -> dict[str, Any]:
    """A configure and a build preset called `etdeploy`, for the runner's CMakeLists.txt.

    Paths of things that are not on this machine yet are taken from the environment variables that
    etdeploy itself reads.

    Raises:
        BuildError: The plan selects operators, and the program is not exported yet.
    """
    plan = known_plan(job)
    variables = {**plan_definitions(plan), **_places(job, plan)}
    if variables.get("QNN_SDK_ROOT") == QNN_SDK:
        variables["QNN_SDK_ROOT"] = "$env{QNN_SDK_ROOT}"
    reasons = "\n".join(f"{o.name}={o.value}: {o.reason}" for o in plan.options)
    return {
        "version": _FORMAT,
        "cmakeMinimumRequired": {"major": 3, "minor": 28, "patch": 0},
        "configurePresets": [
            {
                "name": "etdeploy",
                "displayName": f"{job.loaded.name} for {plan.target}",
                "description": reasons,
                "generator": "Ninja",
                "binaryDir": "${sourceDir}/build/etdeploy",
                "cacheVariables": variables,
            }
        ],
        "buildPresets": [
            {
                "name": "etdeploy",
                "configurePreset": "etdeploy",
                "targets": ["etdeploy-runner"],
            }
        ],
        "vendor": {
            "etdeploy": {
                "sourceDir": str(resource_folder("templates") / "runner"),
                "provisional": plan.provisional,
            }
        },
    }


def _places(job: Job, plan: RuntimePlan) -> dict[str, str]:
    """Where sources, libraries and the program are."""
    if plan.provider.value == "wheel":
        target = find_target(plan.build_target)
        installed = find_installed(target) if target.name == job.host.name else None
        fetched = job.workspace.root / "wheels"
        root = installed.root if installed else _fetched_root(fetched, target.wheel_platform)
        return {"CMAKE_PREFIX_PATH": root}
    checkout = checkout_for(job, plan)
    found = checkout.path if isinstance(checkout, Checkout) else f"$env{{{SOURCE_VARIABLE}}}"
    places = {"ETDEPLOY_EXECUTORCH_SOURCE": found}
    if plan.selection:
        program = current_program_path(job)
        if program is None:
            raise BuildError("the program whose operators are selected is gone")
        places["EXECUTORCH_SELECT_OPS_MODEL"] = str(program)
    return places


def _fetched_root(folder: Path, wheel_platform: str | None) -> str:
    found = sorted(folder.glob(f"executorch-*-{wheel_platform}/executorch"))
    return str(found[-1]) if found else "$env{EXECUTORCH_ROOT}"
