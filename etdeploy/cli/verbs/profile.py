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
    from etdeploy.profile.model import Profile

_TEXT, _PERFETTO, _MODEL_EXPLORER = "text", "perfetto", "model-explorer"


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
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to this file, and not to the standard output.",
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
    profile = _profile(run, runs_in, quiet)
    if form == _PERFETTO:
        from etdeploy.profile.formats.perfetto import trace_events

        _write(json.dumps(trace_events(profile)), output)
    elif form == _MODEL_EXPLORER:
        from etdeploy.profile.formats.model_explorer import graph_collection

        _write(json.dumps(graph_collection(profile)), output)
    elif as_json:
        _write(json.dumps(profile.model_dump(mode="json"), indent=2, ensure_ascii=False), output)
    else:
        from etdeploy.profile.formats.text import profile_text

        width = None if output else console.width()
        _write(profile_text(profile, rows, depth, width), output)


def _profile(run: str, runs_in: Path, quiet: bool) -> Profile:
    from etdeploy.bench.records.find import find_run
    from etdeploy.cli.traces import reading_traces
    from etdeploy.profile.profiled import profile_of

    found = find_run(run, runs_in)
    with reading_traces(quiet) as (workspace, tell):
        return profile_of(found, workspace, tell)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        console.result(text)
        return
    from etdeploy.core.files.basic import write_atomic

    try:
        write_atomic(output, f"{text}\n")
    except OSError as error:
        from etdeploy.core.files.disk import no_room_in

        if no_room_in(error):
            raise
        raise UsageError(
            f"the file cannot be written: {error.strerror or error}",
            place=str(output),
            remedy="Name a file in a folder that can be written to: -o FILE",
        ) from error
    console.message(f"written: {output}")
