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
from etdeploy.farm.verdicts.pair import (
    ORDER,
    Look,
    Night,
    NightFinding,
    PairHistory,
    PairVerdict,
    Since,
    VerdictKind,
    by_night,
    disturbed_of,
    families,
    finding_of,
    is_blocked,
    left_out,
    looks,
    outputs_of,
    since,
    why_not,
    worst,
)
from etdeploy.history.check import LAST_GOOD, MAIN, OUTPUTS, baseline
from etdeploy.history.entry import HistoryEntry, Judgement
from etdeploy.history.series import HEADLINES, title

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store


NIGHTS = 20
"""So many earlier nights are looked at."""
_RUNS_A_NIGHT = 10
# Of the branch main there may be one run in several.
_LOOK_BACK = 5
_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)
_AGAINST = {Baseline.ALL: None, Baseline.MAIN: MAIN, Baseline.LAST_GOOD: LAST_GOOD}


@dataclass(frozen=True)
class _Known:
    """A pair of the night with what the history has of it."""

    recipe: str
    identity: str
    run_ids: tuple[str, ...]
    device: str = ""
    device_name: str = ""
    recipe_file: str = ""
    series: str = ""
    pair: PairHistory | None = None
    trouble: str = ""


def judge_night(
    store: Store,
    night: str,
    states: Sequence[VisitState],
    farm: Farm,
    files: Mapping[str, Path] | None = None,
) -> tuple[PairVerdict, ...]:
    """Judges what was measured in a night; a pair that gave no record has no verdict.

    Args:
        store: The history, with the records of the night.
        night: Its id; visits of other nights are left out.
        states: Of its visits.
        farm: What a night is judged by, and how much worse a number may be.
        files: The recipes' files, by label: for the branch main of their repository, and for
            remedies.

    Returns:
        A verdict for each recipe on each device, the worst first.

    Raises:
        StoreError: The history cannot be read.
    """
    files = files or {}
    known = [
        _known(store, farm, pair, run_ids, files.get(pair[0]))
        for pair, run_ids in _runs_of(night, states).items()
    ]
    looked = [looks(each.pair, farm.max_slowdown_percent) if each.pair else [] for each in known]
    found_sure = _sure([look for each in looked for look in each])
    verdicts = []
    for each, found in zip(known, looked, strict=True):
        part, found_sure = found_sure[: len(found)], found_sure[len(found) :]
        verdicts.append(_verdict(each, found, part, farm))
    return tuple(sorted(verdicts, key=_badness))


def save_verdicts(store: Store, verdicts: Sequence[PairVerdict]) -> None:
    """Save the verdicts in the history, as `etdeploy check` does; `last-good` reads them."""
    for verdict in verdicts:
        if verdict.kind in (VerdictKind.NOT_JUDGED, VerdictKind.SUSPECTED):
            continue
        bad = verdict.kind is VerdictKind.REGRESSED
        for run_id in verdict.run_ids:
            store.judge(run_id, Judgement.REGRESSED if bad else Judgement.PASSED)


def _badness(verdict: PairVerdict) -> tuple[int, float, str, str]:
    ratios = [f.ratio.median for f in verdict.findings if f.ratio and f.kind is verdict.kind]
    away = max(ratios, default=1.0)
    return ORDER.index(verdict.kind), -away, verdict.recipe, verdict.device


