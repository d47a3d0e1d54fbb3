"""etdeploy run and etdeploy bench."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import MismatchError, RunError
from etdeploy.core.layout import fit
from etdeploy.graph.job import StepName
from etdeploy.graph.options import JobOptions, job_options

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.graph.run import JobEnd


_JOBS = (
    "recipes", "set", "model", "text", "image", "audio", "lora", "context", "devices", "target",
    "output", "as", "app",
)  # fmt: skip
_HOW = ("runs", "jobs", "fail-fast", "json", "quiet")


@click.command()
@options(*_JOBS)
@click.option("--again", is_flag=True, help="Measure again, even if nothing changed.")
@options(*_HOW)
def run(again: bool, as_json: bool, **named: Any) -> None:
    """Export, build, deploy and measure, then show the latencies.

    Steps whose inputs did not change are skipped, including the measurement: --again repeats it.

    With several recipes or devices, every recipe runs on every device. What they share is exported
    and built once, and a table shows them side by side.
    """
    measure(job_options(measure_again=again, **named), as_json)


@click.command()
@options(*_JOBS, *_HOW)
def bench(as_json: bool, **named: Any) -> None:
    """Measure on the device, even if nothing changed since the last time.

    The same as `etdeploy run --again`: the steps before the measurement run only if their inputs
    changed.
    """
    measure(job_options(measure_again=True, **named), as_json)


def measure(named: JobOptions, as_json: bool) -> None:
    """Measure every recipe on every device; show a summary of one run, or a table of several."""
    from etdeploy.bench.verdict import require_match, require_whole
    from etdeploy.devices.base import Capabilities
    from etdeploy.graph.invocation import print_json, raise_failures, results, run_recipes
    from etdeploy.graph.on_device import load_last_run

    started_s = time.time()
    with run_recipes(named, StepName.BENCH) as ends:
        pairs = results(ends, load_last_run)
    runs = [run for _, run in pairs if run]
    if as_json:
        print_json(named, pairs, lambda _, run: run.printed())
    elif not named.single:
        _print_table(pairs)
    else:
        from etdeploy.report.run import summary
        from etdeploy.report.terminal import render

        console.result("\n" + render(summary(runs[0]), console.width()))
    if as_json and named.single:
        from etdeploy.bench.notes import workload_notes

        for note in workload_notes(runs[0].record.workload):
            console.warn(note)
    if not named.quiet:
        _report_unchanged(runs, started_s, named.single)
    checked = []
    for end, run in pairs:
        device = end.member.job.device if end.member.job else None
        try:
            if run:
                require_match(run, device.capabilities if device else Capabilities())
                require_whole(run)
        except (MismatchError, RunError) as error:
            if isinstance(error, MismatchError) and run:
                error.remedy = "\n".join(
                    filter(None, (_diff_remedy(named, end, run), error.remedy))
                )
            end = replace(end, error=error)
        checked.append(end)
    raise_failures(checked)


def _diff_remedy(named: JobOptions, end: JobEnd, run: StoredRun) -> str | None:
    """The command that locates the first wrong node of this run; None where it cannot."""
    from etdeploy.bench.records.generation import TextGeneration

    record = run.record
    text = record.workload if isinstance(record.workload, TextGeneration) else None
    if text and (text.encoder or end.member.loaded.recipe.has_other_exporter):
        return None
    if named.app or record.program.backend is None:
        return None
    recipe = named.recipes[0] if named.single else str(end.member.loaded.path)
    texts = [each if isinstance(each, str) else each.text for each in named.overrides]
    chosen = [[text] if text.startswith("--") else ["--set", text] for text in texts]
    words = ["--recipe", recipe, "--device", end.member.pair.device, *chain(*chosen)]
    words += ["--target", named.target] if named.target else []
    return f"Locate the first wrong node: etdeploy diff {' '.join(map(quoted, words))}"


def _print_table(pairs: Sequence[tuple[JobEnd, StoredRun | None]]) -> None:
    """Print a row for each job, and the paths of the records."""
    from etdeploy.graph.invocation import failure_in_short
    from etdeploy.report.comparison import Row, runs_table
    from etdeploy.report.terminal import render

    width = console.width()
    rows = [
        Row(*end.member.pair, run.record if run else None, failure_in_short(end))
        for end, run in pairs
    ]
    console.result("\n" + render([runs_table(rows)], width))
    paths = {str(end.member.pair): run.record_path for end, run in pairs if run}
    if paths:
        column = max(map(len, paths))
        lines = [f"  {name:<{column}}  {path}" for name, path in paths.items()]
        console.result("\n" + fit("\n".join(["run records, with all details", *lines]), width))


def _report_unchanged(runs: Sequence[StoredRun], started_s: float, single: bool) -> None:
    """Say which runs were measured earlier, and how to repeat them."""
    old = [run for run in runs if run.record_path.stat().st_mtime < started_s]
    if not old:
        return
    if single:
        console.message(
            f"\nNothing has changed since this was measured on {old[0].record.started_at}: "
            "--again measures again."
        )
        return
    share = f"{len(old)} of {console.count(len(runs), 'run')}"
    console.message(f"\nMeasured before, and unchanged since: {share}. --again measures again.")
