"""What every verb that walks the line does around it: load, open, lock, run, show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from etdeploy.core import console
from etdeploy.graph.ahead import refuse_early
from etdeploy.graph.engine import run_steps
from etdeploy.graph.job import Job, open_job
from etdeploy.graph.line import make_line
from etdeploy.recipe.load import load_recipe

DEFAULT_OUTPUT = Path("etdeploy-out")


@contextmanager
def walk(
    recipe: str,
    overrides: Sequence[str],
    steps: tuple[str, ...],
    *,
    device: str | None = None,
    target: str | None = None,
    output: Path = DEFAULT_OUTPUT,
    measure_again: bool = False,
    quiet: bool = False,
) -> Iterator[Job]:
    """Runs the named steps and all before them, then gives the job, still holding its device.

    Raises:
        EtdeployError: Whatever the first step that failed raised.
    """
    loaded = load_recipe(recipe, overrides)
    with open_job(loaded, output, device, target, measure_again) as job:
        refuse_early(job, with_runner=steps != ("export",))
        with (
            console.TaskDisplay(quiet=quiet) as display,
            job.state_lock(lambda text, _fraction=None: display.advance("wait", text)),
        ):
            run_steps(make_line(job), steps, job.state, display)
        yield job
