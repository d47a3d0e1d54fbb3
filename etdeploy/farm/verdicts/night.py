"""Judges every recipe on every device of a night by earlier nights in the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import UsageError
from etdeploy.farm.model import VisitState
from etdeploy.farm.spec.model import Baseline, Farm
from etdeploy.farm.verdicts.alerts import next_alerts, with_alert
from etdeploy.farm.verdicts.pair import (
    Gap,
    MetricResult,
    NightFinding,
    PairHistory,
    PairVerdict,
    Since,
    VerdictKind,
    compare_metrics,
    date_change,
    gap_of,
    is_blocked,
    judge_metric,
    judge_outputs,
    left_out_text,
    reason_not_judged,
    show_disturbed,
    show_zeros,
    worst_kind,
)
from etdeploy.farm.verdicts.rule import MIN_NIGHTS, is_headline_metric, shared_correlation
from etdeploy.history.alerts import Alert, AlertState
from etdeploy.history.check import (
    LAST_GOOD,
    MAIN,
    OUTPUTS,
    find_commits_on_main,
    select_baseline,
)
from etdeploy.history.entry import HistoryEntry, Judgement
from etdeploy.history.series import HEADLINES, metric_title
from etdeploy.history.trend import Night, group_by_night

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store

# Earlier nights that count.
_NIGHTS = 60
_RUNS_A_NIGHT = 5
# Of the branch main there may be one run in several.
_LOOK_BACK = 3
# Devices on which a recipe is slower at once, and the share of them; with so many earlier nights.
_FEWEST_TOGETHER, _NEARLY_ALL, _FEWEST_TOGETHER_NIGHTS = 3, 0.8, 8
_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)
_AGAINST = {Baseline.ALL: None, Baseline.MAIN: MAIN, Baseline.LAST_GOOD: LAST_GOOD}


@dataclass(frozen=True)
class _KnownPair:
    """A pair of the night with its history; `problem` says why it has none."""

    recipe: str
    identity: str
    run_ids: tuple[str, ...]
    device: str = ""
    device_name: str = ""
    recipe_file: str = ""
    series: str = ""
    pair: PairHistory | None = None
    problem: str = ""


def judge_night(
    store: Store,
    night: str,
    states: Sequence[VisitState],
    farm: Farm,
    files: Mapping[str, Path] | None = None,
) -> tuple[PairVerdict, ...]:
    """Judge what was measured in a night; the worst pair first, none for a pair without a record.

    Args:
        store: The history, with the records of the night.
        night: Its id; visits of other nights are left out.
        states: Of its visits.
        farm: What a night is judged by, and how much worse a number may be.
        files: The recipes' files, by label: for the branch main of their repository, and for
            remedies.

    Raises:
        StoreError: The history cannot be read.
    """
    known = _load_pairs(store, farm, _runs_of(night, states), files or {})
    allowed = farm.max_slowdown_percent
    of_series = _alerts_of(store, [each.series for each in known])
    known = [_with_accepted(each, of_series.get(each.series, [])) for each in known]
    results = [compare_metrics(each.pair) if each.pair else [] for each in known]
    correlated = _correlations(known, results)
    together = _slower_together(known, results, allowed)
    verdicts = [
        _verdict(
            pair,
            [
                with_alert(
                    judge_metric(
                        each,
                        allowed,
                        correlated=correlated[pair.identity, each.metric],
                        together=together.get((pair.recipe, each.metric), 0),
                    ),
                    of_series.get(pair.series, []),
                    allowed,
                )
                for each in found
            ],
            farm,
        )
        for pair, found in zip(known, results, strict=True)
    ]
    return tuple(sorted(verdicts, key=_badness))


def save_verdicts(store: Store, verdicts: Sequence[PairVerdict]) -> None:
    """Save the verdicts in the history, as `etdeploy check` does; `last-good` reads them."""
    judged: dict[Judgement, list[str]] = {}
    for verdict in verdicts:
        if verdict.kind not in (VerdictKind.NOT_JUDGED, VerdictKind.SUSPECTED):
            bad = verdict.kind is VerdictKind.REGRESSED
            of_kind = judged.setdefault(Judgement.REGRESSED if bad else Judgement.PASSED, [])
            of_kind.extend(verdict.run_ids)
    for judgement, run_ids in judged.items():
        store.judge(run_ids, judgement)


def save_alerts(
    store: Store, verdicts: Sequence[PairVerdict], farm: Farm, night: str, began: str
) -> list[Alert]:
    """Open the alerts of a night and follow earlier ones; return those that changed."""
    from etdeploy.history.store.alerts import save_alert, stored_alerts
    from etdeploy.history.store.errors import database_now, utc_text

    with store.transaction(writes=True) as connection:
        known = stored_alerts(connection, farm.name, writes=True)
        changed = next_alerts(
            known, verdicts, farm=farm.name, night=night, began=began,
            now=utc_text(database_now(connection)), allowed_percent=farm.max_slowdown_percent,
        )  # fmt: skip
        return [save_alert(connection, alert) for alert in changed]


def _badness(verdict: PairVerdict) -> tuple[int, float, str, str]:
    ratios = [f.ratio.median for f in verdict.findings if f.ratio and f.kind is verdict.kind]
    away = max(ratios, default=1.0)
    return list(VerdictKind).index(verdict.kind), -away, verdict.recipe, verdict.device


def _runs_of(night: str, states: Sequence[VisitState]) -> Mapping[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for state in states:
        ending = state.result
        if ending and ending.run_id and state.visit.id.startswith(f"{night}-"):
            found.setdefault((state.visit.recipe, ending.identity), []).append(ending.run_id)
    return found


def _load_pairs(
    store: Store,
    farm: Farm,
    wanted: Mapping[tuple[str, str], Sequence[str]],
    files: Mapping[str, Path],
) -> list[_KnownPair]:
    """Every pair with its history; what is read are a few statements, however many pairs."""
    measured = store.measured_runs([run_id for run_ids in wanted.values() for run_id in run_ids])
    nights: dict[tuple[str, str], Night] = {}
    for of, run_ids in wanted.items():
        entries = [measured[run_id].entry for run_id in run_ids if run_id in measured]
        entries.sort(key=lambda entry: entry.started_at)
        # A recipe that was changed during the night has two series; the later one is judged.
        if same := tuple(entry for entry in entries if entry.series == entries[-1].series):
            nights[of] = Night(same)
    histories = _histories(store, farm, nights, files)
    found = []
    for of, run_ids in wanted.items():
        (recipe, identity), night = of, nights.get(of)
        if night is None:
            why = "its records are not in the history"
            pair = _KnownPair(recipe, identity, tuple(run_ids), device=identity, problem=why)
        else:
            last = measured[night.entries[-1].run_id]
            history = histories[of]
            pair = _KnownPair(
                recipe=recipe,
                identity=identity,
                run_ids=tuple(entry.run_id for entry in night.entries),
                device=last.device or identity,
                device_name=last.device_name or identity,
                recipe_file=str(files.get(recipe) or ""),
                series=last.entry.series,
                pair=history if isinstance(history, PairHistory) else None,
                problem=history if isinstance(history, str) else "",
            )
        found.append(pair)
    return found


def _histories(
    store: Store,
    farm: Farm,
    nights: Mapping[tuple[str, str], Night],
    files: Mapping[str, Path],
) -> dict[tuple[str, str], PairHistory | str]:
    """The nights that each pair is judged by, or why there are none: no branch main."""
    look_back = 1 if farm.baseline is Baseline.ALL else _LOOK_BACK
    many = _NIGHTS * max(_RUNS_A_NIGHT, farm.repeats) * look_back
    ids = [entry.run_id for night in nights.values() for entry in night.entries]
    every = store.entries_before(ids, many, fit=True)
    # What does not count matters only where something of the night does not.
    odd = [night for night in nights.values() if not all(entry.fit for entry in night.entries)]
    past = store.entries_before([e.run_id for night in odd for e in night.entries], many)
    folders: dict[Path, list[HistoryEntry]] = {}
    if farm.baseline is Baseline.MAIN:
        for of, night in nights.items():
            key, folder = night.entries[0].series, _folder(files.get(of[0]))
            folders.setdefault(folder, []).extend((*every.get(key, ()), *past.get(key, ())))
    on_main = {folder: _commits_on_main(folder, entries) for folder, entries in folders.items()}
    found: dict[tuple[str, str], PairHistory | str] = {}
    for of, night in nights.items():
        commits = on_main.get(_folder(files.get(of[0])), set())
        if isinstance(commits, str):
            found[of] = commits
            continue
        key = night.entries[0].series
        fit = every.get(key, [])
        found[of] = _pair_history(night, fit, past.get(key, fit), farm.baseline, commits)
    return found


def _folder(file: Path | None) -> Path:
    return file.parent if file else Path()


def _commits_on_main(folder: Path, entries: Sequence[HistoryEntry]) -> set[str] | str:
    try:
        return find_commits_on_main(folder, entries)
    except UsageError as error:
        return str(error.message)


def _pair_history(
    night: Night,
    every: Sequence[HistoryEntry],
    past: Sequence[HistoryEntry],
    baseline: Baseline,
    on_main: set[str],
) -> PairHistory:
    """The night with those before it that it is judged by."""
    against = _AGAINST[baseline]
    all_nights = group_by_night(every)
    nights = group_by_night(select_baseline(every, against, on_main)) if against else all_nights
    is_wrong = any(entry.outputs_ok is False for entry in night.entries)
    return PairHistory(
        night,
        tuple(nights[-_NIGHTS:]),
        tuple(all_nights[-_NIGHTS * _LOOK_BACK :]),
        nights=len(all_nights if past is every else group_by_night(past)),
        were_right=is_wrong and any(e.outputs_ok for e in select_baseline(past, against, on_main)),
    )


def _alerts_of(store: Store, series: Sequence[str]) -> dict[str, list[Alert]]:
    """The alerts of each series, the latest first."""
    from etdeploy.history.store.alerts import alerts_of_series

    with store.transaction() as connection:
        return alerts_of_series(connection, series)


def _with_accepted(known: _KnownPair, alerts: Sequence[Alert]) -> _KnownPair:
    """With the levels that were accepted: the latest of each metric."""
    accepted = {
        each.metric: each.first_bad_at
        for each in reversed(alerts)
        if each.state is AlertState.ACCEPTED
    }
    if not known.pair or not accepted:
        return known
    return replace(known, pair=replace(known.pair, accepted=accepted))


def _correlations(
    known: Sequence[_KnownPair], results: Sequence[Sequence[MetricResult]]
) -> Mapping[tuple[str, str], float]:
    """How much neighbouring nights of a device are alike, by its identity and a metric.

    What makes them alike, as heat and a charging battery do, is the device's and not a recipe's.
    """
    series: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for pair, found in zip(known, results, strict=True):
        for each in found:
            series.setdefault((pair.identity, each.metric), []).append(each.levels)
    return {of: shared_correlation(levels) for of, levels in series.items()}


def _slower_together(
    known: Sequence[_KnownPair], results: Sequence[Sequence[MetricResult]], allowed: float
) -> dict[tuple[str, str], int]:
    """On how many devices a recipe is slower than in any night before, where nearly all are.

    Devices are independent of each other: if one night in 20 is the worst by chance, then on three
    devices one in 8,000 is. By the recipe and a metric.
    """
    found: dict[tuple[str, str], list[bool]] = {}
    for pair, of_pair in zip(known, results, strict=True):
        for each in of_pair:
            if (away := each.deviation) and len(each.earlier) >= _FEWEST_TOGETHER_NIGHTS:
                worst = max(each.levels[:-1], default=0.0) < away.value
                slower = worst and away.is_worse(each.metric, allowed)
                found.setdefault((pair.recipe, each.metric), []).append(slower)
    return {
        of: sum(slower)
        for of, slower in found.items()
        if sum(slower) >= max(_FEWEST_TOGETHER, _NEARLY_ALL * len(slower))
    }


def _verdict(known: _KnownPair, findings: list[NightFinding], farm: Farm) -> PairVerdict:
    pair, problem, without = known.pair, known.problem, ""
    if pair:
        findings += [*show_zeros(pair), *show_disturbed(pair), *judge_outputs(pair)]
        problem = problem or reason_not_judged(pair) or _left_out_by_baseline(pair, farm)
        without = left_out_text(pair)
    kind = worst_kind(findings)
    # Right outputs alone say nothing about the times, and neither does the size of a program.
    numbers = {each.kind for each in findings if each.metric != OUTPUTS}
    heads = {each.kind for each in findings if is_headline_metric(each.metric)}
    if kind is VerdictKind.NO_DIFFERENCE and (heads or numbers) <= {VerdictKind.NOT_JUDGED}:
        kind = VerdictKind.NOT_JUDGED
    not_judged = kind is VerdictKind.NOT_JUDGED
    bad = [each for each in findings if each.kind is kind and kind in _BAD]
    began = date_change(pair, bad[0].metric) if pair and bad and bad[0].metric != OUTPUTS else None
    return PairVerdict(
        recipe=known.recipe, identity=known.identity, device=known.device, series=known.series,
        run_ids=known.run_ids, kind=kind, findings=tuple(findings),
        reason="; ".join(filter(None, (*_reasons(kind, findings, problem), without))),
        since=began, remedy=_remedy(known, bad, began),
        blocked=not_judged and (pair is None or is_blocked(pair)),
        gap=(gap_of(pair) if pair else Gap.OTHER) if not_judged else None,
    )  # fmt: skip


def _left_out_by_baseline(pair: PairHistory, farm: Farm) -> str:
    """Why the baseline has too few nights; empty where it is not the reason."""
    left_out = len(pair.every) - len(pair.earlier)
    if not pair.fit.entries or len(pair.earlier) >= MIN_NIGHTS or left_out <= 0:
        return ""
    nights = f"{left_out} of {count(len(pair.every), 'earlier night')}"
    why = {
        Baseline.MAIN: "their recipes were not committed on the branch main",
        Baseline.LAST_GOOD: "they regressed",
    }
    return f"baseline {farm.baseline} leaves out {nights}, since {why[farm.baseline]}"


def _reasons(kind: VerdictKind, findings: Sequence[NightFinding], problem: str) -> Iterator[str]:
    if kind in (*_BAD, VerdictKind.IMPROVED):
        for each in findings:
            if each.kind is kind:
                verb = "are" if each.metric == OUTPUTS else "is"
                yield f"{metric_title(each.metric)} {verb} {each.reason}"
    elif problem:
        yield problem
    elif kind is VerdictKind.NOT_JUDGED:
        unjudged = [f for f in findings if f.kind is kind and f.reason]
        yield next((each.reason for each in unjudged), "there is no number")
    else:
        yield "no number is worse than it may be"


def _remedy(known: _KnownPair, bad: Sequence[NightFinding], began: Since | None) -> str:
    """The command that looks for the cause."""
    if not bad:
        return ""
    if began is None:
        return f"etdeploy report {quoted(known.run_ids[-1])}"
    if not began.commits:
        return f"etdeploy compare {quoted(began.before_run_id)} {quoted(began.run_id)}"
    metric = "" if began.metric in HEADLINES else f" --metric {quoted(began.metric)}"
    return (
        f"etdeploy farm bisect --recipe {quoted(known.recipe_file or known.recipe)} "
        f"--device {quoted(known.device_name)} --good {str(began.old_revision)[:12]} "
        f"--bad {str(began.new_revision)[:12]}{metric}"
    )
