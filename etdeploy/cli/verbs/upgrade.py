"""etdeploy upgrade-check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.graph.options import job_options

if TYPE_CHECKING:
    from etdeploy.graph.upgrade import UpgradeReport

_SHOWN_AS_SIZE = "[bytes]"


@click.command("upgrade-check")
@click.option(
    "--executorch",
    nargs=2,
    required=True,
    metavar="A B",
    help="Two releases of ExecuTorch: the one in use, and the other.",
)
@click.option(
    "--torch",
    nargs=2,
    metavar="A B",
    help="The PyTorch of each. Not needed for releases of the tested minor version.",
)
@options("recipe", "set", "model", "context", "device", "runs", "output", "json", "quiet")
def upgrade_check(
    executorch: tuple[str, str],
    torch: tuple[str, str] | None,
    as_json: bool,
    quiet: bool,
    output: Path,
    **values: Any,
) -> None:
    """Find out what another release of ExecuTorch changes for a recipe.

    Each release gets a separate environment, made by uv and kept in the cache. The recipe is
    exported, built and measured with both in turns, A B B A. The report has sizes, times, errors of
    the outputs, and the derived options that differ.
    """
    from etdeploy.cache.workspace import Workspace
    from etdeploy.graph.upgrade import (
        measure_both,
        named_releases,
        obtain_environment,
        upgrade_report,
    )
    from etdeploy.recipe.load import load_recipe

    releases = named_releases(executorch, torch or ())
    named = job_options(**values)
    [recipe] = named.recipes
    load_recipe(recipe, named.overrides)  # reports mistakes before an environment is made
    workspace = Workspace.opened()
    log = workspace.state("upgrade-check") / "upgrade-check.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with workspace.in_use(), console.TaskDisplay(quiet=quiet) as display:
        with console.lazy_task(display, "environments", "installed") as progress:
            pythons = {
                each: obtain_environment(each, workspace, progress, log) for each in releases
            }
        with console.lazy_task(display, "runs", "measured") as progress:
            arguments = tuple(_arguments(**{**values, "recipe": recipe}))
            rounds = measure_both(pythons, arguments, output.resolve(), progress, log)
    report = upgrade_report(releases, rounds)
    if as_json:
        console.result_json(report.model_dump(mode="json"))
    else:
        console.result("\n" + _text(report))


def _arguments(
    recipe: str,
    *,
    overrides: tuple[str, ...],
    model: str | None,
    context: int | None,
    device: str,
    runs: int | None,
    **_: Any,
) -> Iterator[str]:
    """The same options again, for the runs."""
    yield from ("--recipe", recipe, "--device", device)
    for each in overrides:
        yield from ("--set", each)
    for option, value in (("--model", model), ("--context", context), ("--runs", runs)):
        if value is not None:
            yield from (option, str(value))


def _text(report: UpgradeReport) -> str:
    titles = ("part", "what", f"ExecuTorch {report.before}", report.after)
    rows = [
        (each.part, each.name, _shown(each.name, each.before), _shown(each.name, each.after))
        for each in report.changes
    ]
    ratios = ", ".join(f"{each:.3f}" if each else "-" for each in report.ratios)
    why = "; ".join(dict.fromkeys(report.reasons))
    return "\n\n".join(
        [
            f"{report.recipe} on {report.device}: ExecuTorch {report.after} against "
            f"{report.before}: {report.verdict} (ratio of each round: {ratios})\n  {why}",
            console.table(titles, rows, right=titles[2:], width=console.width()),
            "records: " + "\n         ".join(report.records),
        ]
    )


def _shown(name: str, value: str | int | float | None) -> str:
    if value is None:
        return "-"
    if name.endswith(_SHOWN_AS_SIZE):
        return console.size(int(value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
