"""Looks ahead: what would stop a run, and what to know before it starts."""

from __future__ import annotations

from etdeploy.core.errors import BuildError
from etdeploy.export.needs import check_needs
from etdeploy.graph.job import Job
from etdeploy.graph.known import current_folder, export_spec_of, known_plan
from etdeploy.graph.provision import checkout_for
from etdeploy.graph.qnn import missing_sdk, require_soc
from etdeploy.graph.stages import stage_path
from etdeploy.program.folder import load_provenance
from etdeploy.runtime.checkout import Checkout, require_readable
from etdeploy.runtime.missing import Missing, find_missing, require_present
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
    if not stage_path(job, "export").is_file():
        check_needs(export_spec_of(job))
    require_soc(job)
    if not with_runner:
        return
    plan = known_plan(job)
    require_feasible(plan)
    checkout = checkout_for(job, plan)
    if isinstance(checkout, BuildError):
        raise checkout
    if not stage_path(job, "runner").is_file():
        require_present(missing_for(job, plan))


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


def missing_for(job: Job, plan: RuntimePlan) -> tuple[Missing, ...]:
    """What this machine lacks for a plan of the job."""
    return (
        *find_missing(plan, job.host, checkout_for(job, plan)),
        *missing_sdk(job, plan),
    )
