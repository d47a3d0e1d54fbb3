"""etdeploy inspect."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.options import json_option
from etdeploy.core import console
from etdeploy.core.layout import fit


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="MODEL.pte")
@json_option
def command(file: Path, as_json: bool) -> None:
    """Show a program's methods, operators, delegates and sizes (without torch)."""
    from etdeploy.program.inspect import describe, inspect_file

    program = inspect_file(file)
    if as_json:
        console.result_json(program.model_dump(mode="json"))
    else:
        console.result(fit(describe(program, str(file)), console.width()))
