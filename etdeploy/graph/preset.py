"""The runtime plan as a CMakePresets.json: the same build with plain cmake or an IDE."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from etdeploy.cache.folder import CacheKind
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.resources import resource_folder
from etdeploy.custom_ops.kernels import write_registration
from etdeploy.graph.job import Job
from etdeploy.graph.resolve import Resolved
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.provider.checkout import SOURCE_VARIABLE, Checkout
from etdeploy.provider.wheel import find_installed
from etdeploy.runner.compile import backend_targets, plan_definitions
from etdeploy.runner.fingerprint import toolchain_for
from etdeploy.runner.kernel_sources import aten_operators, needed_sources
from etdeploy.targets.platforms import find_target

# Version 6 of the format: CMake 3.25 and newer.
_FORMAT = 6


def cmake_presets(resolved: Resolved) -> dict[str, Any]:
    """A configure and a build preset called `etdeploy`, for the runner's CMakeLists.txt.

    Paths that do not exist on this machine yet come from the environment variables that etdeploy
    itself reads.

    Raises:
        BuildError: The plan selects operators and the program is not exported yet, or ExecuTorch
            rejects the name of the checkout's folder.
    """
    job, plan = resolved.job, resolved.plan
    variables = {**plan_definitions(plan), **_places(resolved), **_own_kernels(resolved)}
    # What a backend finds on the machine that builds, where plain cmake reads the environment.
    variables |= {n: f"$env{{{n}}}" for n, value in variables.items() if value == f"${n}"}
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


def _places(resolved: Resolved) -> dict[str, str]:
    """Where sources, libraries and the program are."""
    job, plan, checkout = resolved.job, resolved.plan, resolved.checkout
    if plan.provider.value == Provider.WHEEL:
        target = find_target(plan.build_target)
        installed = find_installed(target) if target.name == job.host.name else None
        fetched = job.workspace.folder(CacheKind.WHEELS)
        root = installed.root if installed else _fetched_root(fetched, target.wheel_platform)
        return _toolchain_file(plan) | {"CMAKE_PREFIX_PATH": root}
    if checkout and checkout.folder.name != "executorch":
        raise BuildError(
            f"plain cmake needs the checkout in a folder called executorch, but it is in "
            f"{checkout.path}",
            remedy="Name a checkout in a folder of that name: "
            f"export {SOURCE_VARIABLE}=/path/to/executorch",
        )
    found = checkout.path if checkout else f"$env{{{SOURCE_VARIABLE}}}"
    places = _toolchain(job, plan, checkout)
    places |= backend_targets(plan)
    places["ETDEPLOY_EXECUTORCH_SOURCE"] = found
    if plan.option("PYTHON_EXECUTABLE") is None:
        places["PYTHON_EXECUTABLE"] = sys.executable
    if plan.selection:
        if resolved.exported is None:
            raise BuildError("the program whose operators are selected is gone")
        program = resolved.exported.path
        places["EXECUTORCH_SELECT_OPS_MODEL"] = str(program)
        files = checkout and needed_sources(checkout.folder, aten_operators(program))
        if files:
            places["ETDEPLOY_KERNEL_FILES"] = ";".join(files)
    return places


def _own_kernels(resolved: Resolved) -> dict[str, str]:
    job, ops = resolved.job, resolved.custom_ops
    if ops is None:
        return {}
    job.state.mkdir(parents=True, exist_ok=True)
    write_registration(ops, job.state)
    return ops.definitions(job.state)


def _toolchain(job: Job, plan: RuntimePlan, checkout: Checkout | None) -> dict[str, str]:
    """The toolchain found on this machine, else the environment variable that names it."""
    found = toolchain_for(plan, find_target(plan.build_target), job.host, checkout)
    if isinstance(found, Blocker):
        return _toolchain_file(plan)
    return {d.name: d.value or "" for d in found.definitions}


def _toolchain_file(plan: RuntimePlan) -> dict[str, str]:
    if plan.toolchain is None:
        return {}
    file = str(plan.toolchain.value)
    for place, variable in (("<NDK>", "ANDROID_NDK"), ("<checkout>", SOURCE_VARIABLE)):
        if file.startswith(place):
            return {"CMAKE_TOOLCHAIN_FILE": file.replace(place, f"$env{{{variable}}}")}
    return {"CMAKE_TOOLCHAIN_FILE": str(resource_folder("toolchains") / file)}


def _fetched_root(folder: Path, wheel_platform: str | None) -> str:
    found = sorted(folder.glob(f"executorch-*-{wheel_platform}/executorch"))
    return str(found[-1]) if found else "$env{EXECUTORCH_ROOT}"
