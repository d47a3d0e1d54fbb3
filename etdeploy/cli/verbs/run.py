"""etdeploy run."""

from __future__ import annotations

import time
from pathlib import Path

import click

from etdeploy.cli.options import (
    device_option,
    json_option,
    output_option,
    quiet_option,
    recipe_options,
    target_option,
)
from etdeploy.core import console
from etdeploy.core.text.layout import fit
from etdeploy.graph.stage_values import StepName


@click.command()
@recipe_options
@device_option
@target_option
@output_option
@click.option("--again", is_flag=True, help="Measure again, even when nothing changed.")
@json_option
@quiet_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    output: Path,
    again: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Export, build, deploy and measure, then show the latencies.

    Steps whose inputs did not change are skipped, including the measurement: --again repeats it.
    """
    measure_and_show(recipe, overrides, device, target, output, again, as_json, quiet)


def measure_and_show(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    output: Path,
    again: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Runs all steps and prints the run record or its summary.

    Raises:
        MismatchError: The outputs differ; raised after the record is printed.
    """
    from etdeploy.bench.outputs.verdict import require_match
    from etdeploy.cli.invocation import invoke
    from etdeploy.graph.stage_values import load_last_run

    begun_s = time.time()
    with invoke(
        recipe,
        overrides,
        (StepName.BENCH,),
        device=device,
        target=target,
        output=output,
        measure_again=again,
        quiet=quiet,
    ) as job:
        run = load_last_run(job)
    if as_json:
        from etdeploy.bench.notes import output_notes

        console.result_json(run.printed())
        for note in output_notes(run.record.workload.outputs):
            console.warn(note)
    else:
        from etdeploy.report.summary import summary

        console.result("\n" + fit(summary(run), console.width()))
    if not quiet and run.record_path.stat().st_mtime < begun_s:
        console.message(
            f"\nNothing has changed since this was measured on {run.record.started_at}: "
            "--again measures again."
        )
    require_match(run)
