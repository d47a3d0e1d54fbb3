"""`etdeploy check`: finds what a run is judged by, and judges it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from etdeploy.bench.records.record import RunRecord
from etdeploy.compare.model import Ratio
from etdeploy.compare.statistics import (
    BETWEEN_RECORDS,
    MIN_HISTORY,
    HistoryDeviation,
    deviation_from_history,
)
from etdeploy.core.errors import UsageError
from etdeploy.core.processes.process import run_git
from etdeploy.core.values import StrEnum, Value
from etdeploy.history.entry import HistoryEntry, Judgement, entry_from
from etdeploy.history.series import (
    HEADLINES,
    explain_differences,
    format_metric,
    metric_title,
    series_from,
)
from etdeploy.history.trend import find_level_shifts

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store


MAIN, LAST_GOOD = "main", "last-good"
# Runs of other branches do not count: runs to read for each run that is needed.
_LOOK_BACK = 10
_BRANCHES = ("main", "origin/main", "master", "origin/master")
_REVISION = re.compile(r"[0-9a-f]{7,64}")


class CheckVerdict(StrEnum):
    """What a check found."""

    PASSED = "passed"
    REGRESSED = "regressed"
    NOT_ENOUGH_HISTORY = "not enough history"
    NOT_COMPARABLE = "not comparable"
    NOT_JUDGED = "not judged"


class FindingKind(StrEnum):
    """What a check found of one number."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    NO_DIFFERENCE = "no difference found"
    NOT_JUDGED = "not judged"


class MetricFinding(Value):
    """One number of a run, judged.

    Attributes:
        metric: Its name; `outputs` for whether the outputs are right.
        kind: What was found.
        value: Of the run.
        expected: Median of the earlier runs, or the value of the run that it is checked against.
        ratio: Value by expected, with bounds that contain 1 for 95 of 100 runs in which nothing
            changed; null where it was not judged.
        z: The distance in standard deviations between runs; positive where it is worse.
        earlier: How many runs it was judged by.
        reason: In a sentence.
    """

    metric: str
    kind: FindingKind
    value: float | None = None
    expected: float | None = None
    ratio: Ratio | None = None
    z: float | None = None
    earlier: int = 0
    reason: str = ""


class Check(Value):
    """A run judged by those before it.

    Attributes:
        run_id: The run.
        against: What it was judged by, in words.
        verdict: What was found.
        reason: Why, in a sentence.
        max_slowdown_percent: What is allowed.
        findings: One for each number.
        earlier: The runs that it was judged by, the earliest first.
        needed: How many are needed.
    """

    run_id: str
    against: str
    verdict: CheckVerdict
    reason: str
    max_slowdown_percent: float
    findings: tuple[MetricFinding, ...] = ()
    earlier: tuple[str, ...] = ()
    needed: int = 0

    @property
    def is_judged(self) -> bool:
        """Whether it says that the run is worse, or that it is not."""
        return self.verdict in (CheckVerdict.PASSED, CheckVerdict.REGRESSED)


@dataclass(frozen=True)
class CheckOptions:
    """What is asked of a check.

    Attributes:
        against: `main`, `last-good`, or None for all earlier runs.
        other: The run to check against, in place of `against`.
        max_slowdown_percent: How much worse a number may be.
        last: How many earlier runs it is judged by.
        repository: A folder in the recipe's repository, for `main`.
    """

    against: str | None = None
    other: RunRecord | None = None
    max_slowdown_percent: float = 5.0
    last: int = 20
    repository: Path = Path()


