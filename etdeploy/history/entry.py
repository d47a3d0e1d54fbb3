"""What the history knows of a record without reading it again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.bench.records.stored import LAST, StoredRun, find_run, parse_record
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError, StoreError, UsageError
from etdeploy.core.values import StrEnum
from etdeploy.history.location import HistoryLocation, resolve_location
from etdeploy.history.series import Series, read_metrics, series_from

if TYPE_CHECKING:
    from etdeploy.bench.records.record import RunRecord


class Judgement(StrEnum):
    """What `etdeploy check` found of a run."""

    PASSED = "passed"
    REGRESSED = "regressed"


@dataclass(frozen=True)
class HistoryEntry:
    """A run in the history.

    Attributes:
        run_id: Names it.
        series: Those that it can be compared with.
        started_at: In UTC, ISO 8601, so that the order of the texts is that of the times.
        program: SHA-256 of the `.pte` file.
        versions: Of the tools.
        git_revision: Commit of the recipe's folder.
        git_dirty: Whether it had changes that were not committed.
        disturbed: Why its times are unfit for a comparison; empty where they are fit.
        simulated: Whether a simulator computed it: then it has no metrics.
        outputs_ok: Whether its outputs were right; None where there was nothing to compare with.
        spread_percent: Between its starts.
        starts: Of the runner, in the timing pass.
        metrics: Its numbers, by name.
        judgement: Of the last check of it.
    """

    run_id: str
    series: str
    started_at: str
    program: str
    versions: dict[str, str]
    git_revision: str | None
    git_dirty: bool | None
    disturbed: str
    simulated: bool
    outputs_ok: bool | None
    spread_percent: float | None
    starts: int
    metrics: dict[str, float]
    judgement: Judgement | None = None

    @property
    def fit(self) -> bool:
        """Whether its numbers can be compared with others'."""
        return not self.disturbed and not self.simulated and self.outputs_ok is not False


def entry_from(record: RunRecord) -> tuple[HistoryEntry, Series]:
    """A record as the history knows it, with its series."""
    series, workload = series_from(record), record.workload
    return (
        HistoryEntry(
            run_id=record.run_id,
            series=series.key,
            started_at=utc(record.started_at),
            program=record.program.sha256,
            versions=dict(record.versions),
            git_revision=record.recipe.git_revision,
            git_dirty=record.recipe.git_dirty,
            disturbed=describe_disturbance(record),
            simulated=record.simulated is not None,
            outputs_ok=_outputs_ok(record),
            spread_percent=workload.spread.between_percent,
            starts=len(workload.runs),
            metrics=read_metrics(record),
        ),
        series,
    )


def describe_disturbance(record: RunRecord) -> str:
    """What disturbed a run as a whole, or more than half of its starts; empty for nothing.

    A median over the starts forgives it if fewer were disturbed.
    """
    from etdeploy.bench.records.performance import SLOWING

    whole = [each.text for each in record.disturbances if each.kind in SLOWING]
    if whole:
        return " ".join(whole)  # each is a sentence
    runs = record.workload.runs
    slowed = [[each for each in run.disturbances if each.kind in SLOWING] for run in runs]
    texts = [found[0].text for found in slowed if found]
    return texts[0] if len(texts) * 2 > len(runs) else ""


def utc(started_at: str) -> str:
    """A record's date and time in UTC, always in the same form; as it is where it is not a date."""
    try:
        time = datetime.fromisoformat(started_at.replace("Z", "+00:00"))
    except ValueError:
        return started_at
    time = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return time.astimezone(timezone.utc).isoformat(timespec="seconds")


def _outputs_ok(record: RunRecord) -> bool | None:
    """As `etdeploy run` judges them: an output that cannot be compared is not a wrong one."""
    checks = record.workload.all_outputs
    if not record.workload.outputs_compared or not checks:
        return None
    return all(check.within_tolerance is not False for check in checks)


# As for runs in a folder: shorter ends of ids are more likely a mistake than meant.
_SHORTEST = 4


def find_recorded_run(text: str, output: Path, place: HistoryLocation | None) -> StoredRun:
    """The run that `text` names, in the output folder or else in the history.

    Args:
        text: As for `find_run`.
        output: The folder for run records.
        place: The history; None without one.

    Returns:
        The run. If only its record is left, its folder is one in `output` that does not exist, and
        a warning says so.

    Raises:
        UsageError: There is no such run, or several fit.
    """
    try:
        return find_run(text, output)
    except UsageError:
        if text == LAST or len(text) < _SHORTEST or place is None:
            raise
        found = _in_history(text, output, place)
        if found is None:
            raise
        return found


def find_run_anywhere(text: str, output: Path) -> StoredRun:
    """The same with the user's history, which is looked for only if the folder is gone.

    Raises:
        UsageError: There is no such run, or several fit.
    """
    try:
        return find_run(text, output)
    except UsageError:
        try:
            place = resolve_location()
        except StoreError as error:
            console.warn(f"the run was not looked for in the history: {error}")
            place = None
        return find_recorded_run(text, output, place)


def _in_history(text: str, output: Path, place: HistoryLocation) -> StoredRun | None:
    if place.file and not place.file.is_file():
        return None
    from etdeploy.history.store.store import open_store

    try:
        with open_store(place, read_only=True) as store:
            ids = [name for name in store.ids(text) if text == name or name.endswith(text)]
            ids = [text] if text in ids else ids
            content = store.content(ids[0]) if len(ids) == 1 else None
    except EtdeployError as error:
        console.warn(f"the run was not looked for in the history: {error}")
        return None
    if len(ids) > 1:
        raise UsageError(
            f"{len(ids)} runs in the history have an id that ends with {text!r}",
            place=place.shown,
            remedy="Name one of them:\n" + "\n".join(ids),
        )
    if not ids:
        return None
    if content is None:
        raise UsageError(
            f"only the numbers of {ids[0]} are left: its record was deleted from the history "
            "(`etdeploy history prune`), and its folder is gone",
            place=place.shown,
            remedy="Name a later run, or measure again: etdeploy run",
        )
    record = parse_record(json.dumps(content), f"{place.shown}: {ids[0]}")
    console.warn(
        f"only the record of {record.run_id} is left, in the history: its folder is not in "
        f"{output}, and with it the outputs and the trace"
    )
    return StoredRun(output / record.run_id, record)


def commit_range(old: str | None, new: str | None) -> str:
    """`OLD..NEW` for git; empty where a revision is unknown or both are the same."""
    return f"{old[:12]}..{new[:12]}" if old and new and old != new else ""
