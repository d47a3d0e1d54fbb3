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
)


@click.command()
@recipe_options
@device_option
@output_option
@json_option
@quiet_option
def command(
    recipe: str, overrides: tuple[str, ...], device: str, output: Path, as_json: bool, quiet: bool
) -> None:
    """Measure on the device, even when nothing changed since the last time.

    Steps before the measurement run only where their inputs changed.
    """
    from etdeploy.cli.run import measure_and_show

    measure_and_show(recipe, overrides, device, output, True, as_json, quiet)
