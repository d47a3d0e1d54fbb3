"""etdeploy bench."""

from __future__ import annotations

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


@click.command()
@recipe_options
@device_option
@target_option
@output_option
@json_option
@quiet_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    output: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure on the device, even when nothing changed since the last time.

    Steps before the measurement run only if their inputs changed.
    """
    from etdeploy.cli.verbs.run import measure_and_show

    measure_and_show(recipe, overrides, device, target, output, True, as_json, quiet)
