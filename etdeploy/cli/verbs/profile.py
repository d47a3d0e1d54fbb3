"""etdeploy profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import json_option, quiet_option, runs_in_option
from etdeploy.core import console
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.core.files.results import ResultFile
    from etdeploy.profile.model import Profile

_TEXT, _PERFETTO, _MODEL_EXPLORER = "text", "perfetto", "model-explorer"
# Has an option of its own.
_JSON = "json"
_STDOUT = Path("-")


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
    help="Write to this file, and not to the standard output, which is -.",
)
@click.option(
    "-n",
    "rows",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many operators the text shows.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="How many levels of modules the text shows.",
)
@runs_in_option
@json_option
@quiet_option
def command(
    run: str,
    form: str,
    output: Path | None,
    rows: int,
    depth: int,
    runs_in: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show where the time of a run's inferences goes, and why.

    RUN is a run's folder, its record, its id or the end of that, or `last`, the newest. Operators,
    delegates' nodes and modules come from the trace of the run's profile pass.
    """
    if as_json and form != _TEXT:
        raise UsageError(f"--json and --format {form} are two formats", remedy="Leave one out.")
    form = _JSON if as_json else form
    written = output if output != _STDOUT else None
    if written:
        _file(form).require_free(written)
    profile = _profile(run, runs_in, quiet)
    if form == _TEXT:
        from etdeploy.profile.formats.text import profile_text

        text = profile_text(profile, rows, depth, None if written else console.width())
    else:
        text = _for_programs(profile, form)
    if written:
        path = _file(form).write(f"{text}\n", written)
        console.message(f"written: {path}")
    else:
        console.result(text)


def _profile(run: str, runs_in: Path, quiet: bool) -> Profile:
    from etdeploy.bench.records.find import find_run
    from etdeploy.cli.traces import reading_traces
    from etdeploy.profile.profiled import profile_of

    found = find_run(run, runs_in)
    with reading_traces(quiet) as (workspace, tell):
        return profile_of(found, workspace, tell)


def _for_programs(profile: Profile, form: str) -> str:
    if form == _JSON:
        return json.dumps(profile.model_dump(mode="json"), indent=2, ensure_ascii=False)
    if form == _PERFETTO:
        from etdeploy.profile.formats.perfetto import trace_events

        return json.dumps(trace_events(profile))
    from etdeploy.profile.formats.model_explorer import graph_collection

    return json.dumps(graph_collection(profile))


def _file(form: str) -> ResultFile:
    """Where a profile goes: a new file, or one with an earlier profile of the same format."""
    from etdeploy.core.files.results import ResultFile, begins_with, contains
    from etdeploy.profile.formats.text import TRACED

    is_own = {
        _TEXT: contains(TRACED),
        _JSON: begins_with('{\n  "run_id": "'),
        _PERFETTO: begins_with('{"traceEvents": ['),
        _MODEL_EXPLORER: begins_with('{"label": "'),
    }[form]
    return ResultFile("profile", f"a profile as {form}", is_own, f"{form}.json")
