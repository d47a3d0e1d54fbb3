"""etdeploy compare."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.options import (
    complete_device,
    complete_recipe,
    json_option,
    output_option,
    quiet_option,
    target_option,
)
from etdeploy.core import console
from etdeploy.core.layout import fit


@click.command()
@click.argument("a", shell_complete=complete_recipe)
@click.argument("b", required=False, shell_complete=complete_recipe)
@click.option(
    "-d",
    "--device",
    metavar="DEVICE",
    shell_complete=complete_device,
    help="Where two recipes are measured; host by default.",
)
@target_option
@click.option(
    "--runs",
    type=click.IntRange(min=1, max=1000),
    metavar="N",
    help="How many starts of each recipe take turns; 10 by default.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of both recipes. Repeatable.",
)
@click.option("--set-a", multiple=True, metavar="KEY=VALUE", help="The same for A alone.")
@click.option(
    "--set-b",
    multiple=True,
    metavar="KEY=VALUE",
    help="The same for B alone; without B, for A's recipe as B.",
)
@click.option(
    "--min-difference",
    type=click.FloatRange(min=0, max=1000),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Smaller differences are not called one, however sure they are.",
)
@click.option(
    "--operators/--no-operators",
    default=True,
    help="Read both profiles for the operators that changed most (the default), or leave them out.",
)
@output_option
@json_option
@quiet_option
def command(
    a: str,
    b: str | None,
    device: str | None,
    target: str | None,
    runs: int | None,
    overrides: tuple[str, ...],
    set_a: tuple[str, ...],
    set_b: tuple[str, ...],
    min_difference: float,
    operators: bool,
    output: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Tell which of A and B is faster, by how much, and how sure that is.

    A and B are two recipes. They run in turns on one device, A B B A and so on, so that what
    changes meanwhile changes both alike. With --set-b, one recipe is enough: B is A with other
    values.

    Or they are two runs that were measured before: their folders, records or ids, or `last`.
    """
    from etdeploy.cli.many.compared import Options, compared
    from etdeploy.report.terminal.comparison import comparison_text

    chosen = Options(
        device, target, runs, overrides, set_a, set_b, output, min_difference, operators, quiet
    )
    comparison = compared(a, b, chosen)
    if as_json:
        console.result_json(comparison.model_dump(mode="json"))
    else:
        console.result("\n" + fit(comparison_text(comparison), console.width()))
