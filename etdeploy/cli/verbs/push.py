"""etdeploy push."""

from __future__ import annotations

import click

from etdeploy.cli.options import (
    JobOptions,
    device_option,
    json_option,
    quiet_option,
    recipe_options,
    target_option,
)
from etdeploy.core import console
from etdeploy.graph.job import StepName


@click.command()
@recipe_options
@device_option
@target_option
@json_option
@quiet_option
def command(
    recipe: str,
    overrides: tuple[str, ...],
    device: str,
    target: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Copy the runner and the program to the device; what is already there is not sent again."""
    from etdeploy.cli.invocation import run_recipe
    from etdeploy.graph.job import load_bundle

    named = JobOptions((recipe,), overrides, (device,), target, quiet=quiet)
    with run_recipe(named, StepName.PUSH) as job:
        bundle = load_bundle(job)
        if as_json:
            console.result_json({"device": job.device_label, **bundle.model_dump(mode="json")})
            return
        rows = [(f.path, console.size(f.size_bytes), f.sha256[:12]) for f in bundle.files]
        console.result(f"on {job.device_label}:\n")
        console.result(
            console.table(("file", "size", "sha256"), rows, right=("size",), width=console.width())
        )
