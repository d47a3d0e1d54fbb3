"""What dodo.py needs: the pipeline of the recipe and device that doit's command line names."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.core import console
from etdeploy.graph.jobs import open_job
from etdeploy.graph.pipeline import make_steps
from etdeploy.graph.resolve import resolve
from etdeploy.graph.tasks.engine import doit_variable, plain_doit_tasks
from etdeploy.recipe.load import load_recipe


def open_pipeline() -> tuple[Iterator[dict[str, Any]], dict[str, Any]]:
    """The tasks and the doit configuration for `recipe=`, `device=`, `target=` and `output=`."""
    target = doit_variable("target")
    device = None if target else doit_variable("device", "host")
    loaded = load_recipe(doit_variable("recipe") or DEFAULT_RECIPE)
    output = Path(doit_variable("output") or "etdeploy-out")
    context = ExitStack()
    # doit reads this file once and runs the tasks afterwards: the device stays open until doit
    # ends, and no other run of the recipe starts before that.
    atexit.register(context.close)
    job = context.enter_context(open_job(loaded, output, device, target))
    context.enter_context(job.state_lock(lambda text, _fraction=None: console.message(text)))
    return plain_doit_tasks(make_steps(resolve(job)), job.state)


def write_reference() -> None:
    """Write docs/recipes.md, docs/records.md and the tables of docs/troubleshooting.md."""
    from etdeploy.bench import reference as records
    from etdeploy.core import diagnostics
    from etdeploy.core.files.basic import write_if_changed
    from etdeploy.recipe import reference as recipes

    write_if_changed(Path("docs/recipes.md"), recipes.reference())
    write_if_changed(Path("docs/records.md"), records.reference())
    troubleshooting = Path("docs/troubleshooting.md")
    page = diagnostics.update_page(troubleshooting.read_text(), diagnostics.find_tables())
    write_if_changed(troubleshooting, page)
