"""etdeploy bench."""

from __future__ import annotations

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
from etdeploy.graph.job import AppOptions


@click.command()
@recipes_options
@model_options
@devices_option
@target_option
@output_option
@as_option
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
    runs: int | None,
    fail_fast: bool,
    heavy: int | None,
    as_json: bool,
    quiet: bool,
    app: AppOptions | None,
) -> None:
    """Measure on the device, even when nothing changed since the last time.

    Steps before the measurement run only if their inputs changed. Several recipes and devices are
    measured as `etdeploy run` does it.
    """
    from etdeploy.cli.verbs.run import measure_named

    overrides = with_runs(overrides, runs)
    named = JobOptions(
        recipes, overrides, devices, target, output, True, quiet, fail_fast, heavy, app
    )
    measure_named(named, as_json)
