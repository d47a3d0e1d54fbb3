"""What a QNN program needs from the job: the phone's SoC, the SDK, and Qualcomm's libraries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from etdeploy.backends.payload import CompiledFor
from etdeploy.core.blocker import Blocker
from etdeploy.core.errors import CheckError, ExportError
from etdeploy.deploy.extras import Extras
from etdeploy.graph.job import Job
from etdeploy.plan.blockers import htp_blocker
from etdeploy.plan.model import RuntimePlan
from etdeploy.plan.qnn import compiled_version, program_blockers, soc_blocker
from etdeploy.program.model import Program
from etdeploy.recipe.model import Recipe
from etdeploy.targets.android import soc_name
from etdeploy.targets.qnn_sdk import find_sdk


def wanted_soc(job: Job) -> str | None:
    """The SoC to compile for, by QNN's name: the recipe's, or with `auto` the device's.

    None if neither is known.
    """
    named = job.loaded.recipe.export.soc
    if named != "auto":
        return soc_name(named, None)
    return job.facts.soc if job.facts else None


def sdk_seen(recipe: Recipe) -> str | None:
    """The SDK whose libraries a bundle would include; None for a recipe that cannot need one."""
    if recipe.export.backend != "qnn" and not recipe.model.program:
        return None
    sdk = find_sdk(os.environ, Path.home())
    return None if isinstance(sdk, Blocker) else f"{sdk.version} in {sdk.root}"


def require_soc(job: Job) -> None:
    """Raises unless the device has an HTP, and the SoC that the recipe names.

    Raises:
        ExportError: The device has no HTP or another SoC, or does not report its SoC.
    """
    recipe = job.loaded.recipe
    if recipe.export.backend != "qnn" or recipe.model.program:
        return
    blocker = htp_blocker(job.target)
    # What other systems cannot do with QNN is a matter of the plan.
    if blocker is None and job.facts and job.target.system == "android":
        blocker = soc_blocker(recipe.export.soc, job.device_label, job.facts.soc)
    if blocker:
        raise ExportError(blocker.why, remedy=blocker.remedy)


def missing_sdk(job: Job, plan: RuntimePlan, program: Program | None) -> Iterator[Blocker]:
    """What a plan with QNN, and the program, need and the QNN SDK here does not provide."""
    if plan.option("EXECUTORCH_BUILD_QNN") != "ON":
        return
    from etdeploy.deploy.qnn import sdk_blockers

    compiled = program.compiled_for if program else ()
    sdk, soc = find_sdk(os.environ, Path.home()), wanted_soc(job) or _soc_of(compiled)
    if isinstance(sdk, Blocker):
        yield sdk
    elif soc:
        yield from sdk_blockers(sdk, soc, compiled_version(compiled, None))


def other_soc(job: Job, program: Program | None) -> Iterator[Blocker]:
    """What prevents a compiled program from running on the job's device."""
    reported = job.facts.soc if job.facts else None
    yield from program_blockers(
        program.compiled_for if program else (),
        job.device_label,
        reported,
        finished=job.loaded.recipe.model.program is not None,
    )


def extras_for(job: Job, program: Program, versions: Mapping[str, str]) -> Extras:
    """Qualcomm's libraries for the bundle of a program; none for one without QNN.

    Args:
        job: Where the program will run.
        program: What the file contains.
        versions: Of what exported it, if known (`Provenance.versions`).

    Raises:
        CheckError: The program was compiled for a SoC other than the device's.
        BuildError: The SDK is missing, too old, or older than the one that compiled the program.
    """
    compiled = program.compiled_for
    if not compiled:
        return Extras()
    from etdeploy.deploy.qnn import qnn_extras

    for blocker in other_soc(job, program):
        raise CheckError(blocker.why, remedy=blocker.remedy)
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
