"""etdeploy check."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import options
from etdeploy.cli.verbs.history import history_command
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError, NoVerdictError, RegressionError
from etdeploy.graph.options import DEFAULT_OUTPUT

if TYPE_CHECKING:
    from etdeploy.bench.records.record import RunRecord
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.history.check import Check, CheckOptions
    from etdeploy.history.location import HistoryLocation

_FILE = click.Path(path_type=Path, dir_okay=False)


def _percent(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """`5%`, `5 %` or `5`."""
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1000:
        raise click.BadParameter(f"{value!r} is not a percentage from 0 to 1000, like 5%")
    return number


@click.command()
@click.argument("run", default="last")
@click.option(
    "--against",
    metavar="main|last-good|RUN",
    help="Compare with runs whose recipe was committed on the branch main, with runs that no check "
    "found worse, or with one run. By default with all earlier runs that are comparable.",
)
@click.option(
    "--max-slowdown",
    callback=_percent,
    default="5%",
    show_default=True,
    metavar="PERCENT",
    help="How much worse a number may be, including memory and sizes.",
)
@click.option(
    "--last",
    type=click.IntRange(min=5, max=1000),
    default=20,
    show_default=True,
    metavar="N",
    help="The number of earlier runs to compare with.",
)
@click.option(
    "--require-verdict",
    is_flag=True,
    help="Exit with 6 if there is no verdict: too little history, a disturbed run, or one that is "
    "not comparable.",
)
@click.option("--junit", type=_FILE, metavar="FILE", help="Write JUnit XML, a case per number.")
@click.option(
    "--markdown", type=_FILE, metavar="FILE", help="Write Markdown, for a pull request's comment."
)
@click.option(
    "--github",
    is_flag=True,
    help="In GitHub Actions: print annotations, and add the Markdown to the summary of the step.",
)
@options("runs-in", "store", "json", "quiet")
def check(
    run: str,
    against: str | None,
    max_slowdown: float,
    last: int,
    require_verdict: bool,
    junit: Path | None,
    markdown: Path | None,
    github: bool,
    runs_in: Path,
    store: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare a run with earlier ones, and exit with 1 if a number is worse.

    RUN is `last`, an ID or its end, or a path. It is compared with the latest runs in the history
    that measured the same thing on the same device, and with their spread. The exit code is 0 if
    there is no verdict: too little history, a disturbed run, or one that is not comparable.
    """
    shown = CheckOutput(as_json, junit, markdown, github, require_verdict)
    shown.require_free()
    from etdeploy.history.check import LAST_GOOD, MAIN, CheckOptions
    from etdeploy.history.entry import find_recorded_run
    from etdeploy.history.location import require_location

    place = require_location(store)
    found = find_recorded_run(run, runs_in, place)
    by_name = against in (None, MAIN, LAST_GOOD)
    other = None if by_name else find_recorded_run(str(against), runs_in, place).record
    question = CheckOptions(
        against=against if by_name else None,
        other=other,
        max_slowdown_percent=max_slowdown,
        last=last,
    )
    _show(_judged(found, question, place, quiet=quiet), found, store, shown)


def _judged(
    run: StoredRun, question: CheckOptions, place: HistoryLocation, *, quiet: bool
) -> Check:
    """Compare the run with earlier ones, and store the verdict in the history."""
    from etdeploy.history.check import check as check_run
    from etdeploy.history.check import to_judgement
    from etdeploy.history.record_sink import import_pending
    from etdeploy.history.store.store import open_store

    trouble = None
    try:
        import_pending(place)
        with open_store(place) as store:
            store.add(run.record)
    except EtdeployError as error:
        trouble = error
    with open_store(place, read_only=True) as store:
        if trouble:  # otherwise opening it for reading has failed, too
            console.warn(f"the verdict cannot be stored in the history: {trouble}")
        found = check_run(store, run.record, question)
    judgement = to_judgement(found)
    if judgement is None or question.other is not None:
        return found
    try:
        with open_store(place) as store:
            store.judge([found.run_id], judgement)
    except EtdeployError as error:
        if not quiet:
            console.warn(f"the verdict was not stored in the history: {error}")
    return found


def _show(found: Check, run: StoredRun, store: str | None, shown: CheckOutput) -> None:
    """Print a check, and write what is asked for; raise if a number is worse or not judged."""
    from etdeploy.bench.records.stored import measure_again
    from etdeploy.history.check import CheckVerdict
    from etdeploy.history.series import series_from
    from etdeploy.report.terminal import render
    from etdeploy.report.trends import check_text

    again = measure_again(run)
    if shown.as_json:
        console.result_json(found.model_dump(mode="json"))
    else:
        console.result(render(check_text(found, again), console.width()))
    shown.write(found, run.record)
    if found.verdict is CheckVerdict.REGRESSED:
        command = history_command(series_from(run.record), store)
        raise RegressionError(
            found.reason,
            place=found.run_id,
            remedy=f"See when it began, and what changed then: {command}\nMeasure again: {again}",
        )
    if shown.requires_verdict and not found.is_judged:
        more = found.verdict is CheckVerdict.NOT_ENOUGH_HISTORY
        raise NoVerdictError(
            f"{found.verdict}: {found.reason}",
            place=found.run_id,
            remedy=f"Measure {'more often' if more else 'again'}: {again}\n"
            "Without --require-verdict, this is not a failure.",
        )


@dataclass(frozen=True)
class CheckOutput:
    """What `etdeploy check` prints and writes."""

    as_json: bool = False
    junit: Path | None = None
    markdown: Path | None = None
    for_github: bool = False
    requires_verdict: bool = False

    def require_free(self) -> None:
        """Raise a UsageError if a file is not one of etdeploy's reports, or cannot be written."""
        from etdeploy.report.formats import junit_file, markdown_file

        if self.junit:
            junit_file("--junit").require_free(self.junit)
        if self.markdown:
            markdown_file("--markdown").require_free(self.markdown)

    def write(self, found: Check, record: RunRecord) -> None:
        """Write the files, and tell GitHub Actions what was found."""
        from etdeploy.bench.records.stored import StoredRun, measure_again
        from etdeploy.history.nights import storable
        from etdeploy.report import markdown
        from etdeploy.report.formats import junit_file, markdown_file
        from etdeploy.report.trends import check_annotations, check_junit, check_page

        required = self.requires_verdict
        # Who reads a comment has another folder for runs.
        again = measure_again(StoredRun(DEFAULT_OUTPUT / record.run_id, record))
        text = storable(markdown.render(check_page(found, record, again)))
        if self.markdown:
            markdown_file("--markdown").write(text, self.markdown)
        if self.junit:
            xml = check_junit(found, record, requires_verdict=required)
            junit_file("--junit").write(storable(xml), self.junit)
        if self.for_github:
            lines = check_annotations(found, record, requires_verdict=required)
            # The runner reads both streams, and JSON is alone on its own.
            for line in lines:
                (console.message if self.as_json else console.result)(line)
            _add_to_summary(text)


def _add_to_summary(text: str) -> None:
    """Add Markdown to the summary of a step of GitHub Actions; elsewhere there is none."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        console.warn(f"could not add to the summary of the step: {error}")
