"""etdeploy farm schema."""

from __future__ import annotations

import click

from etdeploy.core import console


@click.command()
def command() -> None:
    """Print the JSON Schema of farm.yaml, for completion in editors."""
    from etdeploy.farm.spec.written import schema

    console.result_json(schema())
