"""What every verb that runs steps does before and after them: load, open, lock, clean up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from etdeploy.cache.folder import LIMIT_VARIABLE, limit_bytes
from etdeploy.cache.tidy import keep_below
from etdeploy.cache.workspace import NOTES, Workspace
from etdeploy.cli.options import DEFAULT_OUTPUT
from etdeploy.core import console
from etdeploy.core.cached import occasional_task
from etdeploy.core.files.delivery import Delivery
from etdeploy.graph.job import AppWish, Job, StepName, open_job
from etdeploy.graph.pipeline import make_steps
from etdeploy.graph.preflight import refuse_early
from etdeploy.graph.resolve import resolve
from etdeploy.graph.tasks.engine import run_steps
from etdeploy.program.template import Speech
from etdeploy.recipe.load import load_recipe

_WAIT = "wait"


@contextmanager
def invoke(
    recipe: str,
    overrides: Sequence[str],
    steps: tuple[str, ...],
    *,
    device: str | None = None,
    target: str | None = None,
    output: Path = DEFAULT_OUTPUT,
    measure_again: bool = False,
    quiet: bool = False,
    copy_to: Path | None = None,
    speech: Speech | None = None,
    measures: bool = True,
    app: AppWish | None = None,
) -> Iterator[Job]:
    """Runs the named steps and all before them, then yields the job, with the device still open."""
    loaded = load_recipe(recipe, overrides)
    with open_job(loaded, output, device, target, measure_again, app) as opened:
        job = replace(opened, speech=speech, measures=measures)
        if copy_to:
            _delivery(job, copy_to, steps).require_free()
        job.workspace.sweep(job.state)
        with console.TaskDisplay(quiet=quiet) as display, after_others([job], display):
            # Only now: what the other run left counts.
            resolved = resolve(job)
            refuse_early(
                resolved,
                with_runner=steps != (StepName.EXPORT,),
                measures=StepName.BENCH in steps,
            )
            run_steps(make_steps(resolved), steps, job.state, display)
        yield job
        keep_small(job.workspace, quiet)


@contextmanager
def after_others(jobs: Sequence[Job], display: console.TaskDisplay) -> Iterator[None]:
    """Waits for other runs of the same recipes on the same devices; shows that as a task.

    Every run takes the locks in the same order, so that two never wait for each other.
    """
    with ExitStack() as stack:
        with occasional_task(display, _WAIT, "the other run has ended") as tell:
            for job in sorted(jobs, key=lambda job: job.state):
                stack.enter_context(job.state_lock(tell))
        yield


def keep_small(workspace: Workspace, quiet: bool) -> None:
    """Makes room in a cache that has become too large; the run does not fail if it cannot."""
    limit = limit_bytes()
    if limit is None:
        return
    try:
        freed = keep_below(workspace, limit).freed_bytes
    except OSError as error:
        console.warn(f"the size of the cache cannot be reduced: {error}")
        return
    if freed and not quiet:
        console.message(
            f"\ncache: removed the least recently used {', '.join(freed)}, "
            f"{console.size(sum(freed.values()))}, to stay below {console.size(limit)} "
            f"({LIMIT_VARIABLE})"
        )


def deliver(job: Job, source: Path, copy_to: Path, step: str) -> Path:
    """Copies what a step made to a folder of the user, and returns that folder's path."""
    return _delivery(job, copy_to, (step,)).put(source, NOTES)


def _delivery(job: Job, folder: Path, steps: tuple[str, ...]) -> Delivery:
    path = job.loaded.path
    kept = {"recipe's folder": path.parent} if path else {}
    content = "program" if steps == (StepName.EXPORT,) else "runner"
    return Delivery(folder, content, kept, job.workspace.root)
