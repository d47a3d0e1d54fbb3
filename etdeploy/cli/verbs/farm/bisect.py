"""etdeploy farm bisect."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import (
    complete_device,
    complete_recipe,
    json_option,
    output_option,
    quiet_option,
)
from etdeploy.core import console
from etdeploy.core.errors import UsageError
from etdeploy.core.layout import fit

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.farm.verdicts.bisect import Asked, Bisection, Candidate, Opened
    from etdeploy.recipe.load import LoadedRecipe

RUNS = 10


@dataclass(frozen=True)
class _Options:
    recipe: str
    device: str
    good: str | None
    bad: str | None
    programs: tuple[str, ...] | None
    metric: str | None
    settings: tuple[str, ...]
    output: Path
    again: bool
    quiet: bool


@click.command("bisect")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "-r",
    "--recipe",
    required=True,
    metavar="PATH",
    shell_complete=complete_recipe,
    help="The recipe's file; of its repository are the commits.",
)
@click.option(
    "-d",
    "--device",
    default="host",
    show_default=True,
    metavar="DEVICE",
    shell_complete=complete_device,
    help="Where the number became worse.",
)
@click.option("--good", metavar="REVISION", help="A commit at which it was good.")
@click.option("--bad", metavar="REVISION", help="A later one at which it is bad.")
@click.option(
    "--programs",
    is_flag=True,
    help="Bisect the programs FILE... in place of commits: .pte files, or digests of programs in "
    "the cache; the good one first, the bad one last.",
)
@click.option(
    "-m",
    "--metric",
    metavar="NAME",
    help="Which number, as etdeploy history names them; by default what runs are compared by.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=3, max=1000),
    default=RUNS,
    show_default=True,
    metavar="N",
    help="How many starts of two candidates take turns.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of the recipe in every candidate. Repeatable.",
)
@click.option("--again", is_flag=True, help="Forget the steps of one that was stopped.")
@output_option
@json_option
@quiet_option
def command(
    files: tuple[str, ...],
    recipe: str,
    device: str,
    good: str | None,
    bad: str | None,
    programs: bool,
    metric: str | None,
    runs: int,
    overrides: tuple[str, ...],
    again: bool,
    output: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find the commit since which a recipe is slower on a device.

    Good and bad are measured in turns first, and have to differ. Then half of what is between them
    is, always in turns with good. A commit that cannot be built or run is skipped. Commits are
    checked out into temporary folders; the work tree stays as it is. One that was stopped goes on
    where it was.
    """
    from etdeploy.farm.verdicts.bisect import bisection_text

    _require_metric(metric)
    settings = (*overrides, f"benchmark.runs={runs}")
    chosen = _Options(
        recipe, device, good, bad, _programs(files, programs, good, bad), metric, settings, output,
        again, quiet,
    )  # fmt: skip
    found = _bisected(chosen)
    if as_json:
        console.result_json(found.model_dump(mode="json"))
    else:
        width = console.width()
        console.result("\n" + fit(bisection_text(found, width), width))


def _programs(
    files: tuple[str, ...], programs: bool, good: str | None, bad: str | None
) -> tuple[str, ...] | None:
    """The programs; None where commits are wanted."""
    if programs:
        if good or bad:
            raise UsageError("--good and --bad are of commits: leave them out with --programs")
        return files
    if files:
        raise UsageError(f"{files[0]} is named, and nothing says what it is", remedy="--programs")
    if not good or not bad:
        raise UsageError(
            "name the commits between which to look, or programs",
            remedy="--good REVISION --bad REVISION, or --programs GOOD.pte ... BAD.pte",
        )
    return None


def _require_metric(metric: str | None) -> None:
    from etdeploy.history.series import TITLES, base_of

    if metric is not None and base_of(metric) not in TITLES:
        raise UsageError(
            f"there is no metric {metric!r}",
            place="--metric",
            remedy=f"The metrics are {', '.join(TITLES)}.",
        )


def _bisected(options: _Options) -> Bisection:
    from etdeploy.farm.verdicts import bisect as run
    from etdeploy.farm.verdicts.bisect import bisect, most_steps

    asked, opened = _asked(options)
    file = run.state_file(options.output, asked, options.recipe, options.settings)
    if options.again:
        file.unlink(missing_ok=True)
    known = run.saved_steps(file)

    def tell(text: str) -> None:
        if not options.quiet:
            console.message(f"bisect     {text}")

    tell(
        f"{console.count(len(asked.candidates), 'candidate')}, "
        f"{console.count(most_steps(asked.candidates), 'step')} at most"
    )
    if known:
        tell(f"goes on with {console.count(len(known), 'step')} of before; --again forgets them")
    found = bisect(
        replace(asked, known=known),
        opened,
        lambda a, b: _measured(a, b, options),
        tell,
        lambda step: run.save_step(file, asked, step),
    )
    file.unlink(missing_ok=True)
    return found


def _asked(options: _Options) -> tuple[Asked, Opened]:
    """What is looked for, and how a candidate's recipe is had."""
    from etdeploy.farm.verdicts import candidates as commits
    from etdeploy.farm.verdicts.bisect import Asked
    from etdeploy.recipe.load import load_recipe

    if options.programs is not None:
        from etdeploy.cache.workspace import Workspace

        found = commits.programs_named(options.programs, Workspace.opened())

        def of_program(candidate: Candidate) -> AbstractContextManager[LoadedRecipe]:
            return commits.opened(options.recipe, candidate, options.settings)

        return Asked(found, options.device, options.metric), of_program
    repository = commits.repository_of(load_recipe(options.recipe, options.settings).path)
    listed = commits.commits_between(repository, str(options.good), str(options.bad))

    def of_commit(candidate: Candidate) -> AbstractContextManager[LoadedRecipe]:
        return repository.opened(candidate, options.settings)

    return Asked(listed, options.device, options.metric), of_commit


def _measured(a: LoadedRecipe, b: LoadedRecipe, options: _Options) -> tuple[StoredRun, StoredRun]:
    from etdeploy.cli.invocation import Turns, measure_turns

    turns = Turns(a, b, options.device, options.output, quiet=options.quiet, in_history=False)
    return measure_turns(turns)
