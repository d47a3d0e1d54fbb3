"""A run with everything that a report shows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.bench.records.performance import Disturbance
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.workspace import Workspace
from etdeploy.compare.model import Comparison, OperatorChange, operator_changes
from etdeploy.compare.runs import compare_runs
from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.core.values import Progress, silent
from etdeploy.plan.model import RuntimePlan
from etdeploy.profile.model import Profile

_NO_PLAN = "The reasons for the runner's options are not shown: {}."


@dataclass(frozen=True)
class ReportData:
    """A run with what is known of it beside its record.

    Attributes:
        run: The record with its folder.
        name: Tells it apart from the report's other runs.
        plan: Of its runner; None where its file is missing or from another release.
        profiles: Where its time goes, for each method that was traced; that of the method which
            stands for the run is first. Empty where that is not known.
        no_plan: Why there is no plan, in a sentence.
        no_profile: Why there is no profile, in a sentence or two.
    """

    run: StoredRun
    name: str
    plan: RuntimePlan | None = None
    profiles: tuple[Profile, ...] = ()
    no_plan: tuple[str, ...] = ()
    no_profile: tuple[str, ...] = ()

    @property
    def record(self) -> RunRecord:
        return self.run.record

    @property
    def profile(self) -> Profile | None:
        """Of the method that stands for the run; None where it is not known."""
        return self.profiles[0] if self.profiles else None

    @property
    def disturbances(self) -> tuple[Disturbance, ...]:
        """Of the whole run, then of each start."""
        starts = self.record.workload.runs
        return (*self.record.disturbances, *(each for s in starts for each in s.disturbances))


@dataclass(frozen=True)
class Report:
    """What a report is about.

    Attributes:
        runs: At least one.
        comparisons: Each further run, measured against the first; in the same order.
    """

    runs: tuple[ReportData, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def single(self) -> ReportData | None:
        """The run that the report is about; None for one that compares several."""
        return self.runs[0] if len(self.runs) == 1 else None


def load_plan(run: StoredRun) -> tuple[RuntimePlan | None, tuple[str, ...]]:
    """The plan of a run's runner, or why there is none."""
    try:
        path = run.path("plan")
    except ValueError as error:
        return None, (_NO_PLAN.format(error),)
    if path is None:
        return None, (_NO_PLAN.format("the run has no plan"),)
    if not path.is_file():
        return None, (_NO_PLAN.format(f"{path.name} is not in the run's folder"),)
    plan = RuntimePlan.load_or_none(path)
    # It need not be damaged: a plan of another release has other keys.
    return plan, () if plan else (_NO_PLAN.format(f"{path.name} is not a plan of this release"),)


def distinct_names(runs: Sequence[StoredRun]) -> tuple[str, ...]:
    """A name for each run that no other one has, as short as possible.

    The recipe's; with the device, the time, or the run's id where that does not tell them apart.
    """
    records = [run.record for run in runs]
    days = {r.started_at[:10] for r in records}
    candidates = (
        [r.recipe.name for r in records],
        [f"{r.recipe.name} on {r.device.facts.name}" for r in records],
        # The time alone tells those of one day apart.
        [f"{r.recipe.name} {r.started_at[11:19]}" for r in records] if len(days) == 1 else [],
        [f"{r.recipe.name} {r.started_at[:19].replace('T', ' ')}" for r in records],
        [r.run_id for r in records],
    )
    for found in candidates:
        if len(set(found)) == len(records):
            return tuple(found)
    # One run, named twice.
    return tuple(f"{number} {r.run_id}" for number, r in enumerate(records, 1))


_NO_PROFILE = "Where the time goes is not shown: {}."


def collect_report(
    runs: Sequence[StoredRun],
    workspace: Workspace | None,
    progress: Progress = silent,
) -> Report:
    """A report on runs; what is missing of one leaves a gap that says why, and fails nothing.

    Args:
        runs: At least one. Several are measured against the first.
        workspace: The cache, for profiles; None to leave them out.
        progress: Called while a trace is read.

    Raises:
        Interrupted: The run was asked to stop.
    """
    found = tuple(
        _collect(run, name, workspace, progress)
        for run, name in zip(runs, distinct_names(runs), strict=True)
    )
    first, *others = found
    return Report(found, tuple(_compared(first, other) for other in others))


def records_only(runs: Sequence[StoredRun]) -> Report:
    """The records alone, for formats that show nothing else."""
    named = zip(runs, distinct_names(runs), strict=True)
    return Report(tuple(ReportData(run, name) for run, name in named))


def _collect(
    run: StoredRun, name: str, workspace: Workspace | None, progress: Progress
) -> ReportData:
    plan, no_plan = load_plan(run)
    profiles, no_profile = _profiles(run, workspace, progress)
    return ReportData(run, name, plan, profiles, no_plan, no_profile)


def _profiles(
    run: StoredRun, workspace: Workspace | None, progress: Progress
) -> tuple[tuple[Profile, ...], tuple[str, ...]]:
    if run.record.simulated:
        return (), (_NO_PROFILE.format("a simulator's times are no device's"),)
    if workspace is None:
        return (), (_NO_PROFILE.format("the report was made with --no-profile"),)
    from etdeploy.profile.profiled import profiles_of

    try:
        return tuple(profiles_of(run, workspace, progress).methods.values()), ()
    except Interrupted:
        raise
    except EtdeployError as error:
        text = _NO_PROFILE.format(error.message.rstrip("."))
        # Without a full stop, which would be copied with a command.
        return (), (f"{text} {error.remedy}" if error.remedy else text,)


def _compared(first: ReportData, other: ReportData) -> Comparison:
    changes: tuple[OperatorChange, ...] = ()
    if first.profile and other.profile:
        changes = operator_changes(_times(first.profile), _times(other.profile))
    return compare_runs(first.run, other.run, operators=changes)


def _times(profile: Profile) -> dict[tuple[str, str], float]:
    """Self times by operator and module, in milliseconds."""
    sums: dict[tuple[str, str], float] = {}
    for each in profile.operators:
        sums[each.name, each.module] = sums.get((each.name, each.module), 0.0) + each.self_ms
    return sums
