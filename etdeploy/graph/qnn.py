"""What a QNN program asks of the job: the phone's SoC, the SDK, and Qualcomm's libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from etdeploy.core.errors import CheckError, ExportError
from etdeploy.deploy.extras import Extras
from etdeploy.deploy.qnn import qnn_extras, sdk_obstacles
from etdeploy.graph.job import Job
from etdeploy.plan.blockers import htp_obstacle
from etdeploy.plan.model import Obstacle, RuntimePlan
from etdeploy.plan.qnn import compiled_version, program_obstacles, soc_obstacle
from etdeploy.program.model import CompiledFor, Program
from etdeploy.recipe.model import Recipe
from etdeploy.runner.missing import Missing
from etdeploy.targets.android import soc_name
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
    """Passes a job whose device has an HTP, and the SoC that the recipe names.

    Raises:
        ExportError: It has none or another, or does not say which.
    """
    recipe = job.loaded.recipe
    if recipe.export.backend != "qnn" or recipe.model.program:
        return
    obstacle = htp_obstacle(job.target)
    if obstacle is None and job.facts:
        obstacle = soc_obstacle(recipe.export.soc, job.device_label, job.facts.soc)
    if obstacle:
        raise ExportError(obstacle.why, remedy=obstacle.remedy)


def missing_sdk(job: Job, plan: RuntimePlan, program: Program | None) -> Iterator[Missing]:
    """What the QNN SDK on this machine lacks for a plan with QNN, and for the program."""
    if plan.option("EXECUTORCH_BUILD_QNN") != "ON":
        return
    compiled = program.compiled_for if program else ()
    sdk, soc = find_sdk(os.environ, Path.home()), wanted_soc(job) or _soc_of(compiled)
    if isinstance(sdk, MissingTool):
        found = [Obstacle(what=sdk.what, why=sdk.why, remedy=sdk.remedy)]
    else:
        found = list(sdk_obstacles(sdk, soc, compiled_version(compiled, None))) if soc else []
    for obstacle in found:
        yield Missing(what=obstacle.what, why=obstacle.why, remedy=obstacle.remedy)


def other_soc(job: Job, program: Program | None) -> Iterator[Obstacle]:
    """What keeps a compiled program from running on the job's device."""
    reported = job.facts.soc if job.facts else None
    yield from program_obstacles(
        program.compiled_for if program else (), job.device_label, reported
    )


def extras_for(job: Job, program: Program, versions: Mapping[str, str]) -> Extras:
    """Qualcomm's libraries for the bundle of a program; none for one without QNN.

    Args:
        job: Where it is to run.
        program: What it holds.
        versions: Of what exported it, where that is known (`Provenance.versions`).

    Raises:
        CheckError: The program was compiled for another SoC than the device's.
        BuildError: The SDK is missing, too old, or older than the one that compiled the program.
    """
    compiled = program.compiled_for
    if not compiled:
        return Extras()
    for obstacle in other_soc(job, program):
        raise CheckError(obstacle.why, remedy=obstacle.remedy)
    reported = job.facts.soc if job.facts else None
    return qnn_extras(
        find_sdk(os.environ, Path.home()),
        reported or _soc_of(compiled) or "",
        compiled_version(compiled, versions.get("qnn")),
    )


def _soc_of(compiled: tuple[CompiledFor, ...]) -> str | None:
    if not compiled:
        return None
    return compiled[0].soc or f"number {compiled[0].soc_id}"
