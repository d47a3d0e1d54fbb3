"""etdeploy export."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.named import Named
from etdeploy.cli.options import (
    json_option,
    many_options,
    model_option,
    quiet_option,
    recipes_options,
)
from etdeploy.core import console
from etdeploy.graph.stage_values import StepName


@click.command()
@recipes_options
@model_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Copy the program, its inputs and its expected outputs to this folder.",
)
@many_options
@json_option
@quiet_option
def command(
    recipes: tuple[str, ...],
    overrides: tuple[str, ...],
    output: Path | None,
    fail_fast: bool,
    heavy: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Turn the recipe's model into a program: .pte, inputs, expected outputs, ETRecord.

    Several recipes are exported side by side; --output is for one.
    """
    named = Named(recipes, overrides, quiet=quiet, fail_fast=fail_fast, heavy=heavy)
    if named.single:
        _export_one(named, output, as_json)
        return
    from etdeploy.cli.many_results import export_all, require_no_output

    require_no_output(output, "export")
    export_all(named, as_json)


def _export_one(named: Named, output: Path | None, as_json: bool) -> None:
    from etdeploy.cli.invocation import deliver, invoke
    from etdeploy.core.text.layout import fit
    from etdeploy.graph.stage_values import load_program
    from etdeploy.program.describe import describe
    from etdeploy.program.folder import load_provenance
    from etdeploy.program.quality import quality_lines

    recipe, overrides, quiet = named.recipes[0], named.overrides, named.quiet
    with invoke(recipe, overrides, (StepName.EXPORT,), quiet=quiet, copy_to=output) as job:
        exported, program = load_program(job)
        folder = Path(exported.folder)
        if output:
            folder = deliver(job, folder, output, "export")
        made = load_provenance(folder)
        evaluation = made.generation.evaluation if made.generation else None
        if as_json:
            told = {"program": program.model_dump(mode="json"), "notes": made.notes}
            if evaluation:
                told["evaluation"] = evaluation.model_dump(mode="json")
            console.result_json({"folder": str(folder), **told})
        else:
            text = describe(program, str(folder / "program.pte"))
            quality = quality_lines(evaluation) if evaluation else ()
            labelled = [("quality", line) for line in quality] + [("note", n) for n in made.notes]
            # As wide as a terminal: what cannot be delegated may take a paragraph.
            lines = (fit(f"  {name:<10} {line}", console.width() or 100) for name, line in labelled)
            console.result("\n".join([text, *([""] if labelled else []), *lines]))