def check(store: Store, record: RunRecord, options: CheckOptions) -> Check:
    """Judge a run by earlier ones.

    Raises:
        UsageError: `main` is asked for outside a repository, or there is no such branch.
        StoreError: The history cannot be read.
    """
    run, _ = entry_from(record)
    unfit, other = _explain_unfit(run, record), options.other
    if not unfit and other is not None and (reason := _explain_incomparable(record, other)):
        return _result(run, options, CheckVerdict.NOT_COMPARABLE, reason)
    against = entry_from(other)[0] if other else None
    earlier = _earlier(store, run, options, fit=True)
    # Outputs are right or wrong whatever disturbed the times.
    past = earlier if run.outputs_ok is not False else _earlier(store, run, options, fit=False)
    found: tuple[MetricFinding, ...] = ()
    if not unfit:
        judged_metrics = judge_metrics(run, earlier, options.max_slowdown_percent, against)
        found = (*judged_metrics, *_zeros(run))
    if not (unfit and against):
        found = (*found, *judge_outputs(run, [against] if against else past))
    worse = [one for one in found if one.kind is FindingKind.REGRESSED]
    if unfit and not worse:
        return _result(run, options, CheckVerdict.NOT_JUDGED, unfit)
    passed = _result(run, options, CheckVerdict.PASSED, "no number is worse than it may be")
    judged = passed.model_copy(
        update={
            "against": _describe_baseline(options, len(past)),
            "findings": found,
            "earlier": tuple(entry.run_id for entry in past),
        }
    )
    if worse:
        return judged.model_copy(
            update={"verdict": CheckVerdict.REGRESSED, "reason": describe_regressions(worse)}
        )
    if against is None and len(earlier) < MIN_HISTORY:
        reason = _too_few(store, run, options, len(earlier))
        return judged.model_copy(
            update={"verdict": CheckVerdict.NOT_ENOUGH_HISTORY, "reason": reason}
        )
    for one in found:
        if one.metric in HEADLINES and one.kind is FindingKind.NOT_JUDGED:
            reason = f"{metric_title(one.metric)}: {one.reason}"
            return judged.model_copy(update={"verdict": CheckVerdict.NOT_JUDGED, "reason": reason})
    return judged


def to_judgement(found: Check) -> Judgement | None:
    """What the history notes of a check; None where nothing was judged."""
    if found.verdict is CheckVerdict.PASSED:
        return Judgement.PASSED
    return Judgement.REGRESSED if found.verdict is CheckVerdict.REGRESSED else None


def _result(run: HistoryEntry, options: CheckOptions, verdict: CheckVerdict, reason: str) -> Check:
    return Check(
        run_id=run.run_id,
        against=_describe_baseline(options, options.last),
        verdict=verdict,
        reason=reason,
        max_slowdown_percent=options.max_slowdown_percent,
        needed=0 if options.other else MIN_HISTORY,
    )


def _describe_baseline(options: CheckOptions, runs: int) -> str:
    if options.other is not None:
        return options.other.run_id
    which = {MAIN: " of the branch main", LAST_GOOD: " that no check found worse"}
    what = "comparable run" if runs == 1 else f"{runs} comparable runs"
    return f"the last {what}{which.get(options.against or '', '')}"


def _explain_unfit(run: HistoryEntry, record: RunRecord) -> str:
    """Why a run's times say nothing; empty where they do."""
    if record.simulated:
        return f"it was simulated by {record.simulated.by}, so it has no times"
    return f"it was disturbed: {run.disturbed}" if run.disturbed else ""


def _explain_incomparable(record: RunRecord, other: RunRecord) -> str:
    if why := explain_differences(series_from(record), series_from(other)):
        return "; ".join(why)
    if record.run_id == other.run_id:
        return "it is the same run"
    reason = _explain_unfit(entry_from(other)[0], other)
    return f"of the other run: {reason}" if reason else ""


_LEFT_OUT = {
    MAIN: "their recipes were not committed on the branch main",
    LAST_GOOD: "a check found them worse",
}


def _too_few(store: Store, run: HistoryEntry, options: CheckOptions, earlier: int) -> str:
    """How many runs are missing, and which the baseline leaves out."""
    reason = f"{earlier} comparable runs before it are in the history, and {MIN_HISTORY} are needed"
    if options.against is None:
        return reason
    found = len(_comparable(store, run, options, fit=True))
    if found <= earlier:
        return reason
    why = _LEFT_OUT[options.against]
    return f"{reason}; {found - earlier} of {found} are left out, since {why}"


