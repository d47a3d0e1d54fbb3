"""etdeploy build and etdeploy push."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.graph.job import StepName
from etdeploy.graph.options import job_options

if TYPE_CHECKING:
    from etdeploy.runner.model import BuiltRunner


@click.command()
@options("recipes", "set", "model", "text", "image", "audio", "context", "devices", "target")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy the runner and its libraries to this folder.",
)
@options("jobs", "fail-fast", "json", "quiet")
def build(output: Path | None, as_json: bool, **values: Any) -> None:
    """Build the runner for the program, and check that it has everything the program needs.

    With --target, no device is contacted. Recipes with the same needs share a runner; --output is
    for one recipe and one device.
    """
    named = job_options(needs_device=False, **values)
    from etdeploy.graph.invocation import (
        deliver,
        failure_in_short,
        job_json,
        print_json,
        raise_failures,
        results,
        run_recipes,
    )
    from etdeploy.graph.job import Job, load_runner

    def load(job: Job) -> BuiltRunner:
        runner = load_runner(job)
        if output is None:
            return runner
        folder = deliver(job, Path(runner.path), output, StepName.CHECK)
        return runner.model_copy(update={"path": str(folder)})

    with run_recipes(named, StepName.CHECK, output) as ends:
        found = results(ends, load)
    if as_json:
        print_json(
            named,
            found,
            lambda end, runner: {
                **({} if named.single else job_json(end.member)),
                **runner.model_dump(mode="json"),
            },
        )
    elif named.single:
        console.result("\n".join(_as_text(runner) for _, runner in found if runner))
    else:
        rows = [
            (
                *end.member.pair,
                runner.target if runner else None,
                str(_program(runner)) if runner else failure_in_short(end),
            )
            for end, runner in found
        ]
        columns = ("recipe", "device", "target", "runner")
        console.result("\n" + console.table(columns, rows, width=console.width()))
    raise_failures(ends)


def _program(runner: BuiltRunner) -> Path:
    return Path(runner.path) / runner.executable


def _as_text(runner: BuiltRunner) -> str:
    return (
        f"runner     {_program(runner)}\n"
        f"target     {runner.target}\n"
        f"libraries  {', '.join(runner.libraries) or 'none'}\n"
        f"backends   {', '.join(runner.backends) or 'none'}\n"
        f"operators  {len(runner.operators)}"
    )


@click.command()
@options("recipe", "set", "device", "target", "json", "quiet")
def push(as_json: bool, **values: Any) -> None:
    """Copy the runner and the program to the device, unless they are already there."""
    from etdeploy.graph.invocation import run_recipe
    from etdeploy.graph.job import load_bundle

    with run_recipe(job_options(**values), StepName.PUSH) as job:
        bundle = load_bundle(job)
        if as_json:
            console.result_json({"device": job.device_label, **bundle.model_dump(mode="json")})
            return
        rows = [(f.path, console.size(f.size_bytes), f.sha256[:12]) for f in bundle.files]
        console.result(f"on {job.device_label}:\n")
        console.result(
            console.table(("file", "size", "sha256"), rows, right=("size",), width=console.width())
        )
