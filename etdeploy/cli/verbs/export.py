"""etdeploy export."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.options import json_option, quiet_option, recipe_options
from etdeploy.core import console
from etdeploy.graph.stage_values import StepName


@click.command()
@recipe_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy the program, its inputs and its expected outputs to this folder.",
)
@json_option
@quiet_option
def command(
    recipe: str, overrides: tuple[str, ...], output: Path | None, as_json: bool, quiet: bool
) -> None:
    """Turn the recipe's model into a program: .pte, inputs, expected outputs, ETRecord."""
    from etdeploy.cli.invocation import deliver, invoke
    from etdeploy.graph.stage_values import load_program
    from etdeploy.program.describe import describe

    with invoke(recipe, overrides, (StepName.EXPORT,), quiet=quiet, copy_to=output) as job:
        exported, program = load_program(job)
        folder = Path(exported.folder)
        if output:
            folder = deliver(job, folder, output, "export")
        if as_json:
            console.result_json({"folder": str(folder), "program": program.model_dump(mode="json")})
        else:
            console.result(describe(program, str(folder / "program.pte")))