def _earlier(
    store: Store, run: HistoryEntry, options: CheckOptions, *, fit: bool
) -> list[HistoryEntry]:
    """The runs that it is judged by, the earliest first; with `fit` those whose numbers count."""
    found = _comparable(store, run, options, fit=fit)
    on_main = find_commits_on_main(options.repository, found) if options.against == MAIN else ()
    return select_baseline(found, options.against, on_main)[-options.last :]


def _comparable(
    store: Store, run: HistoryEntry, options: CheckOptions, *, fit: bool
) -> list[HistoryEntry]:
    from etdeploy.history.store.store import Filter

    query = Filter(series=run.series, until=run.started_at, fit=fit)
    many = options.last * (_LOOK_BACK if options.against else 1) + 1
    own = {run.run_id, options.other.run_id if options.other else ""}
    return [entry for entry in store.entries(query, many) if entry.run_id not in own]


def select_baseline(
    entries: Sequence[HistoryEntry], against: str | None, on_main: Collection[str] = ()
) -> list[HistoryEntry]:
    """Those of earlier runs that a run is judged by.

    Args:
        entries: Comparable runs.
        against: As `CheckOptions` has it.
        on_main: The commits on the branch main, where it is asked for: `find_commits_on_main`.
    """
    if against == LAST_GOOD:
        return [entry for entry in entries if entry.judgement is not Judgement.REGRESSED]
    if against == MAIN:
        return [e for e in entries if e.git_revision in on_main and not e.git_dirty]
    return list(entries)


def find_commits_on_main(repository: Path, entries: Iterable[HistoryEntry]) -> set[str]:
    """Which of the runs' commits are on the branch main.

    Args:
        repository: A folder in the recipe's repository.
        entries: Runs; a commit of several is looked for once.

    Raises:
        UsageError: There is no branch main.
    """
    branch = next((name for name in _BRANCHES if _exists(repository, name)), None)
    if branch is None:
        raise UsageError(
            f"none of the branches {', '.join(_BRANCHES)} is here",
            place=str(repository.absolute()),
            remedy="Run it in the recipe's repository; where only one branch was fetched:\n"
            "git fetch origin main:refs/remotes/origin/main",
        )
    ask = ("merge-base", "--is-ancestor")
    return {
        revision
        for revision in {entry.git_revision for entry in entries if entry.git_revision}
        if _REVISION.fullmatch(revision) and run_git(repository, *ask, revision, branch) is not None
    }


def _exists(repository: Path, branch: str) -> bool:
    verify = ("rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}")
    return run_git(repository, *verify) is not None


OUTPUTS = "outputs"
# Of the first number: outside of what 95 of 100 unchanged runs stay in.
_Z = 1.96
# Of each other number. There are several, and each could be far away by chance.
_Z_OTHERS = 3.0
_MIN_SPREAD = 0.002


def judge_metrics(
    run: HistoryEntry,
    earlier: Sequence[HistoryEntry],
    max_slowdown_percent: float,
    against: HistoryEntry | None = None,
) -> tuple[MetricFinding, ...]:
    """What is found of each number of a run; `outputs_finding` has what is found of its outputs."""
    found = [
        _judge(metric, value, earlier, max_slowdown_percent, against)
        for metric, value in run.metrics.items()
        if value > 0
    ]
    return tuple(found)


def _zeros(run: HistoryEntry) -> Iterator[MetricFinding]:
    for metric, value in run.metrics.items():
        if value <= 0 and metric in HEADLINES:
            yield _not_judged(metric, value, "it is 0, which nothing can be compared with")


def current_level(values: Sequence[float]) -> Sequence[float]:
    """Those since the last change of level, where that are enough; else all."""
    found = find_level_shifts(values)
    since = values[found[-1].index :] if found else values
    return since if len(since) >= MIN_HISTORY else values


