"""Gets ExecuTorch from the plan's provider: the wheel's libraries, or a checkout's sources."""

from __future__ import annotations

import os
from pathlib import Path

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.values import Progress
from etdeploy.graph.backends import missing_for_bundle
from etdeploy.graph.job import Job
from etdeploy.graph.resolve import Resolved
from etdeploy.plan.components import provided
from etdeploy.plan.model import Provider, RuntimePlan
from etdeploy.plan.relations import spelled_for
from etdeploy.provider.checkout import (
    Checkout,
    Libraries,
    examine,
    read_options,
    require_readable,
)
from etdeploy.provider.wheel import obtain_wheel, wheel_problem
from etdeploy.targets.platforms import find_target


def missing_for(resolved: Resolved) -> tuple[Blocker, ...]:
    """What the plan, and the program if it is known, need and this machine does not have."""
    from etdeploy.runner.missing import find_missing

    job, plan, sources = resolved.job, resolved.plan, resolved.sources
    build: tuple[Blocker, ...] = ()
    if job.app:
        build = _missing_for_app(job, plan)
        if plan.provider.value != Provider.SOURCE or not _builds_app(job):
            return (*build, *missing_for_bundle(job, plan, resolved.program))
    found = (sources.problem or sources.checkout) if sources else None
    return (
        *build,
        *find_missing(plan, job.host, found, job.app is not None),
        *missing_for_bundle(job, plan, resolved.program),
    )


def _missing_for_app(job: Job, plan: RuntimePlan) -> tuple[Blocker, ...]:
    if not _builds_app(job):
        return ()
    from etdeploy.apps.platform import platform_for

    return platform_for(job.target.system).missing(job.loaded.recipe, plan)


def _builds_app(job: Job) -> bool:
    return bool(job.app and job.app.builds and not job.app.given)


def obtain_libraries(
    resolved: Resolved, exported_with: str | None, progress: Progress, log: Path | None
) -> Libraries:
    """Gets ExecuTorch from the plan's provider."""
    job, plan = resolved.job, resolved.plan
    if plan.provider.value == Provider.SOURCE:
        return _sources(resolved, exported_with, progress, log)
    target = find_target(plan.build_target)
    wheel = obtain_wheel(target, job.host, job.workspace, progress, log)
    absent = sorted(provided(plan.component_names) - set(wheel.components))
    if absent:
        raise BuildError(
            f"the ExecuTorch {wheel.version} libraries in {wheel.root} do not include "
            f"{', '.join(absent)}",
            remedy="Build ExecuTorch from source: --set runtime.provider=source",
        )
    return Libraries(wheel=wheel)


def libraries_problem(libraries: Libraries, workspace: Workspace) -> str | None:
    """Why what was obtained can no longer be used; None if it can."""
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
    resolved: Resolved, exported_with: str | None, progress: Progress, log: Path | None
) -> Libraries:
    from etdeploy.provider.checkout import require_complete
    from etdeploy.provider.clone import clone, fetch_submodules
    from etdeploy.runner.missing import list_submodules, require_present

    job, plan = resolved.job, resolved.plan
    if resolved.sources:
        resolved.sources.require_usable()
    checkout = resolved.checkout
    if not _is_built(job, plan, checkout):
        # Before the export, nobody could check for what only this program needs.
        require_present(missing_for(resolved))
    if checkout is None:
        checkout = clone(job.workspace, plan.executorch_version, os.environ, progress, log)
    # Without a clone, the plan was derived from the options that this release is known to have.
    spelled_for(plan.options, read_options(checkout.folder))
    needed = list_submodules(plan)
    if checkout.origin == "cache":
        fetch_submodules(checkout, needed, job.workspace, progress, log)
        checkout = examine(checkout.folder, "cache")
    require_complete(checkout, needed)
    return Libraries(checkout=checkout, notes=require_readable(checkout, exported_with))


def _is_built(job: Job, plan: RuntimePlan, checkout: Checkout | None) -> bool:
    """Whether the cache has the plan's runner, so that no tool is needed."""
    from etdeploy.runner.builder import runner_key

    if checkout is None:
        return False
    key = runner_key(plan, Libraries(checkout=checkout), job.host)
    return job.workspace.entry(CacheKind.RUNNERS, key).is_sound()
