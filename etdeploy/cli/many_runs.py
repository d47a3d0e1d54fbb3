"""`run` and `bench` with several recipes or devices: one table, or an array of records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from etdeploy.bench.outputs.verdict import require_match
from etdeploy.bench.records.stored import StoredRun
from etdeploy.cli.many import failure_json, invoke_all, raise_failures
from etdeploy.cli.named import Named
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError, MismatchError
from etdeploy.core.text.layout import fit
from etdeploy.graph.many.run import JobEnd
from etdeploy.graph.stage_values import StepName, load_last_run
from etdeploy.report.runs_table import Row, runs_table


def measure_all(named: Named, as_json: bool) -> None:
    """Measures every recipe on every device and prints a row for each.

    Raises:
        JobsError: At least one failed, or has outputs that differ.
    """
    begun_s = time.time()
    with invoke_all(named, StepName.BENCH) as ends:
        runs = [_run_of(end) for end in ends]
    pairs = list(zip(ends, runs, strict=True))
    if as_json:
        console.result_json([run.printed() if run else failure_json(end) for end, run in pairs])
    else:
        width = console.width()
        console.result("\n" + runs_table([_row(end, run) for end, run in pairs], width))
        if any(runs):
            console.result("\n" + fit(_where(pairs), width))
    if not named.quiet:
        _tell_old([run for run in runs if run], begun_s)
    raise_failures([_judged(end, run) for end, run in pairs])


def _run_of(end: JobEnd) -> StoredRun | None:
    return None if end.error or end.member.job is None else load_last_run(end.member.job)


def _judged(end: JobEnd, run: StoredRun | None) -> JobEnd:
    """The job as failed, if its outputs differ from the model's."""
    try:
        if run:
            require_match(run)
    except MismatchError as error:
        return replace(end, error=error)
    return end


def _row(end: JobEnd, run: StoredRun | None) -> Row:
    recipe, device = end.member.pair
    return Row(recipe, device, run.record if run else None, _why(end))


def _why(end: JobEnd) -> str:
    if end.stopped:
        return "stopped"
    if end.same_as:
        return f"failed as {end.same_as}"
    kind = end.error.kind if isinstance(end.error, EtdeployError) else "bug"
    first = str(end.error).splitlines()[0] if end.error else ""
    return f"failed ({kind}): {first}"


def _where(pairs: Sequence[tuple[JobEnd, StoredRun | None]]) -> str:
    """Where the details are: with several runs they would fill screens."""
    found = [(str(end.member.pair), run) for end, run in pairs if run]
    width = max(len(name) for name, _ in found)
    lines = [f"  {name:<{width}}  {run.record_path}" for name, run in found]
    return "\n".join(
        ["details: etdeploy run with one recipe and device, or the run records", *lines]
    )


def _tell_old(runs: Sequence[StoredRun], begun_s: float) -> None:
    old = [run for run in runs if run.record_path.stat().st_mtime < begun_s]
    if old:
        console.message(
            f"\n{len(old)} of {len(runs)} were measured before, and nothing has changed since: "
            "--again measures again."
        )
