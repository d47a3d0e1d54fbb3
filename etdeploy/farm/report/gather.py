"""Puts a night's report together; nothing is read here but by `trends_of`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from etdeploy.farm.model import STOPPED, AttemptFailure, AttemptResult, Fate, Standing, VisitState
from etdeploy.farm.report.model import (
    DeviceNight,
    FailureGroup,
    NightInfo,
    NightReport,
    Totals,
    VisitReference,
)
from etdeploy.farm.verdicts.model import PairVerdict, VerdictKind
from etdeploy.history.model import Trend

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store

MISSED = "missed"
_UNKNOWN = "the visit failed, and nothing was told about it"
_TREND_RUNS = 60
# What differs between two messages of one cause: numbers, addresses, digests.
_LOG = "\nlog: "
_VARIES = re.compile(r"\b(0x)?[0-9a-f]{6,}\b|\d+(\.\d+)*")


def report_of(
    night: NightInfo,
    states: Sequence[VisitState],
    verdicts: Sequence[PairVerdict] = (),
    quarantined: Mapping[str, str] | None = None,
    trends: Sequence[Trend] = (),
    labels: Mapping[str, str] | None = None,
) -> NightReport:
    """A night's report."""
    names = dict(labels or {}) | {each.identity: each.device for each in verdicts}
    failed = [s for s in states if s.standing is Standing.FAILED or _wrong(s)]
    missed = [state for state in states if state.standing is Standing.MISSED]
    done = [state for state in states if state.standing is Standing.DONE]
    return NightReport(
        night=night,
        totals=_totals(states, verdicts),
        verdicts=tuple(verdicts),
        failures=_causes(failed, names),
        missed=_causes(missed, names),
        devices=_devices(states, names, quarantined or {}),
        done=tuple(_place(state, names) for state in done),
        trends=tuple(trends),
    )


def trends_of(store: Store, verdicts: Sequence[PairVerdict]) -> tuple[Trend, ...]:
    """The trend of each verdict's series: of the number that is worse, else of the first one."""
    from etdeploy.history.model import trend_of
    from etdeploy.history.store.store import Filter

    found = []
    for verdict in verdicts:
        known = store.series(Filter(series=verdict.series)) if verdict.series else []
        for one in known:
            entries = store.entries(Filter(series=verdict.series), _TREND_RUNS)
            metric = verdict.since.metric if verdict.since else one.series.metric
            found.append(trend_of(one.series, entries, metric, one.runs))
    return tuple(found)


def _wrong(state: VisitState) -> bool:
    """Whether it was measured and its outputs differ."""
    return state.result is not None and state.result.failure is not None


def _totals(states: Sequence[VisitState], verdicts: Sequence[PairVerdict]) -> Totals:
    standing = Counter(state.standing for state in states)
    kinds = Counter(verdict.kind for verdict in verdicts)
    return Totals(
        visits=len(states),
        done=standing[Standing.DONE],
        failed=standing[Standing.FAILED],
        missed=standing[Standing.MISSED],
        waiting=standing[Standing.WAITING] + standing[Standing.RUNNING],
        regressed=kinds[VerdictKind.REGRESSED],
        suspected=kinds[VerdictKind.SUSPECTED],
        improved=kinds[VerdictKind.IMPROVED],
        not_judged=kinds[VerdictKind.NOT_JUDGED],
    )


def _causes(states: Sequence[VisitState], names: Mapping[str, str]) -> tuple[FailureGroup, ...]:
    groups: dict[tuple[str, str], list[tuple[AttemptFailure, VisitState]]] = {}
    of_recipe = {s.visit.recipe: e.failure for s in states for e in s.attempts if e.failure}
    for state in states:
        failure = _failure(state, of_recipe.get(state.visit.recipe))
        message = failure.message.partition(_LOG)[0]
        groups.setdefault((failure.kind, _alike(message)), []).append((failure, state))
    causes = [
        FailureGroup(
            kind=group[0][0].kind,
            message=group[0][0].message,
            remedy=next((failure.remedy for failure, _ in group if failure.remedy), ""),
            exit_code=max(failure.exit_code for failure, _ in group),
            places=tuple(_place(state, names) for _, state in group),
        )
        for group in groups.values()
    ]
    return tuple(sorted(causes, key=lambda cause: (-len(cause.places), cause.message)))


def _failure(state: VisitState, of_recipe: AttemptFailure | None) -> AttemptFailure:
    """Why a visit was not measured, or not well."""
    if state.standing is Standing.MISSED:
        return AttemptFailure(kind=MISSED, exit_code=0, message=state.reason or "nobody said why")
    told = [ending.failure for ending in state.attempts if ending.failure]
    if state.result and state.result.failure:
        return state.result.failure
    last = told[-1] if told else of_recipe
    if last and state.reason.startswith(STOPPED):
        _, log, path = last.message.partition(_LOG)
        return last.model_copy(update={"message": f"{state.reason}{log}{path}"})
    if told:
        return told[-1]
    return AttemptFailure(kind="error", exit_code=9, message=state.reason or _UNKNOWN)


def _alike(message: str) -> str:
    return _VARIES.sub("#", message)


def _place(state: VisitState, names: Mapping[str, str]) -> VisitReference:
    last = state.result or (state.attempts[-1] if state.attempts else None)
    identity = last.identity if last else state.visit.device
    return VisitReference(
        visit=state.visit.id,
        recipe=state.visit.recipe,
        device=names.get(identity, identity) if identity else f"any of {state.visit.group}",
        identity=identity,
        repeat=state.visit.repeat,
        attempts=len(state.attempts),
        seconds=sum(ending.seconds for ending in state.attempts),
    )


def _devices(
    states: Sequence[VisitState], names: Mapping[str, str], quarantined: Mapping[str, str]
) -> tuple[DeviceNight, ...]:
    visits: dict[str, list[VisitState]] = {identity: [] for identity in quarantined}
    endings: dict[str, list[AttemptResult]] = {}
    for state in states:
        last = state.result or (state.attempts[-1] if state.attempts else None)
        identity = last.identity if last else state.visit.device
        if identity:
            visits.setdefault(identity, []).append(state)
        for ending in state.attempts:
            endings.setdefault(ending.identity, []).append(ending)
            visits.setdefault(ending.identity, [])
    found = [
        _device(identity, of, endings.get(identity, []), names, quarantined.get(identity, ""))
        for identity, of in visits.items()
    ]
    return tuple(sorted(found, key=lambda device: (device.label, device.identity)))


def _device(
    identity: str,
    states: Sequence[VisitState],
    endings: Sequence[AttemptResult],
    names: Mapping[str, str],
    quarantined: str,
) -> DeviceNight:
    standing, fates = Counter(s.standing for s in states), Counter(e.fate for e in endings)
    healths = [ending.health for ending in endings if ending.health]
    warm = [h.temperature_celsius for h in healths if h.temperature_celsius is not None]
    return DeviceNight(
        identity=identity,
        label=names.get(identity, identity),
        host=endings[-1].host if endings else "",
        done=standing[Standing.DONE],
        failed=standing[Standing.FAILED],
        missed=standing[Standing.MISSED],
        waiting=standing[Standing.WAITING] + standing[Standing.RUNNING],
        lost=fates[Fate.LOST],
        put_off=fates[Fate.PUT_OFF],
        health=healths[-1] if healths else None,
        warmest_celsius=max(warm, default=None),
        quarantined=quarantined,
    )
