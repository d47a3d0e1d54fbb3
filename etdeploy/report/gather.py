"""Collects what a report shows: runs, their plans and profiles, and how they compare."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.workspace import Workspace
from etdeploy.compare.model import Comparison, OperatorChange, operator_changes
from etdeploy.compare.runs import compare_runs
from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.core.values import Progress, silent
from etdeploy.profile.model import Profile
from etdeploy.report.material import Material, Report, names, plan_of

_NO_PROFILE = "Where the time goes is not shown: {}."


def gather(
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
        _material(run, name, workspace, progress)
        for run, name in zip(runs, names(runs), strict=True)
    )
    first, *others = found
    return Report(found, tuple(_compared(first, other) for other in others))


def bare(runs: Sequence[StoredRun]) -> Report:
    """The records alone, for formats that show nothing else."""
    named = zip(runs, names(runs), strict=True)
    return Report(tuple(Material(run, name) for run, name in named))


def _material(
    run: StoredRun, name: str, workspace: Workspace | None, progress: Progress
) -> Material:
    plan, no_plan = plan_of(run)
    profiles, no_profile = _profiles(run, workspace, progress)
    return Material(run, name, plan, profiles, no_plan, no_profile)


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


def _compared(first: Material, other: Material) -> Comparison:
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
