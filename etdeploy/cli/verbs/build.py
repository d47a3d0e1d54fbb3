"""etdeploy build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import (
    JobOptions,
    devices_option,
    json_option,
    many_options,
    model_options,
    quiet_option,
    recipes_options,
    target_option,
)
from etdeploy.core import console
from etdeploy.graph.job import StepName

if TYPE_CHECKING:
    from etdeploy.runner.model import BuiltRunner


@click.command()
@recipes_options
@model_options
@devices_option
@target_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy the runner and its libraries to this folder.",
)
@many_options
@json_option
@quiet_option
def command(
    recipes: tuple[str, ...],
    overrides: tuple[str, ...],
    devices: tuple[str, ...],
    target: str | None,
    output: Path | None,
    fail_fast: bool,
    heavy: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build the runner for the program, and check that it has everything the program needs.

    With --target, no device is contacted. Several recipes and devices are one graph, and recipes
    with the same needs share a runner; --output is for one.
    """
    named = JobOptions(
        recipes, overrides, (None,) if target else devices, target, quiet=quiet,
        fail_fast=fail_fast, heavy=heavy,
    )  # fmt: skip
    from etdeploy.cli.invocation import (
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
