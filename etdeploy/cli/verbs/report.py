"""etdeploy report and etdeploy profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import options
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.core.files.delivery import ResultFile
    from etdeploy.profile.model import Profile, TextProfile
    from etdeploy.report.formats import Format
    from etdeploy.report.report_data import Report

_FORMATS = ("html", "markdown", "csv", "jsonl", "pytorch-oss")
_TEXT, _PERFETTO, _MODEL_EXPLORER = "text", "perfetto", "model-explorer"
# It has its own option.
_JSON = "json"
_STDOUT = Path("-")
_SINGLE, _SEVERAL = "report.html", "etdeploy-report.html"


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="By default from the suffix of FILE, else html.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"Where the report goes; - is standard output. By default html goes to {_SINGLE} in the "
    f"run's folder, or for several runs to {_SEVERAL} here; other formats are printed.",
)
@click.option("--no-profile", is_flag=True, help="Skip reading traces, which takes seconds.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of run records instead.")
@options("runs-in", "quiet")
def report(
    runs: tuple[str, ...],
    form: str | None,
    output: Path | None,
    no_profile: bool,
    schema: bool,
    runs_in: Path,
    quiet: bool,
) -> None:
    """Write runs as a page, or as text for other tools.

    RUN is a run's folder, its record, its ID or the end of it, or `last` (the default). Several
    runs make one report that compares them with the first.
    """
    if schema:
        _print_schema(runs, form)
        return
    from etdeploy.history.entry import find_run_anywhere
    from etdeploy.report.formats import render_report, require_free, write_report

    chosen = _format(form, output)
    found = [find_run_anywhere(text, runs_in) for text in runs or ("last",)]
    target = output or _default(found, chosen)
    if target == _STDOUT:
        _require_reader(chosen)
    else:
        require_free(target, chosen)
    text = render_report(_gather(found, chosen, no_profile, quiet), chosen)
    if target == _STDOUT:
        console.result(text)
    else:
        console.result(str(write_report(text, target, chosen)))


def _print_schema(runs: tuple[str, ...], form: str | None) -> None:
    from etdeploy.report.rows import record_schema

    if runs or form:
        raise UsageError("--schema takes no RUN and no --format")
    console.result_json(record_schema())


def _format(form: str | None, output: Path | None) -> Format:
    from etdeploy.report.formats import SUFFIXES, Format

    if form:
        return Format(form)
    # Another message explains a path that is not a file.
    if output is None or output == _STDOUT or (output.exists() and not output.is_file()):
        return Format.HTML
    found = SUFFIXES.get(output.suffix.lower())
    if found is None:
        raise UsageError(
            "the suffix of the file is not that of a report format",
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
            "the page is HTML of several megabytes, which a terminal cannot show",
            remedy=f"Name a file: --output {quoted(_SINGLE)}",
        )


def _gather(found: list[StoredRun], form: Format, no_profile: bool, quiet: bool) -> Report:
    from etdeploy.report.report_data import collect_report, records_only

    if not form.is_for_people:
        return records_only(found)
    if no_profile:
        return collect_report(found, None)
    from etdeploy.graph.invocation import reading_traces

    with reading_traces(quiet) as (workspace, tell):
        return collect_report(found, workspace, tell)


@click.command()
@click.argument("run", default="last", metavar="[RUN]")
@click.option(
    "--format",
    "form",
    type=click.Choice([_TEXT, _PERFETTO, _MODEL_EXPLORER]),
    default=_TEXT,
    show_default=True,
    help="perfetto is a timeline of one inference for ui.perfetto.dev, model-explorer a graph of "
    "its calls for Model Explorer.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to this file instead of standard output (-).",
)
@click.option(
    "-n",
    "rows",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="The number of operators in the text.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="The number of module levels in the text.",
)
@click.option(
    "--method",
    metavar="NAME",
    help="For a program that generates text: the method to show. [default: the one that "
    "decodes; with --json all]",
)
@options("runs-in", "json", "quiet")
def profile(
    run: str,
    form: str,
    output: Path | None,
    rows: int,
    depth: int,
    method: str | None,
    runs_in: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show where the time of a run's inferences goes, and why.

    For generated text, it shows the calls of one method.

    RUN is a run's folder, its record, its ID or the end of it, or `last` (the default). Operators,
    nodes of delegates, and modules come from the trace of the run's profile pass.
    """
    if as_json and form != _TEXT:
        raise UsageError(f"choose one of --json and --format {form}")
    form = _JSON if as_json else form
    written = output if output != _STDOUT else None
    if written:
        _file(form).require_free(written)
    profiles = _profiles(run, runs_in, quiet)
    chosen = _chosen(profiles, method)
    if form == _TEXT:
        text = _for_people(profiles, chosen, rows, depth, None if written else console.width())
    elif form == _JSON:
        text = _as_json(profiles, chosen, method)
    else:
        text = _for_programs(chosen, form)
    if written:
        path = _file(form).write(f"{text}\n", written)
        console.message(f"written: {path}")
    else:
        console.result(text)


def _profiles(run: str, runs_in: Path, quiet: bool) -> TextProfile:
    from etdeploy.bench.records.stored import find_run
    from etdeploy.graph.invocation import reading_traces
    from etdeploy.profile.profiled import profiles_of

    found = find_run(run, runs_in)
    with reading_traces(quiet) as (workspace, tell):
        return profiles_of(found, workspace, tell)


def _chosen(profiles: TextProfile, method: str | None) -> Profile:
    """Return the profile of the method, by default of the main one."""
    name = method or profiles.method
    if name not in profiles.methods:
        known = ", ".join(profiles.methods)
        raise UsageError(
            f"the run has no trace of the method {name}",
            remedy=f"Name one that has a trace: {known}",
        )
    return profiles.methods[name]


def _for_people(
    profiles: TextProfile, chosen: Profile, rows: int, depth: int, width: int | None
) -> str:
    """Return the profile of a method, below one line for each method."""
    from etdeploy.report.profile import profile_text
    from etdeploy.report.terminal import render

    return render(profile_text(chosen, list(profiles.methods.values()), rows, depth), width)


def _as_json(profiles: TextProfile, chosen: Profile, method: str | None) -> str:
    """Return the profile of an inference; for text that of the method, by default of all."""
    shown: Profile | TextProfile = chosen
    if chosen.text:
        own = {chosen.method: chosen} if method else profiles.methods
        shown = profiles.model_copy(update={"method": chosen.method, "methods": own})
    return json.dumps(shown.model_dump(mode="json"), indent=2, ensure_ascii=False)


def _for_programs(profile: Profile, form: str) -> str:
    if form == _PERFETTO:
        from etdeploy.profile.viewers import trace_events

        return json.dumps(trace_events(profile))
    from etdeploy.profile.viewers import graph_collection

    return json.dumps(graph_collection(profile))


def _file(form: str) -> ResultFile:
    """Return a file that may be new, or have an earlier profile of the same format."""
    from etdeploy.core.files.delivery import ResultFile, begins_with, contains
    from etdeploy.report.profile import TRACED

    is_own = {
        _TEXT: contains(TRACED),
        _JSON: begins_with('{\n  "run_id": "'),
        _PERFETTO: begins_with('{"traceEvents": ['),
        _MODEL_EXPLORER: begins_with('{"label": "'),
    }[form]
    return ResultFile("profile", f"a profile as {form}", is_own, f"{form}.json")
