"""etdeploy report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import quiet_option, runs_in_option
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.report.formats import Format
    from etdeploy.report.report_data import Report

_FORMATS = ("html", "markdown", "csv", "jsonl", "pytorch-oss")
_STDOUT = Path("-")
_SINGLE, _SEVERAL = "report.html", "etdeploy-report.html"


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="By default what the name of the file ends with, else html.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where the report goes; - is standard output. By default text is printed, and a page is "
    f"{_SINGLE} in the run's folder, for several runs {_SEVERAL} here.",
)
@click.option("--no-profile", is_flag=True, help="Do not read traces, which takes seconds.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of run records instead.")
@runs_in_option
@quiet_option
def command(
    runs: tuple[str, ...],
    form: str | None,
    output: Path | None,
    no_profile: bool,
    schema: bool,
    runs_in: Path,
    quiet: bool,
) -> None:
    """Show what a run gave: as a page, or as text for other tools.

    RUN is a run's folder, its record, its id or the end of that, or last (the default). Several
    make one report that compares them with the first.
    """
    if schema:
        _print_schema(runs, form)
        return
    from etdeploy.history.entry import find_anywhere
    from etdeploy.report.formats import require_free, text_of, write_report

    chosen = _format(form, output)
    found = [find_anywhere(text, runs_in) for text in runs or ("last",)]
    target = output or _default(found, chosen)
    if target == _STDOUT:
        _require_reader(chosen)
    else:
        require_free(target, chosen)
    text = text_of(_gather(found, chosen, no_profile, quiet), chosen)
    if target == _STDOUT:
        console.result(text)
    else:
        console.result(str(write_report(text, target, chosen)))


def _print_schema(runs: tuple[str, ...], form: str | None) -> None:
    from etdeploy.report.rows import record_schema

    if runs or form:
        raise UsageError("--schema is about all records: it takes no RUN and no --format")
    console.result_json(record_schema())


def _format(form: str | None, output: Path | None) -> Format:
    from etdeploy.report.formats import SUFFIXES, Format

    if form:
        return Format(form)
    # What is no file is refused for that, with a remedy of its own.
    if output is None or output == _STDOUT or (output.exists() and not output.is_file()):
        return Format.HTML
    found = SUFFIXES.get(output.suffix.lower())
    if found is None:
        raise UsageError(
            "the name of the file does not say which format the report should have",
            place=str(output),
            remedy=f"Name it: --format {'|'.join(_FORMATS)}",
        )
    return found


def _default(found: list[StoredRun], form: Format) -> Path:
    if form != "html":
        return _STDOUT
    # A run that is only in the history has no folder.
    single = len(found) == 1 and found[0].folder.is_dir()
    return found[0].folder / _SINGLE if single else Path(_SEVERAL)


def _require_reader(form: Format) -> None:
    if form == "html" and console.is_terminal():
        raise UsageError(
            "a page of megabytes is nothing for a terminal",
            remedy=f"Name a file: --output {quoted(_SINGLE)}",
        )


def _gather(found: list[StoredRun], form: Format, no_profile: bool, quiet: bool) -> Report:
    from etdeploy.report.report_data import bare, gather

    if not form.is_for_people:
        return bare(found)
    if no_profile:
        return gather(found, None)
    from etdeploy.cli.text import reading_traces

    with reading_traces(quiet) as (workspace, tell):
        return gather(found, workspace, tell)
