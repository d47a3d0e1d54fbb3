"""Looks ahead: what would stop a run, and what to know before it starts."""

from __future__ import annotations

from etdeploy.core.errors import BuildError, CheckError
from etdeploy.export.methods import EXPORTED_METHODS, require_method
from etdeploy.export.needs import check_needs
from etdeploy.graph.job import Job
from etdeploy.graph.pipeline import make_line
from etdeploy.graph.provision import checkout_for, missing_for, plan_for
from etdeploy.graph.qnn import extras_for, other_soc, require_soc
from etdeploy.graph.state import current_folder, export_spec_of, known_program
from etdeploy.graph.steps import reasons_to_run
from etdeploy.plan.derive import require_feasible
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import load_provenance
from etdeploy.program.model import EMPTY_PROGRAM, Program
from etdeploy.provider.checkout import Checkout, require_readable
from etdeploy.runner.missing import Missing, require_present


def refuse_early(job: Job, *, with_runner: bool = True) -> None:
    """Stops a run that cannot end well before it exports anything.

    Args:
        job: What is to be run.
        with_runner: Whether it builds a runner, too.

    Raises:
        UsageError: The program will not have the method that the recipe runs.
        ExportError: The backend needs an SDK, or a package for exporting is missing.
        BuildError: No runner can be built for what the recipe asks, or something for it is missing.
        CheckError: The program was compiled for another SoC than the device's.
    """
    spec = export_spec_of(job)
    if with_runner and not spec.program:  # a finished program is asked when it is read
        wanted = job.loaded.recipe.benchmark.method
        require_method(wanted, EXPORTED_METHODS, str(job.loaded.path))
    require_soc(job)  # first: an SDK need not be fetched for a device that cannot use it
    if current_folder(job) is None:
        check_needs(spec)
    if not with_runner:
        return
    program = known_program(job)
    plan = plan_for(job, program)
    require_feasible(plan)
    for obstacle in other_soc(job, program):
        raise CheckError(obstacle.why, remedy=obstacle.remedy)
    checkout = checkout_for(job, plan)
    if isinstance(checkout, BuildError):
        raise checkout
    if _builds(job):
        require_present(certainly_missing(job, plan, program))
    if program:
        # What the bundle would be refused for after the build.
        folder = current_folder(job)
        extras_for(job, program, load_provenance(folder).versions if folder else {})


def _builds(job: Job) -> bool:
    """Whether the runner has to be made for what is asked now.

    That the program changes is no reason yet: the plan that follows from it may be the same.
    """
    steps = {step.name: step for step in make_line(job)}
    return any(reasons_to_run(steps[name]) for name in ("plan", "runtime", "runner"))


def certainly_missing(job: Job, plan: RuntimePlan, program: Program | None) -> tuple[Missing, ...]:
    """What this machine lacks for the plan, and for every other that the program may lead to.

    A program that is not exported yet may need less than its recipe lets expect, but never less
    than one that calls no operator and delegates nothing.
    """
    missing = missing_for(job, plan, program)
    if not plan.provisional:
        return missing
    expected = {m.what for m in missing}
    least = missing_for(job, plan_for(job, EMPTY_PROGRAM), EMPTY_PROGRAM)
    return tuple(m for m in least if m.what in expected)


def version_notes(job: Job, plan: RuntimePlan) -> tuple[str, ...]:
    """What to know of the checkout's release beside the one that made the program.

    Raises:
        BuildError: The checkout's runtime cannot read the program.
    """
    checkout = checkout_for(job, plan)
    folder = current_folder(job)
    if not isinstance(checkout, Checkout) or folder is None:
        return ()
    return require_readable(checkout, load_provenance(folder).versions.get("executorch"))
