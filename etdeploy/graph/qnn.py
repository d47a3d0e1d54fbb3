"""What a QNN program asks of the job: the phone's SoC, the SDK, and Qualcomm's libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from etdeploy.core.errors import CheckError, ExportError
from etdeploy.graph.job import Job
from etdeploy.program.folder import PROGRAM_FILE, load_provenance
from etdeploy.program.qnn import CompiledFor, compiled_for
from etdeploy.recipe.model import Recipe
from etdeploy.runtime.extras import Extras
from etdeploy.runtime.missing import Missing
from etdeploy.runtime.plan_model import Obstacle, RuntimePlan
from etdeploy.runtime.qnn import (
    compiled_version,
    program_obstacles,
    qnn_extras,
    sdk_obstacles,
    soc_obstacle,
)
from etdeploy.targets.android import soc_name, soc_of
from etdeploy.targets.missing import Missing as MissingTool
from etdeploy.targets.qnn_sdk import find_sdk

BACKEND_ID = "QnnBackend"


def wanted_soc(job: Job) -> str | None:
    """The SoC to compile for, by QNN's name: the recipe's, or with `auto` the device's.

    None while neither is known.
    """
    named = job.loaded.recipe.export.soc
    if named != "auto":
        return soc_name(named, None)
    return job.facts.soc if job.facts else None


def sdk_seen(recipe: Recipe) -> str | None:
    """The SDK whose libraries a bundle would have; None for a recipe that cannot need one."""
    if recipe.export.backend != "qnn" and not recipe.model.program:
        return None
    sdk = find_sdk(os.environ, Path.home())
    return None if isinstance(sdk, MissingTool) else f"{sdk.version} in {sdk.root}"


def require_soc(job: Job) -> None:
    """Passes a job whose device has the SoC that the recipe names.

    Raises:
        ExportError: It has another, or does not say which.
    """
    recipe = job.loaded.recipe
    if recipe.export.backend != "qnn" or recipe.model.program or job.facts is None:
        return
    obstacle = soc_obstacle(recipe.export.soc, job.place, job.facts.soc)
    if obstacle:
        raise ExportError(obstacle.why, remedy=obstacle.remedy)


def missing_sdk(job: Job, plan: RuntimePlan) -> Iterator[Missing]:
    """What the QNN SDK on this machine lacks for a plan with QNN."""
    if plan.option("EXECUTORCH_BUILD_QNN") != "ON":
        return
    sdk, soc = find_sdk(os.environ, Path.home()), wanted_soc(job)
    if isinstance(sdk, MissingTool):
        found = [Obstacle(what=sdk.what, why=sdk.why, remedy=sdk.remedy)]
    else:
        found = list(sdk_obstacles(sdk, soc)) if soc else []
    for obstacle in found:
        yield Missing(what=obstacle.what, why=obstacle.why, remedy=obstacle.remedy)


def extras_for(job: Job, program_folder: Path) -> Extras:
    """Qualcomm's libraries for the bundle of a program; none for one without QNN.

    Raises:
        CheckError: The program was compiled for another SoC than the device's.
        BuildError: The SDK is missing, too old, or older than the one that compiled the program.
    """
    compiled = compiled_for(program_folder / PROGRAM_FILE)
    if not compiled:
        return Extras()
    reported = job.facts.soc if job.facts else None
    for obstacle in program_obstacles(compiled, job.place, reported):
        raise CheckError(obstacle.why, remedy=obstacle.remedy)
    noted = load_provenance(program_folder).versions.get("qnn")
    return qnn_extras(
        find_sdk(os.environ, Path.home()),
        reported or _soc_of(compiled),
        compiled_version(compiled, noted),
    )


def _soc_of(compiled: tuple[CompiledFor, ...]) -> str:
    soc = soc_of(compiled[0].soc_id)
    return soc.name if soc else f"number {compiled[0].soc_id}"