def _runs_of(night: str, states: Sequence[VisitState]) -> Mapping[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for state in states:
        ending = state.result
        if ending and ending.run_id and state.visit.id.startswith(f"{night}-"):
            found.setdefault((state.visit.recipe, ending.identity), []).append(ending.run_id)
    return found


def _known(
    store: Store, farm: Farm, of: tuple[str, str], run_ids: list[str], file: Path | None
) -> _Known:
    recipe, identity = of
    entries = [entry for entry in map(store.entry, run_ids) if entry]
    if not entries:
        why = "its records are not in the history"
        return _Known(recipe, identity, tuple(run_ids), device=identity, trouble=why)
    entries.sort(key=lambda entry: entry.started_at)
    last = entries[-1]
    # A recipe that was changed during the night has two series; the later one is judged.
    night = Night(tuple(entry for entry in entries if entry.series == last.series))
    content = store.content(last.run_id) or {}
    facts = content.get("device", {}).get("facts", {})
    told = _Known(
        recipe=recipe,
        identity=identity,
        run_ids=tuple(entry.run_id for entry in night.entries),
        device=_label(store, last.series) or identity,
        device_name=str(facts.get("name") or identity),
        recipe_file=str(file or ""),
        series=last.series,
    )
    try:
        pair = _pair(store, farm, night, file.parent if file else Path())
    except UsageError as error:  # no branch main
        return replace(told, trouble=str(error.message))
    return replace(told, pair=pair)


def _label(store: Store, series: str) -> str:
    from etdeploy.history.store.store import Filter

    found = store.series(Filter(series=series))
    return found[0].series.device.label if found else ""


def _pair(store: Store, farm: Farm, night: Night, repository: Path) -> PairHistory:
    """The night with those before it that it is judged by."""
    against = _AGAINST[farm.baseline]
    every = past = _before(store, farm, night, fit=True)
    if not all(entry.fit for entry in night.entries):
        past = _before(store, farm, night, fit=False)
    nights, all_nights = by_night(baseline(every, against, repository)), by_night(every)
    is_wrong = any(entry.outputs_ok is False for entry in night.entries)
    return PairHistory(
        night,
        tuple(nights[-NIGHTS:]),
        tuple(all_nights[-NIGHTS * _LOOK_BACK :]),
        nights=len(by_night(past)),
        were_right=is_wrong and any(e.outputs_ok for e in baseline(past, against, repository)),
    )


def _before(store: Store, farm: Farm, night: Night, *, fit: bool) -> list[HistoryEntry]:
    """The runs of the series before a night; with `fit` those whose numbers count."""
    from etdeploy.history.store.store import Filter

    first, own = night.entries[0], {entry.run_id for entry in night.entries}
    wanted = Filter(series=first.series, until=first.started_at, fit=fit)
    look_back = 1 if farm.baseline is Baseline.ALL else _LOOK_BACK
    many = NIGHTS * max(_RUNS_A_NIGHT, farm.repeats) * look_back
    return [entry for entry in store.entries(wanted, many) if entry.run_id not in own]


def _sure(found: Sequence[Look]) -> list[bool]:
    """Which numbers stand out among those of all pairs; first numbers among themselves."""
    told = [False] * len(found)
    for family in families(found):
        discovered = sure([found[i].at_once for i in family], [found[i].twice for i in family])
        for i, one in zip(family, discovered, strict=True):
            told[i] = one
    return told


def _verdict(
    known: _Known, found: Sequence[Look], discovered: Sequence[bool], farm: Farm
) -> PairVerdict:
    pair = known.pair
    reason = known.trouble or (why_not(pair) or _left_out_by_baseline(pair, farm) if pair else "")
    findings: list[NightFinding] = []
    if pair:
        findings += [
            finding_of(look, farm.max_slowdown_percent, discovered=each)
            for look, each in zip(found, discovered, strict=True)
        ]
        findings += disturbed_of(pair)
        findings += outputs_of(pair)
    kind = worst(findings)
    numbers = {each.kind for each in findings if each.metric != OUTPUTS}
    # Right outputs alone say nothing about the times.
    if kind is VerdictKind.NO_DIFFERENCE and numbers <= {VerdictKind.NOT_JUDGED}:
        kind = VerdictKind.NOT_JUDGED
    bad = [each for each in findings if each.kind is kind and kind in _BAD]
    began = since(pair, bad[0].metric) if pair and bad and bad[0].metric != OUTPUTS else None
    return PairVerdict(
        recipe=known.recipe, identity=known.identity, device=known.device, series=known.series,
        run_ids=known.run_ids, kind=kind, findings=tuple(findings),
        reason=_reason(kind, findings, reason, left_out(pair) if pair else ""),
        since=began, remedy=_remedy(known, bad, began),
        blocked=kind is VerdictKind.NOT_JUDGED and (pair is None or is_blocked(pair)),
    )  # fmt: skip


def _left_out_by_baseline(pair: PairHistory, farm: Farm) -> str:
    """Why the baseline has too few nights; empty where it is not the reason."""
    if not pair.fit.entries or not is_blocked(pair):
        return ""
    nights = f"{len(pair.every) - len(pair.earlier)} of {count(len(pair.every), 'earlier night')}"
    why = {
        Baseline.MAIN: "their recipes were not committed on the branch main",
        Baseline.LAST_GOOD: "they regressed",
    }
    return f"baseline {farm.baseline} leaves out {nights}, since {why[farm.baseline]}"


def _reason(kind: VerdictKind, findings: Sequence[NightFinding], trouble: str, without: str) -> str:
    return "; ".join(part for part in (*_told(kind, findings, trouble), without) if part)


def _told(kind: VerdictKind, findings: Sequence[NightFinding], trouble: str) -> Iterator[str]:
    if kind in (*_BAD, VerdictKind.IMPROVED):
        for each in findings:
            if each.kind is kind:
                verb = "are" if each.metric == OUTPUTS else "is"
                yield f"{title(each.metric)} {verb} {each.reason}"
        return
    if trouble:
        yield trouble
        return
    if kind is VerdictKind.NOT_JUDGED:
        yield next((each.reason for each in findings if each.reason), "there is no number")
        return
    yield "no number is worse than it may be"


def _remedy(known: _Known, bad: Sequence[NightFinding], began: Since | None) -> str:
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


FALSE_SHARE = 0.025
"""Of the pairs that are called regressed at once, so many are expected to be false at most; and the
same of those that are called so for two nights."""


def discoveries(chances: Sequence[float], false_share: float = FALSE_SHARE) -> list[bool]:
    """Which of many are no chance, by the step-up procedure of Benjamini and Hochberg (1995).

    It controls the false discovery rate where the numbers are independent or positively
    dependent, as pairs are that share a recipe or a device. A single one needs a chance of at most
    `false_share`; of 200, one that is alone needs 1/200 of that, and each of ten that are worse
    together 10/200: a commit that slows down a recipe everywhere is found as easily as on one.
    """
    ordered = sorted(chances)
    found = [x for i, x in enumerate(ordered, 1) if x <= i * false_share / len(ordered)]
    bound = found[-1] if found else -1.0
    return [x <= bound for x in chances]


def sure(at_once: Sequence[float], twice: Sequence[float]) -> list[bool]:
    """Which of many pairs have regressed, by this night alone or by the last two."""
    found = zip(discoveries(at_once), discoveries(twice), strict=True)
    return [one or two for one, two in found]
