"""What the history knows of a record without reading it again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from etdeploy.core.values import Kind
from etdeploy.history.metrics import metrics_of
from etdeploy.history.series import Series, series_of

if TYPE_CHECKING:
    from etdeploy.bench.records.record import RunRecord


class Judgement(Kind):
    """What `etdeploy check` found of a run."""

    PASSED = "passed"
    REGRESSED = "regressed"


@dataclass(frozen=True)
class Entry:
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


def entry_of(record: RunRecord) -> tuple[Entry, Series]:
    """A record as the history knows it, with its series."""
    series, spread = series_of(record), record.workload.spread
    return (
        Entry(
            run_id=record.run_id,
            series=series.key,
            started_at=utc(record.started_at),
            program=record.program.sha256,
            versions=dict(record.versions),
            git_revision=record.recipe.git_revision,
            git_dirty=record.recipe.git_dirty,
            disturbed=disturbance_of(record),
            simulated=record.simulated is not None,
            outputs_ok=_outputs_ok(record),
            spread_percent=spread.between_percent if spread else None,
            starts=max(1, len(record.workload.runs)),
            metrics=metrics_of(record),
        ),
        series,
    )


def disturbance_of(record: RunRecord) -> str:
    """What disturbed a run as a whole, or more than half of its starts; empty for nothing.

    A median over the starts forgives it if fewer were disturbed.
    """
    from etdeploy.bench.records.conditions import SLOWING

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
