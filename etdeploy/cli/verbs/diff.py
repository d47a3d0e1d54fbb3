"""etdeploy diff."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.graph.job import StepName
from etdeploy.graph.options import job_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from etdeploy.bench.diff import DiffReport
    from etdeploy.graph.jobs import Member
    from etdeploy.graph.options import JobOptions
    from etdeploy.graph.run import JobEnd


@click.command()
@options("recipe", "set", "model", "text", "image", "audio", "device", "target")
@click.option(
    "-o",
    "--output",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Write a page with a plot of the error along the graph.",
)
@click.option("--again", is_flag=True, help="Run the programs again, even if nothing changed.")
@options("json", "quiet")
def diff(page: Path | None, again: bool, as_json: bool, **values: Any) -> None:
    """Locate the first node whose value on the device is wrong.

    The program runs once with the model's inputs, and once more while it returns the values of its
    nodes. Each value is compared with what eager computes from the device's own values of the
    node's inputs, so that an earlier error does not count. For a quantized model, the report also
    has what the quantization of each module costs, and suggests export.overrides.
    """
    from etdeploy.report.diff import diff_page, diff_text, require_agreement
    from etdeploy.report.formats import Format, require_free, write_report
    from etdeploy.report.html import render

    if page:
        require_free(page, Format.HTML)
    report = _compared(job_options(measure_again=again, **values))
    if as_json:
        console.result_json(report.model_dump(mode="json"))
    else:
        console.result("\n" + diff_text(report, console.width()))
    if page:
        console.message(f"written: {write_report(render(diff_page(report)), page, Format.HTML)}")
    require_agreement(report)


def _compared(named: JobOptions) -> DiffReport:
    from etdeploy.graph.diff import ProgramDiff, require_comparable
    from etdeploy.graph.invocation import after_others, keep_small, open_named
    from etdeploy.graph.run import look_up, refused_of, run_jobs
    from etdeploy.graph.tasks.steps import heavy_at_once

    with open_named(named) as members:
        [member] = members.all
        job = member.require_job()
        require_comparable(job)
        members.workspace.sweep(job.state)
        with console.TaskDisplay(quiet=named.quiet) as display, after_others([job], display):

            def run_steps(wanted: Sequence[Member], goal: StepName) -> list[JobEnd]:
                ready, failed = look_up(wanted)
                failed += refused_of(ready, goal)
                if failed:
                    return failed
                return run_jobs(ready, goal, display, heavy=heavy_at_once())

            report = ProgramDiff(member, run_steps, display).report()
        keep_small(members.workspace, named.quiet)
    return report
