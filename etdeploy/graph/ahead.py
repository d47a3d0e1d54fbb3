"""Looks ahead: what would stop a run, and what to know before it starts."""

from __future__ import annotations

from etdeploy.core.errors import BuildError
from etdeploy.export.needs import check_needs
from etdeploy.graph.job import Job
from etdeploy.graph.known import current_folder, export_spec_of, known_plan
from etdeploy.graph.line import make_line
from etdeploy.graph.provision import checkout_for, missing_for, plan_for
from etdeploy.graph.qnn import require_soc
from etdeploy.graph.steps import reasons_to_run
from etdeploy.program.folder import load_provenance
from etdeploy.program.model import EMPTY_PROGRAM
from etdeploy.runtime.checkout import Checkout, require_readable
from etdeploy.runtime.missing import Missing, require_present
from etdeploy.runtime.plan import require_feasible
from etdeploy.runtime.plan_model import RuntimePlan


def refuse_early(job: Job, *, with_runner: bool = True) -> None:
    """Stops a run that cannot end well before it exports anything.

    Args:
        job: What is to be run.
        with_runner: Whether it builds a runner, too.

    Raises:
        ExportError: The backend needs an SDK, or a package for exporting is missing.
        BuildError: No runner can be built for what the recipe asks, or something for it is missing.
    """
    if current_folder(job) is None:
        check_needs(export_spec_of(job))
    require_soc(job)
    if not with_runner:
        return
    plan = known_plan(job)
    require_feasible(plan)
    checkout = checkout_for(job, plan)
    if isinstance(checkout, BuildError):
        raise checkout
    if _builds(job):
        require_present(certainly_missing(job, plan))


def _builds(job: Job) -> bool:
    """Whether the runner has to be made for what is asked now.

    That the program changes is no reason yet: the plan that follows from it may be the same.
    """
    steps = {step.name: step for step in make_line(job)}
    return any(reasons_to_run(steps[name]) for name in ("plan", "runtime", "runner"))


def certainly_missing(job: Job, plan: RuntimePlan) -> tuple[Missing, ...]:
    """What this machine lacks for the plan, and for every other that the program may lead to.

    A program that is not exported yet may need less than its recipe lets expect, but never less
    than one that calls no operator and delegates nothing.
    """
    missing = missing_for(job, plan)
    if not plan.provisional:
        return missing
    expected = {m.what for m in missing}
    return tuple(m for m in missing_for(job, plan_for(job, EMPTY_PROGRAM)) if m.what in expected)


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
