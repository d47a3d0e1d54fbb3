"""What verbs print for several recipes or devices: a table with a row for each, or an array."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etdeploy.bench.diagnosis import require_whole
from etdeploy.bench.outputs.verdict import require_match
from etdeploy.bench.records.stored import StoredRun
from etdeploy.cli.many.jobs import failure_json, invoke_all, job_json, raise_failures
from etdeploy.cli.options import JobOptions
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError, MismatchError, RunError, UsageError
from etdeploy.core.layout import fit
from etdeploy.graph.job import Job, StepName, load_last_run, load_program, load_runner
from etdeploy.graph.many.run import JobEnd
from etdeploy.program.folder import load_provenance
from etdeploy.program.quality import loss_lines
from etdeploy.report.terminal.runs_table import Row, runs_table


def measure_all(named: JobOptions, as_json: bool) -> None:
    """Measures every recipe on every device and prints a row for each."""
    begun_s = time.time()
    with invoke_all(named, StepName.BENCH) as ends:
        pairs = [(end, _of(end, load_last_run)) for end in ends]
    if as_json:
        console.result_json([run.printed() if run else failure_json(end) for end, run in pairs])
    else:
        width = console.width()
        rows = [Row(*end.member.pair, run.record if run else None, _why(end)) for end, run in pairs]
        console.result("\n" + runs_table(rows, width))
        found = [(str(end.member.pair), run) for end, run in pairs if run]
        if found:
            console.result("\n" + fit(_where(found), width))
    if not named.quiet:
        _tell_old([run for _, run in pairs if run], begun_s)
    raise_failures([_judged(end, run) for end, run in pairs])


def export_all(named: JobOptions, as_json: bool) -> None:
    """Exports every recipe and prints a row for each."""
    with invoke_all(named, StepName.EXPORT) as ends:
        found = [(end, _of(end, load_program)) for end in ends]
    if as_json:
        console.result_json(
            [
                {"folder": made[0].folder, "program": made[1].model_dump(mode="json")}
                if made
                else failure_json(end)
                for end, made in found
            ]
        )
    else:
        rows = [
            (
                end.member.pair.recipe,
                console.size(made[1].size_bytes) if made else None,
                str(Path(made[0].folder) / "program.pte") if made else _why(end),
            )
            for end, made in found
        ]
        _print_table(("recipe", "size", "program"), rows, ("size",))
        for end, made in found:
            if made:
                _warn_of_losses(end.member.pair.recipe, Path(made[0].folder))
    raise_failures(ends)


def _warn_of_losses(recipe: str, folder: Path) -> None:
    """A line for each output that quantisation moves far."""
    losses = load_provenance(folder).quantization_losses
    high = [loss for each in losses.values() for loss in each if loss.is_high]
    for line in loss_lines(high):
        console.warn(f"{recipe}: {line}")


def build_all(named: JobOptions, as_json: bool) -> None:
    """Builds every recipe's runner for every device and prints a row for each."""
    with invoke_all(named, StepName.CHECK) as ends:
        found = [(end, _of(end, load_runner)) for end in ends]
    if as_json:
        console.result_json(
            [
                {**job_json(end.member), **runner.model_dump(mode="json")}
                if runner
                else failure_json(end)
                for end, runner in found
            ]
        )
    else:
        rows = [
            (
                *end.member.pair,
                runner.target if runner else None,
                str(Path(runner.path) / runner.executable) if runner else _why(end),
            )
            for end, runner in found
        ]
        _print_table(("recipe", "device", "target", "runner"), rows, ())
    raise_failures(ends)


def require_no_output(output: Path | None, verb: str) -> None:
    """Raises UsageError if results of several jobs would go to one folder."""
    if output is not None:
        raise UsageError(
            "--output takes the files of one recipe for one device",
            remedy="Leave out --output: the table says where each result is in the cache.\n"
            f"Or name one recipe: etdeploy {verb} --recipe RECIPE --output FOLDER",
        )


def _of(end: JobEnd, load: Callable[[Job], Any]) -> Any:
    """What a job made; None for one that did not end well."""
    return None if end.error or end.member.job is None else load(end.member.job)


def _print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str]
) -> None:
    console.result("\n" + console.table(columns, rows, right=right, width=console.width()))


def _judged(end: JobEnd, run: StoredRun | None) -> JobEnd:
    """The job as failed, if its outputs differ from the model's or a pass ended early."""
    try:
        if run:
            require_match(run)
            require_whole(run)
    except (MismatchError, RunError) as error:
        return replace(end, error=error)
    return end


def _why(end: JobEnd) -> str:
    """Why there is no result, in a word: the list of failures follows."""
    if end.stopped:
        return "stopped"
    return f"failed ({end.error.kind if isinstance(end.error, EtdeployError) else 'bug'})"


def _where(found: Sequence[tuple[str, StoredRun]]) -> str:
    """Where the details are: of several runs they would fill screens."""
    width = max(len(name) for name, _ in found)
    lines = [f"  {name:<{width}}  {run.record_path}" for name, run in found]
    return "\n".join(["run records, with all details", *lines])


def _tell_old(runs: Sequence[StoredRun], begun_s: float) -> None:
    old = [run for run in runs if run.record_path.stat().st_mtime < begun_s]
    if old:
        of_all = f"{len(old)} of {console.count(len(runs), 'run')}"
        console.message(
            f"\nMeasured before, and unchanged since: {of_all}. --again measures again."
        )
