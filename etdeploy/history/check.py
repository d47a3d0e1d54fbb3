"""`etdeploy check`: finds what a run is judged by, and judges it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.bench.records.record import RunRecord
from etdeploy.compare.statistics import MIN_HISTORY
from etdeploy.core import git
from etdeploy.core.errors import UsageError
from etdeploy.history.entry import Entry, Judgement, entry_of
from etdeploy.history.judge import findings, outputs_finding, sentence
from etdeploy.history.model import Check, CheckVerdict, FindingKind
from etdeploy.history.series import differences, series_of

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store

MAIN, LAST_GOOD = "main", "last-good"
# A run's branch is asked of git: so many runs are looked at for each that is wanted.
_LOOK_BACK = 10
_BRANCHES = ("main", "origin/main", "master", "origin/master")
_REVISION = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Question:
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


def check(store: Store, record: RunRecord, question: Question) -> Check:
    """Judges a run by earlier ones.

    Raises:
        UsageError: `main` is asked for outside a repository, or there is no such branch.
        StoreError: The history cannot be read.
    """
    run, _ = entry_of(record)
    unfit, other = _unfit(run, record), question.other
    if not unfit and other is not None and (reason := _incomparable(record, other)):
        return _told(run, question, CheckVerdict.NOT_COMPARABLE, reason)
    against = entry_of(other)[0] if other else None
    earlier = _earlier(store, run, question, fit=True)
    # Outputs are right or wrong whatever disturbed the times.
    past = earlier if run.outputs_ok is not False else _earlier(store, run, question, fit=False)
    found = () if unfit else findings(run, earlier, question.max_slowdown_percent, against)
    if not (unfit and against):
        found = (*found, *outputs_finding(run, [against] if against else past))
    worse = [one for one in found if one.kind is FindingKind.REGRESSED]
    if unfit and not worse:
        return _told(run, question, CheckVerdict.NOT_JUDGED, unfit)
    asked = _told(run, question, CheckVerdict.PASSED, "no number is worse than it may be")
    told = asked.model_copy(
        update={
            "against": _against(question, len(past)),
            "findings": found,
            "earlier": tuple(entry.run_id for entry in past),
        }
    )
    if worse:
        return told.model_copy(
            update={"verdict": CheckVerdict.REGRESSED, "reason": sentence(worse)}
        )
    if against is None and len(earlier) < MIN_HISTORY:
        return told.model_copy(
            update={"verdict": CheckVerdict.NOT_ENOUGH_HISTORY, "reason": _too_few(earlier)}
        )
    return told


def judgement_of(found: Check) -> Judgement | None:
    """What the history notes of a check; None where nothing was judged."""
    if found.verdict is CheckVerdict.PASSED:
        return Judgement.PASSED
    return Judgement.REGRESSED if found.verdict is CheckVerdict.REGRESSED else None


def _told(run: Entry, question: Question, verdict: CheckVerdict, reason: str) -> Check:
    return Check(
        run_id=run.run_id,
        against=_against(question, question.last),
        verdict=verdict,
        reason=reason,
        max_slowdown_percent=question.max_slowdown_percent,
        needed=0 if question.other else MIN_HISTORY,
    )


def _against(question: Question, runs: int) -> str:
    if question.other is not None:
        return question.other.run_id
    which = {MAIN: " of the branch main", LAST_GOOD: " that no check found worse"}
    what = "comparable run" if runs == 1 else f"{runs} comparable runs"
    return f"the last {what}{which.get(question.against or '', '')}"


def _unfit(run: Entry, record: RunRecord) -> str:
    """Why a run's times say nothing; empty where they do."""
    if record.simulated:
        return f"it was simulated by {record.simulated.by}, so it has no times"
    return f"it was disturbed: {run.disturbed}" if run.disturbed else ""


def _incomparable(record: RunRecord, other: RunRecord) -> str:
    if why := differences(series_of(record), series_of(other)):
        return "; ".join(why)
    if record.run_id == other.run_id:
        return "it is the same run"
    reason = _unfit(entry_of(other)[0], other)
    return f"of the other run: {reason}" if reason else ""


def _too_few(earlier: Sequence[Entry]) -> str:
    return (
        f"{len(earlier)} comparable runs before it are in the history, and {MIN_HISTORY} are needed"
    )


def _earlier(store: Store, run: Entry, question: Question, *, fit: bool) -> list[Entry]:
    """The comparable runs before it, the earliest first; with `fit` those whose numbers count."""
    from etdeploy.history.store.store import Filter

    wanted = Filter(series=run.series, until=run.started_at, fit=fit)
    many = question.last * (_LOOK_BACK if question.against else 1) + 1
    found = [entry for entry in store.entries(wanted, many) if entry.run_id != run.run_id]
    if question.other is not None:
        found = [entry for entry in found if entry.run_id != question.other.run_id]
    return baseline(found, question.against, question.repository)[-question.last :]


def baseline(entries: Sequence[Entry], against: str | None, repository: Path) -> list[Entry]:
    """Those of earlier runs that a run is judged by.

    Args:
        entries: Comparable runs.
        against: As a question has it.
        repository: A folder in the recipe's repository, for `main`.

    Raises:
        UsageError: There is no branch main.
    """
    if against == LAST_GOOD:
        return [entry for entry in entries if entry.judgement is not Judgement.REGRESSED]
    if against == MAIN:
        on_main = _on_main(repository, {e.git_revision for e in entries if e.git_revision})
        return [e for e in entries if e.git_revision in on_main and not e.git_dirty]
    return list(entries)


def _on_main(repository: Path, revisions: set[str]) -> set[str]:
    """Which commits are on the branch main.

    Raises:
        UsageError: There is no such branch.
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
        for revision in revisions
        if _REVISION.fullmatch(revision) and git.ask(repository, *ask, revision, branch) is not None
    }


def _exists(repository: Path, branch: str) -> bool:
    verify = ("rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}")
    return git.ask(repository, *verify) is not None
