"""etdeploy compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from etdeploy.bench.records.stored import LAST, StoredRun, find_run
from etdeploy.cli.options import complete_device, complete_recipe, options
from etdeploy.compare.model import Comparison, Verdict
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import EtdeployError, Interrupted, UsageError
from etdeploy.graph.options import DEFAULT_OUTPUT
from etdeploy.recipe.find import bundled_recipes, packaged_recipe
from etdeploy.recipe.load import LoadedRecipe, Override, Overrides, load_each


@click.command()
@click.argument("a", shell_complete=complete_recipe)
@click.argument("b", required=False, shell_complete=complete_recipe)
@click.option(
    "-d",
    "--device",
    metavar="DEVICE",
    shell_complete=complete_device,
    help="The device to measure recipes on. By default host.",
)
@options("target")
@click.option(
    "--runs",
    type=click.IntRange(min=1, max=1000),
    metavar="N",
    help="Starts of each recipe. By default 10.",
)
@options("set")
@click.option("--set-a", multiple=True, metavar="KEY=VALUE", help="Override a key of A only.")
@click.option(
    "--set-b",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of B only. Without B, B is A with these overrides.",
)
@click.option(
    "--min-difference",
    type=click.FloatRange(min=0, max=1000),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Ignore smaller differences, however certain they are.",
)
@click.option(
    "--operators/--no-operators",
    default=True,
    help="Compare both profiles for the operators that changed most (the default), or do not.",
)
@options("output", "json", "quiet")
def compare(a: str, b: str | None, as_json: bool, **values: Any) -> None:
    """Find out which of A and B is faster, by how much, and how certain that is.

    A and B are two recipes. Their starts are interleaved on one device, A B B A and so on, so that
    drift affects both alike. With --set-b, one recipe is enough: B is A with other values.

    Or they are two runs that were measured before: their folders, records or IDs, or `last`.
    """
    from etdeploy.report.comparison import comparison_text
    from etdeploy.report.terminal import render

    comparison = compare_named(a, b, CompareOptions(**values))
    if as_json:
        console.result_json(comparison.model_dump(mode="json"))
    else:
        console.result("\n" + render(comparison_text(comparison), console.width()))


RUNS = 10
_DEVICE = "host"
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class CompareOptions:
    """The options of the command line; None where one is not given."""

    device: str | None
    target: str | None
    runs: int | None
    overrides: tuple[str, ...]
    set_a: tuple[str, ...]
    set_b: tuple[str, ...]
    output: Path
    min_difference: float
    operators: bool
    quiet: bool


def compare_named(a: str, b: str | None, options: CompareOptions) -> Comparison:
    """Measure two recipes or read two runs, and compare B with A."""
    from etdeploy.compare.runs import compare_runs

    runs = _measured(a, b, options) if _are_recipes(a, b, options) else _read(a, b, options)
    found = compare_runs(*runs, options.min_difference)
    return _with_operators(found, runs, options.quiet) if options.operators else found


def _are_recipes(a: str, b: str | None, options: CompareOptions) -> bool:
    """Return whether A and B are recipes, and not runs."""
    kinds = [_is_recipe(text) for text in (a, b) if text is not None]
    if kinds == [True, False] or kinds == [False, True]:
        raise _mixed_kinds(*((a, str(b)) if kinds[0] else (str(b), a)), options)
    if b is None and not (kinds[0] and (options.set_a or options.set_b)):
        raise UsageError(
            f"there is nothing to compare {a} with",
            remedy=f"Name a second {'recipe, or a change' if kinds[0] else 'run'}: "
            f"etdeploy compare {quoted(a)} "
            f"{'--set-b runtime.threads=1' if kinds[0] else 'RUN' if a == LAST else LAST}",
        )
    if not kinds[0]:
        _refuse(list(_recipe_options(options)))
    return kinds[0]


def _mixed_kinds(recipe: str, run: str, options: CompareOptions) -> UsageError:
    found = _run(run, options.output).record
    device, output = quoted(found.device.facts.name), options.output
    there = "" if output == DEFAULT_OUTPUT else f" --output {quoted(output)}"
    return UsageError(
        f"{recipe} is a recipe, and {run} is a run: name two recipes, or two runs",
        remedy="Measure the recipe: "
        f"etdeploy run --recipe {quoted(recipe)} --device {device}{there}\n"
        f"then compare the run with that: etdeploy compare {found.run_id} {LAST}{there}",
    )


def _is_recipe(text: str) -> bool:
    """Return whether a text names a recipe, and not a run."""
    if text.endswith(_SUFFIXES) or text in bundled_recipes():
        return True
    if text == LAST or text.endswith(".json"):
        return False
    try:
        return Path(text).is_file() or packaged_recipe(text) is not None
    except (OSError, ValueError):  # too long for a path, or with a null character
        return False


def _recipe_options(options: CompareOptions) -> Iterator[str]:
    """The options in use that apply to recipes only."""
    given = {
        "--device": options.device,
        "--target": options.target,
        "--runs": options.runs,
        "--set": options.overrides,
        "--set-a": options.set_a,
        "--set-b": options.set_b,
    }
    yield from (name for name, value in given.items() if value)


def _refuse(options: Sequence[str]) -> None:
    if options:
        raise UsageError(
            f"{', '.join(options)} can only be used with recipes: runs were measured before",
            remedy="Name two recipes, or leave out the option.",
        )


def _measured(a: str, b: str | None, options: CompareOptions) -> tuple[StoredRun, StoredRun]:
    from etdeploy.graph.invocation import RecipePair, measure_pair

    first = (f"benchmark.runs={RUNS}", *options.overrides)
    last = () if options.runs is None else (f"benchmark.runs={options.runs}",)
    of_a = [Override(text, "--set-a") for text in options.set_a]
    of_b = [Override(text, "--set-b") for text in options.set_b]
    recipes = _loaded((a, (*first, *of_a, *last)), (b or a, (*first, *of_b, *last)))
    device = options.device or _DEVICE
    pair = RecipePair(*recipes, device, options.output, options.target, options.quiet)
    return measure_pair(pair)


def _loaded(*named: tuple[str, Overrides]) -> tuple[LoadedRecipe, LoadedRecipe]:
    first, second = load_each(named)
    runs = [each.recipe.benchmark.runs for each in (first, second)]
    if runs[0] != runs[1]:
        raise UsageError(
            f"unpaired starts: A has {runs[0]}, B has {runs[1]}",
            remedy=f"Give both the same number: --runs {max(runs)}",
        )
    return first, second


def _read(a: str, b: str | None, options: CompareOptions) -> tuple[StoredRun, StoredRun]:
    return _run(a, options.output), _run(b or "", options.output)


def _run(text: str, output: Path) -> StoredRun:
    """Return a run from its folder, else from the history."""
    try:
        return find_run(text, output)
    except UsageError:
        from etdeploy.history.entry import find_recorded_run
        from etdeploy.history.location import resolve_location

        return find_recorded_run(text, output, resolve_location())


def _with_operators(
    comparison: Comparison, runs: tuple[StoredRun, StoredRun], quiet: bool
) -> Comparison:
    """Add the operators that changed most, or a remark why they are unknown."""
    from etdeploy.compare.model import operator_changes

    if comparison.verdict == Verdict.NOT_COMPARABLE:
        return comparison
    if not all(run.record.traces for run in runs):
        return comparison
    try:
        times = [
            _operator_times(run, f"profile {x}", quiet) for x, run in zip("AB", runs, strict=True)
        ]
    except Interrupted:
        raise
    except EtdeployError as error:
        remark = f"The operators were not compared: {error.message.rstrip('.')}."
        return comparison.model_copy(update={"remarks": (*comparison.remarks, remark)})
    return comparison.model_copy(update={"operators": operator_changes(*times)})


def _operator_times(run: StoredRun, task: str, quiet: bool) -> dict[tuple[str, str], float]:
    """Self time of each operator at each module, in milliseconds."""
    from etdeploy.cache.workspace import Workspace
    from etdeploy.profile.profiled import profile_of

    workspace = Workspace.opened()
    with workspace.in_use(), console.TaskDisplay(quiet=quiet) as display:
        profile = profile_of(run, workspace, lambda text, _=None: display.advance(task, text))
    times: dict[tuple[str, str], float] = {}
    for row in profile.operators:
        key = (row.name, row.module)
        times[key] = times.get(key, 0.0) + row.self_ms
    return times
