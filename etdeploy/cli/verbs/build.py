"""etdeploy build."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.options import (
    device_option,
    json_option,
    quiet_option,
    recipe_options,
    target_option,
)
from etdeploy.core import console
from etdeploy.graph.stage_values import StepName


@click.command()
@recipe_options
@device_option
@target_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy the runner and its libraries to this folder.",
)
@json_option
@quiet_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Build the runner for the program, and check that it has everything the program needs.

    With --target, no device is contacted.
    """
    from etdeploy.cli.invocation import deliver, invoke
    from etdeploy.graph.stage_values import load_runner

    with invoke(
        recipe,
        overrides,
        (StepName.CHECK,),
        device=None if target else device,
        target=target,
        quiet=quiet,
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
