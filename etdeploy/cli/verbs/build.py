"""etdeploy build."""

from __future__ import annotations

from pathlib import Path

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
    if named.single:
        _build_one(named, output, as_json)
        return
    from etdeploy.cli.many.results import build_all, require_no_output

    require_no_output(output, "build")
    build_all(named, as_json)


def _build_one(named: JobOptions, output: Path | None, as_json: bool) -> None:
    from etdeploy.cli.invocation import deliver, invoke
    from etdeploy.graph.job import load_runner

    with invoke(
        named.recipes[0],
        named.overrides,
        (StepName.CHECK,),
        device=named.devices[0],
        target=named.target,
        quiet=named.quiet,
        copy_to=output,
    ) as job:
        runner = load_runner(job)
        folder = Path(runner.path)
        if output:
            folder = deliver(job, folder, output, "check")
        if as_json:
            console.result_json({**runner.model_dump(mode="json"), "path": str(folder)})
            return
        console.result(
            f"runner     {folder / runner.executable}\n"
            f"target     {runner.target}\n"
            f"libraries  {', '.join(runner.libraries) or 'none'}\n"
            f"backends   {', '.join(runner.backends) or 'none'}\n"
            f"operators  {len(runner.operators)}"
        )
