"""Where ExecuTorch comes from for a job: its plan, and the provider's libraries or sources."""

from __future__ import annotations

import os
from pathlib import Path

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError
from etdeploy.core.progress import Progress
from etdeploy.custom_ops.kernels import CustomOps, read_custom_ops
from etdeploy.graph.job import Job
from etdeploy.graph.qnn import missing_sdk
from etdeploy.plan.components import shipped_components
from etdeploy.plan.derive import Available, CustomKernels, derive_plan
from etdeploy.plan.model import RuntimePlan
from etdeploy.plan.relations import spelled
from etdeploy.program.model import Program
from etdeploy.provider.checkout import (
    Checkout,
    examine,
    find_checkout,
    read_options,
    require_readable,
)
from etdeploy.provider.clone import (
    clone,
    fetch_submodules,
)
from etdeploy.provider.libraries import Libraries
from etdeploy.provider.submodules import (
    require_complete,
)
from etdeploy.provider.wheel import executorch_version, obtain_wheel, wheel_problem
from etdeploy.runner.build import runner_key
from etdeploy.runner.missing import Missing, find_missing, require_present, submodules_of
from etdeploy.targets.platforms import find_target


def plan_for(job: Job, program: Program | None) -> RuntimePlan:
    """The runtime plan of the job; provisional without a program.

    A checkout that cannot be used does not stop the plan: a run says why before it starts.

    Raises:
        BuildError: A derived option is unknown to the checkout.
    """
    plan = _derive(job, program, None)
    checkout = checkout_for(job, plan)
    return _derive(job, program, checkout) if isinstance(checkout, Checkout) else plan


def checkout_for(job: Job, plan: RuntimePlan) -> Checkout | BuildError | None:
    """The checkout that a build of the plan would take, or why the named one cannot be used.

    None when there is none yet, and for the wheel.
    """
    if plan.provider.value != "source":
        return None
    if not job.checkouts:
        found = _look(job)
        if found is None:  # A run clones it.
            return None
        job.checkouts.append(found)
    return job.checkouts[0]


def _look(job: Job) -> Checkout | BuildError | None:
    named = job.loaded.recipe.runtime.source
    try:
        return find_checkout(named, os.environ, job.workspace, executorch_version())
    except BuildError as error:
        place = job.loaded.places.get(("runtime", "source")) if named else None
        error.place = str(place) if place else None
        return error


def missing_for(job: Job, plan: RuntimePlan, program: Program | None) -> tuple[Missing, ...]:
    """What this machine lacks for a plan of the job, and for the program where it is known."""
    return (
        *find_missing(plan, job.host, checkout_for(job, plan)),
        *missing_sdk(job, plan, program),
    )


def custom_ops_of(job: Job) -> CustomOps | None:
    """The kernels that the recipe brings.

    Raises:
        BuildError: Their folder cannot be used; with its place.
    """
    runtime = job.loaded.recipe.runtime
    if runtime.custom_ops is None:
        return None
    return read_custom_ops(Path(runtime.custom_ops), runtime.custom_ops_target)


def obtain_libraries(
    job: Job, plan: RuntimePlan, exported_with: str | None, progress: Progress, log: Path | None
) -> Libraries:
    """Gets what the plan's provider gives.

    Args:
        job: Of the plan.
        plan: Feasible.
        exported_with: The version of ExecuTorch that made the program, where it is known.
        progress: Told each step.
        log: Gets every command with its output.

    Raises:
        BuildError: It cannot be had, or is not what the plan was made for.
    """
    if plan.provider.value == "source":
        return _sources(job, plan, exported_with, progress, log)
    target = find_target(plan.build_target)
    wheel = obtain_wheel(target, job.host, job.workspace, progress, log)
    absent = sorted(set(plan.component_names) - set(wheel.components))
    if absent:
        raise BuildError(
            f"the ExecuTorch {wheel.version} libraries in {wheel.root} lack {', '.join(absent)}",
            remedy="Build ExecuTorch from its sources: --set runtime.provider=source",
        )
    return Libraries(wheel=wheel)


def libraries_problem(libraries: Libraries, workspace: Workspace) -> str | None:
    """Why what was obtained can no longer be used; None when it can."""
    if libraries.wheel:
        return wheel_problem(libraries.wheel, workspace)
    known = libraries.checkout
    if known is None:
        return "the provider of ExecuTorch is not known"
    try:
        now = examine(known.folder, known.origin)
    except BuildError:
        return "the checkout of ExecuTorch is gone"
    return None if now.revision == known.revision else "the checkout of ExecuTorch changed"


def _sources(
    job: Job, plan: RuntimePlan, exported_with: str | None, progress: Progress, log: Path | None
) -> Libraries:
    checkout = checkout_for(job, plan)
    if isinstance(checkout, BuildError):
        raise checkout
    if not _is_built(job, plan, checkout):
        # What only this program needs was not asked for before it was exported.
        require_present(missing_for(job, plan, None))
    if checkout is None:
        checkout = clone(job.workspace, plan.executorch_version, os.environ, progress, log)
    # A plan that was made before the clone followed from what the release is known to have.
    spelled(plan.options, read_options(checkout.folder))
    needed = submodules_of(plan)
    if checkout.origin == "cache":
        fetch_submodules(checkout, needed, job.workspace, progress, log)
        checkout = examine(checkout.folder, "cache")
    require_complete(checkout, needed)
    return Libraries(checkout=checkout, notes=require_readable(checkout, exported_with))


def _is_built(job: Job, plan: RuntimePlan, checkout: Checkout | None) -> bool:
    """Whether the runner of the plan is in the cache, so that no tool is needed for it."""
    if checkout is None:
        return False
    key = runner_key(plan, Libraries(checkout=checkout), job.host)
    return job.workspace.entry("runners", key).is_sound()


def _derive(job: Job, program: Program | None, checkout: Checkout | None) -> RuntimePlan:
    available = Available(
        checkout.version if checkout else executorch_version(),
        shipped_components(job.target.portable or job.target.name),
        read_options(checkout.folder) if checkout else None,
        executorch_version(),
    )
    own = custom_ops_of(job)
    custom = CustomKernels(own.operators, own.digest) if own else None
    return derive_plan(job.loaded.recipe, program, job.target, job.host, available, custom)