def _judge(
    metric: str,
    value: float,
    earlier: Sequence[HistoryEntry],
    max_slowdown_percent: float,
    against: HistoryEntry | None,
) -> MetricFinding:
    having = [entry for entry in earlier if entry.metrics.get(metric, 0) > 0]
    values = current_level([entry.metrics[metric] for entry in having])
    if against is not None:
        if against.metrics.get(metric, 0) <= 0:
            return _not_judged(metric, value, "the other run does not have it")
        expected = against.metrics[metric]
        away = _deviation_from_one(value, expected, values)
    elif len(values) < MIN_HISTORY:
        why = f"{len(values)} earlier runs have it, and {MIN_HISTORY} are needed"
        return _not_judged(metric, value, why)
    else:
        expected = median(values)
        away = deviation_from_history(
            value, values, _start_spread(having) if metric in HEADLINES else 0.0
        )
    kind = _kind(metric, away, max_slowdown_percent)
    return MetricFinding(
        metric=metric,
        kind=kind,
        value=value,
        expected=expected,
        ratio=away.ratio,
        z=away.z,
        earlier=len(values),
        reason=_reason(metric, kind, value, expected, away, max_slowdown_percent),
    )


def _deviation_from_one(value: float, other: float, values: Sequence[float]) -> HistoryDeviation:
    """Two single values: each is as far from the truth as the history's are."""
    if len(values) >= MIN_HISTORY:
        seen = deviation_from_history(value, values)
        # Its bounds are around a median of many, these around a single value.
        reach = math.log((seen.ratio.high or 1.0) / seen.ratio.median) * math.sqrt(2)
    else:
        reach = _Z * BETWEEN_RECORDS * math.sqrt(2)
    reach = max(reach, _Z * _MIN_SPREAD)
    away = math.log(value / other)
    ratio = Ratio(median=math.exp(away), low=math.exp(away - reach), high=math.exp(away + reach))
    return HistoryDeviation(ratio, away / reach * _Z, len(values))


def _start_spread(entries: Sequence[HistoryEntry]) -> float:
    """What the spread between starts gives to a run's median, as a logarithm."""
    spreads = [
        entry.spread_percent / 100 / math.sqrt(entry.starts)
        for entry in entries
        if entry.spread_percent is not None
    ]
    return median(spreads) if spreads else 0.0


def _kind(metric: str, away: HistoryDeviation, max_slowdown_percent: float) -> FindingKind:
    sure = _Z if metric in HEADLINES else _Z_OTHERS
    allowed = 1 + max_slowdown_percent / 100
    if away.ratio.median > allowed and away.z >= sure:
        return FindingKind.REGRESSED
    if away.ratio.median < 1 / allowed and away.z <= -sure:
        return FindingKind.IMPROVED
    return FindingKind.NO_DIFFERENCE


def _reason(
    metric: str,
    kind: FindingKind,
    value: float,
    expected: float,
    away: HistoryDeviation,
    max_slowdown_percent: float,
) -> str:
    percent = 100 * (away.ratio.median - 1)
    now, before = format_metric(metric, value), format_metric(metric, expected)
    what = f"{now} instead of {before}, {percent:+.1f} %"
    if kind is not FindingKind.NO_DIFFERENCE:
        return f"{what}, {abs(away.z):.1f} standard deviations between runs"
    if abs(percent) <= max_slowdown_percent:
        return what
    return f"{what}: within normal run-to-run variation"


def judge_outputs(run: HistoryEntry, others: Sequence[HistoryEntry]) -> Iterator[MetricFinding]:
    """What is found of a run's outputs; nothing where none of the others' were right."""
    if run.outputs_ok is None or not any(entry.outputs_ok for entry in others):
        return
    kind = FindingKind.NO_DIFFERENCE if run.outputs_ok else FindingKind.REGRESSED
    reason = "right" if run.outputs_ok else "wrong, and they were right before"
    yield MetricFinding(metric=OUTPUTS, kind=kind, earlier=len(others), reason=reason)


def _not_judged(metric: str, value: float, reason: str) -> MetricFinding:
    return MetricFinding(metric=metric, kind=FindingKind.NOT_JUDGED, value=value, reason=reason)


def describe_regressions(found: Sequence[MetricFinding]) -> str:
    """What regressed, in one sentence."""
    return "; ".join(
        f"{metric_title(each.metric)} {'are' if each.metric == OUTPUTS else 'is'} {each.reason}"
        for each in found
    )
