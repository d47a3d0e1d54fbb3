"""etdeploy run."""

from __future__ import annotations

import time
from pathlib import Path

import click

from etdeploy.cli.options import (
    JobOptions,
    as_option,
    devices_option,
    json_option,
    many_options,
    model_options,
    output_option,
    quiet_option,
    recipes_options,
    runs_option,
    target_option,
    with_runs,
)
from etdeploy.core import console
from etdeploy.core.layout import fit
from etdeploy.graph.job import AppWish, StepName


@click.command()
@recipes_options
@model_options
@devices_option
@target_option
@output_option
@as_option
@click.option("--again", is_flag=True, help="Measure again, even when nothing changed.")
@runs_option
@many_options
@json_option
@quiet_option
def command(
    recipes: tuple[str, ...],
    overrides: tuple[str, ...],
    devices: tuple[str, ...],
    target: str | None,
    output: Path,
    again: bool,
    runs: int | None,
    fail_fast: bool,
    heavy: int | None,
    as_json: bool,
    quiet: bool,
    app: AppWish | None,
) -> None:
    """Export, build, deploy and measure, then show the latencies.

    Steps whose inputs did not change are skipped, including the measurement: --again repeats it.

    With several recipes or devices, every recipe runs on every device: what they have in common is
    exported and built once, and a table shows them side by side.
    """
    overrides = with_runs(overrides, runs)
    named = JobOptions(
        recipes, overrides, devices, target, output, again, quiet, fail_fast, heavy, app
    )
    measure_named(named, as_json)


def measure_named(named: JobOptions, as_json: bool) -> None:
    """Measures what the command line names: one recipe on one device, or all on all."""
    if named.single:
        measure_and_show(named, as_json)
        return
    from etdeploy.cli.many.results import measure_all

    measure_all(named, as_json)


def measure_and_show(named: JobOptions, as_json: bool) -> None:
    """Runs all steps and prints the run record or its summary."""
    from etdeploy.bench.diagnosis import require_whole
    from etdeploy.bench.outputs.verdict import require_match
    from etdeploy.cli.invocation import invoke
    from etdeploy.devices.base import Capabilities
    from etdeploy.graph.job import load_last_run

    begun_s = time.time()
    with invoke(
        named.recipes[0],
        named.overrides,
        (StepName.BENCH,),
        device=named.devices[0],
        target=named.target,
        output=named.output,
        measure_again=named.measure_again,
        quiet=named.quiet,
        app=named.app,
    ) as job:
        run = load_last_run(job)
        capabilities = job.device.capabilities if job.device else None
    if as_json:
        from etdeploy.bench.notes import workload_notes

        console.result_json(run.printed())
        for note in workload_notes(run.record.workload):
            console.warn(note)
    else:
        from etdeploy.report.terminal.summary import summary

        console.result("\n" + fit(summary(run), console.width()))
    if not named.quiet and run.record_path.stat().st_mtime < begun_s:
        console.message(
            f"\nNothing has changed since this was measured on {run.record.started_at}: "
            "--again measures again."
        )
    require_match(run, capabilities or Capabilities())
    require_whole(run)
