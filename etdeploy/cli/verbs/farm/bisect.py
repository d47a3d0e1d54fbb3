"""etdeploy farm bisect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import complete_recipe, options, require_metric
from etdeploy.core import console
from etdeploy.core.errors import UsageError
from etdeploy.core.layout import fit

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.farm.verdicts.bisect import Bisection, BisectRequest, OpenCandidate
    from etdeploy.recipe.load import LoadedRecipe

RUNS = 10


@dataclass(frozen=True)
class BisectOptions:
    """The options of the command line; `programs` is None for commits."""

    recipe: str
    device: str
    metric: str | None
    good: str | None
    bad: str | None
    output: Path
    again: bool
    quiet: bool
    settings: tuple[str, ...]
    programs: tuple[str, ...] | None


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "-r",
    "--recipe",
    required=True,
    metavar="PATH",
    shell_complete=complete_recipe,
    help="The recipe's file; the commits are those of its git repository.",
)
@options("device")
@click.option("--good", metavar="REVISION", help="A commit that was fast.")
@click.option("--bad", metavar="REVISION", help="A later commit that is slow.")
@click.option(
    "--programs",
    is_flag=True,
    help="Bisect programs instead of commits: each FILE is a .pte file, or the digest of a program "
    "in the cache; the good one first, the bad one last.",
)
@click.option(
    "-m",
    "--metric",
    metavar="NAME",
    help="A metric of `etdeploy history`. By default the one that `etdeploy compare` uses.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=3, max=1000),
    default=RUNS,
    show_default=True,
    metavar="N",
    help="Starts of each of two candidates.",
)
@options("set")
@click.option("--again", is_flag=True, help="Discard the steps of a bisection that was stopped.")
@options("output", "json", "quiet")
def bisect(
    files: tuple[str, ...], programs: bool, runs: int, overrides: tuple[str, ...], as_json: bool,
    **values: Any,
) -> None:  # fmt: skip
    """Find the commit that made a recipe slower on a device.

    First, good and bad are measured, and have to differ. Each step then measures the candidate in
    the middle, interleaved with good. A commit that cannot be built or run is skipped. Commits are
    checked out into temporary folders; your work tree does not change. A bisection that was stopped
    resumes where it was.
    """
    from etdeploy.farm.verdicts.bisect import bisection_text

    chosen = BisectOptions(
        settings=(*overrides, f"benchmark.runs={runs}"),
        programs=_programs(files, programs, values["good"], values["bad"]),
        **values,
    )
    require_metric(chosen.metric)
    found = _bisect(chosen)
    if as_json:
        console.result_json(found.model_dump(mode="json"))
    else:
        width = console.width()
        console.result("\n" + fit(bisection_text(found, width), width))


def _programs(
    files: tuple[str, ...], programs: bool, good: str | None, bad: str | None
) -> tuple[str, ...] | None:
    """The programs; None for commits."""
    if programs:
        if good or bad:
            raise UsageError("--good and --bad are of commits: leave them out with --programs")
        return files
    if files:
        raise UsageError(f"unexpected argument {files[0]}", remedy="For programs: --programs")
    if not good or not bad:
        raise UsageError(
            "name the commits between which to look, or programs",
            remedy="--good REVISION --bad REVISION, or --programs GOOD.pte ... BAD.pte",
        )
    return None


def _bisect(options: BisectOptions) -> Bisection:
    from etdeploy.farm.verdicts.bisect import bisect as find_change
    from etdeploy.farm.verdicts.bisect import most_steps, save_step, saved_steps, state_file

    request, open_candidate = _request(options)
    file = state_file(options.output, request, options.recipe, options.settings)
    if options.again:
        file.unlink(missing_ok=True)
    known = saved_steps(file)

    def tell(text: str) -> None:
        if not options.quiet:
            console.message(f"bisect     {text}")

    tell(
        f"{console.count(len(request.candidates), 'candidate')}, "
        f"{console.count(most_steps(request.candidates), 'step')} at most"
    )
    if known:
        tell(f"resuming after {console.count(len(known), 'step')}; --again forgets them")
    found = find_change(
        replace(request, known=known),
        open_candidate,
        lambda a, b: _measure(a, b, options),
        tell,
        lambda step: save_step(file, request, step),
    )
    file.unlink(missing_ok=True)
    return found


def _request(options: BisectOptions) -> tuple[BisectRequest, OpenCandidate]:
    from functools import partial

    from etdeploy.cache.workspace import Workspace
    from etdeploy.farm.verdicts import candidates
    from etdeploy.farm.verdicts.bisect import BisectRequest
    from etdeploy.recipe.load import load_recipe

    open_candidate: OpenCandidate
    if options.programs is not None:
        found = candidates.find_programs(options.programs, Workspace.opened())
        open_candidate = partial(candidates.open_program, options.recipe, options.settings)
    else:
        path = load_recipe(options.recipe, options.settings).path
        repository = candidates.find_repository(path)
        found = candidates.list_commits(repository, str(options.good), str(options.bad))
        open_candidate = partial(repository.open_commit, options.settings)
    return BisectRequest(found, options.device, options.metric), open_candidate


def _measure(
    a: LoadedRecipe, b: LoadedRecipe, options: BisectOptions
) -> tuple[StoredRun, StoredRun]:
    from etdeploy.graph.invocation import RecipePair, measure_pair

    pair = RecipePair(a, b, options.device, options.output, quiet=options.quiet, in_history=False)
    return measure_pair(pair)
