"""Decides what a night does next. Pure: no clock, no device, no store.

A device measures one visit at a time. Its own visits come first, repeat by repeat, so that the
repeats of a recipe lie apart and the recipes take turns. Visits that may go to several devices go
to the one with the least left to do; those that take longest go first (LPT, Graham 1969: at most
4/3 of the shortest possible night, where the devices are alike).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from etdeploy.device_pool import local_time
from etdeploy.farm.model import UNPLUGGED, AvailableDevice, Fate, Visit, VisitState
from etdeploy.farm.night.failure_attribution import result_text
from etdeploy.farm.night.model import Unavailable, UnavailableKind, listed
from etdeploy.farm.spec.matrix import NightPlan, Unsatisfied
from etdeploy.farm.spec.model import Farm
from etdeploy.history.nights import Quarantined, Reservation

Key = tuple[str, str, "str | None", int]


@dataclass(frozen=True)
class PlanChanges:
    """What a new plan has that the night has not.

    Attributes:
        visits: With ids of their own.
        among: Devices that visits of the night may go to now, by their ids.
    """

    visits: tuple[Visit, ...] = ()
    among: tuple[tuple[str, tuple[str, ...]], ...] = ()


def compare_plans(night: str, known: Iterable[VisitState], planned: Iterable[Visit]) -> PlanChanges:
    """Compares a new plan with what the night has."""
    have = list(known)
    missing = Counter(_key(visit) for visit in planned)
    missing.subtract(Counter(_key(state.visit) for state in have))
    number = max((_number(state.visit.id) for state in have), default=0)
    new, devices = [], {}
    for visit in planned:
        devices[_key(visit)] = visit.among
        if missing[_key(visit)] > 0:
            missing[_key(visit)] -= 1
            number += 1
            new.append(visit.model_copy(update={"id": f"{night}-{number}"}))
    wider = tuple(
        (state.visit.id, devices[_key(state.visit)])
        for state in have
        if state.visit.device is None
        and set(devices.get(_key(state.visit), ())) - set(state.visit.among)
    )
    return PlanChanges(tuple(new), wider)


def unsatisfied_visits(
    night: str, known: Iterable[VisitState], unsatisfied: Iterable[Unsatisfied]
) -> list[tuple[Visit, str]]:
    """A visit, with the reason why it is missed, for each part of the matrix without a device."""
    have = list(known)
    reasons = {(state.visit.recipe, state.visit.group, state.reason) for state in have}
    number = max((_number(state.visit.id) for state in have), default=0)
    missing = [e for e in unsatisfied if (e.recipe, e.group, e.reason) not in reasons]
    return [
        (
            Visit(
                id=f"{night}-{i}",
                recipe=e.recipe,
                group=e.group,
                device=None,
                among=(),
                name=e.device,
            ),
            e.reason,
        )
        for i, e in enumerate(missing, number + 1)
    ]


def with_absent(
    farm: Farm,
    plan: NightPlan,
    seen: Collection[AvailableDevice],
    measured: Iterable[Visit],
) -> tuple[Unsatisfied, ...]:
    """What is unsatisfied in a plan, and devices of earlier nights that were not there in this one.

    Args:
        farm: Its groups; of one that takes a number of devices, none is expected.
        plan: With every device that was there.
        seen: These devices.
        measured: Visits of earlier nights, one for each recipe and device.
    """
    there = {text for o in seen for text in (o.identity, o.name, *o.also)}
    named = {(each.recipe, each.device) for each in plan.unsatisfied}
    absent = [
        Unsatisfied(
            recipe=visit.recipe, group=visit.group, device=visit.name,
            reason=f"it was not there, and was measured in night {visit.id.rpartition('-')[0]}",
        )
        for visit in measured
        if (visit.recipe, visit.group) in farm.pairs
        and farm.groups[visit.group].take is None
        and not there & {visit.device, visit.name}
        and (visit.recipe, visit.name) not in named
    ]  # fmt: skip
    # They say more than that no device matches.
    explained = {(each.recipe, each.group) for each in absent}
    explained -= {(visit.recipe, visit.group) for visit in plan.visits}
    others = [e for e in plan.unsatisfied if e.device or (e.recipe, e.group) not in explained]
    return (*others, *absent)


def _key(visit: Visit) -> Key:
    return (visit.recipe, visit.group, visit.device, visit.repeat)


def _number(visit: str) -> int:
    tail = visit.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def offers_by_recipe(
    visits: Iterable[Visit], offers: Mapping[str, AvailableDevice]
) -> dict[str, Sequence[AvailableDevice]]:
    """The devices that each recipe has to be made for, by its label."""
    found: dict[str, dict[str, AvailableDevice]] = {}
    for visit in visits:
        devices = visit.among if visit.device is None else (visit.device,)
        known = {each: offers[each] for each in devices if each in offers}
        found.setdefault(visit.recipe, {}).update(known)
    return {recipe: tuple(each.values()) for recipe, each in found.items() if each}


UNKNOWN_S = 300.0
"""Taken for an attempt of a recipe that was never measured: all are alike then, and any will do."""


class AttemptDurations:
    """Mean seconds of attempts that were measured, by recipe and device.

    Attributes:
        measured: The latest visit of earlier nights for each recipe and device with a name.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[float, int]] = {}
        self.measured: dict[tuple[str, str], Visit] = {}

    def add(self, recipe: str, identity: str, seconds: float) -> None:
        """Counts an attempt; also for the recipe on devices that never had it."""
        for key in ((recipe, identity), (recipe, "")):
            total, count = self._sums.get(key, (0.0, 0))
            self._sums[key] = (total + seconds, count + 1)

    def learn(self, states: Iterable[VisitState]) -> None:
        """Counts those of a night; the latest night comes first."""
        for state in states:
            visit = state.visit
            if state.result and visit.device and visit.name:
                self.measured.setdefault((visit.recipe, visit.device), visit)
            for ending in state.attempts:
                if ending.fate is Fate.DONE:
                    self.add(state.visit.recipe, ending.identity, ending.seconds)

    def expected_s(self, recipe: str, identity: str = "") -> float:
        """What an attempt will take: as on that device before, else as on the others."""
        total, count = self._sums.get((recipe, identity)) or self._sums.get((recipe, ""), (0.0, 0))
        return total / count if count else UNKNOWN_S


@dataclass(frozen=True)
class DeviceHosts:
    """The devices that are offered, each once.

    Attributes:
        held: The offer that is used, by identity; it may have a problem.
        doubles: Other hosts that offer the same, by identity.
    """

    held: dict[str, AvailableDevice]
    doubles: dict[str, tuple[str, ...]]


def choose_hosts(offers: Iterable[AvailableDevice], holders: Mapping[str, str]) -> DeviceHosts:
    """Chooses a host for each device.

    The host that first offered it keeps it while it offers it without a problem, so that two hosts
    with the same phone do not take turns; the other is there in case.
    """
    found: dict[str, list[AvailableDevice]] = {}
    for offer in offers:
        found.setdefault(offer.identity, []).append(offer)
    held, doubles = {}, {}
    for identity, same in found.items():
        mine = holders.get(identity)
        held[identity] = min(same, key=lambda offer: (bool(offer.problem), offer.host != mine))
        others = {offer.host for offer in same} - {held[identity].host}
        if others:
            doubles[identity] = tuple(sorted(others))
    return DeviceHosts(held, doubles)


def find_unavailable(
    offers: Mapping[str, AvailableDevice],
    seen: Mapping[str, tuple[AvailableDevice, datetime]],
    reservations: Collection[Reservation],
    quarantined: Collection[Quarantined],
    quarantine_reasons: Mapping[str, str],
) -> dict[str, Unavailable]:
    """Why devices cannot be used, by identity; those that can are not in it."""
    found = {}
    for identity, (last, at) in seen.items():
        offer = offers.get(identity)
        if offer is None:
            found[identity] = Unavailable(UnavailableKind.AWAY, f"{UNPLUGGED}{local_time(at)}")
        elif offer.problem:
            todo = f" ({' '.join(offer.remedy.split())})" if offer.remedy else ""
            found[identity] = Unavailable(
                UnavailableKind.PROBLEM, f"not usable: {offer.problem}{todo}"
            )
        for claim in reservations:
            if claim.is_of(last.lock, last.host, last.name):
                text = f"reserved by {claim.owner} until {local_time(claim.until)}"
                found[identity] = Unavailable(UnavailableKind.RESERVED, text, claim.until)
        reasons = [q.reason for q in quarantined if q.is_of(last.lock, last.host, last.name)]
        if identity in quarantine_reasons:
            reasons.append(quarantine_reasons[identity])
        if reasons:
            found[identity] = Unavailable(
                UnavailableKind.QUARANTINED, f"quarantined: {reasons[-1]}"
            )
    return found


Round = tuple[str, str, int]
"""Recipe, group and repeat: its visits go to different devices."""


@dataclass(frozen=True)
class DispatchState:
    """What is decided from.

    Attributes:
        now_s: Seconds since the beginning of the night.
        bound: Waiting visits with a device of their own, by its identity.
        floating: Waiting visits of several devices.
        free: Devices that may be used now and have nothing to do, by identity.
        barred: Why other devices may not be used.
        ready: (recipe, identity) of which there is an artifact.
        pauses: Visits that may not begin before this time, in seconds of the night.
        taken: Devices on which a visit of the round runs or succeeded.
        trials: How many more attempts may begin of recipes that have not succeeded yet; any number
            of the others.
        last: The recipe that a device measured last.
        times: How long attempts take.
    """

    now_s: float
    bound: Mapping[str, Collection[VisitState]]
    floating: Collection[VisitState]
    free: Mapping[str, AvailableDevice]
    barred: Mapping[str, Unavailable] = field(default_factory=dict)
    ready: Collection[tuple[str, str]] = ()
    pauses: Mapping[str, float] = field(default_factory=dict)
    taken: Mapping[Round, Collection[str]] = field(default_factory=dict)
    trials: Mapping[str, int] = field(default_factory=dict)
    last: Mapping[str, str] = field(default_factory=dict)
    times: AttemptDurations = field(default_factory=AttemptDurations)


@dataclass(frozen=True)
class VisitStart:
    """A visit that begins on a device."""

    visit: str
    identity: str


def dispatch(situation: DispatchState) -> list[VisitStart]:
    """The visits that begin now, at most one on each free device."""
    trials = dict(situation.trials)
    starts: list[VisitStart] = []
    due = {identity: _due(situation, identity) for identity in situation.free}
    ready = [identity for identity, states in due.items() if states]
    if trials:
        # What has most to do begins first, where not everything may: it decides how long the
        # night takes.
        ready.sort(key=lambda identity: (-_left_s(situation, identity), identity))
    for identity in ready:
        allowed = [each for each in due[identity] if trials.get(each.visit.recipe, 1) > 0]
        if allowed:
            chosen = min(allowed, key=lambda state: _order(state.visit, identity, situation))
            _begin(chosen, identity, starts, trials)
    if situation.floating:
        taken = {start.identity for start in starts}
        idle = {each: _left_s(situation, each) for each in situation.free if each not in taken}
        _floating(situation, idle, starts, trials)
    return starts


def _floating(
    situation: DispatchState,
    idle: dict[str, float],
    starts: list[VisitStart],
    trials: dict[str, int],
) -> None:
    """Gives visits that may go to several devices to those that are idle."""
    used = {round_: set(names) for round_, names in situation.taken.items()}
    for state in sorted(situation.floating, key=lambda each: _longest_first(each, situation)):
        if not idle:
            return
        visit = state.visit
        if not _is_due(state, situation, trials):
            continue
        around = used.setdefault(round_key(visit), set())
        fit = [
            identity
            for identity in candidates(state, situation.barred, around)
            if identity in idle and (visit.recipe, identity) in situation.ready
        ]
        if fit:
            chosen = min(fit, key=lambda each: (idle[each], each))
            _begin(state, chosen, starts, trials)
            around.add(chosen)
            del idle[chosen]


def _begin(
    state: VisitState, identity: str, starts: list[VisitStart], trials: dict[str, int]
) -> None:
    starts.append(VisitStart(state.visit.id, identity))
    if state.visit.recipe in trials:
        trials[state.visit.recipe] -= 1


def _due(situation: DispatchState, identity: str) -> list[VisitState]:
    """The device's own visits that may begin now."""
    now_s, pauses, ready = situation.now_s, situation.pauses, situation.ready
    return [
        state
        for state in situation.bound.get(identity, ())
        if state.visit.not_before_s <= now_s
        and pauses.get(state.visit.id, 0.0) <= now_s
        and (state.visit.recipe, identity) in ready
    ]


def _is_due(state: VisitState, situation: DispatchState, trials: Mapping[str, int]) -> bool:
    due_s = max(state.visit.not_before_s, situation.pauses.get(state.visit.id, 0.0))
    return due_s <= situation.now_s and trials.get(state.visit.recipe, 1) > 0


def _left_s(situation: DispatchState, identity: str) -> float:
    """How long the device's own visits will take."""
    waiting = situation.bound.get(identity, ())
    return sum(situation.times.expected_s(state.visit.recipe, identity) for state in waiting)


def _order(visit: Visit, identity: str, situation: DispatchState) -> tuple[object, ...]:
    """The next visit of a device: repeats in turn, not the same recipe twice running."""
    again = situation.last.get(identity) == visit.recipe
    return (visit.repeat, again, -situation.times.expected_s(visit.recipe, identity), visit.id)


def _longest_first(state: VisitState, situation: DispatchState) -> tuple[object, ...]:
    visit = state.visit
    # Of two that take as long, the one that fewer devices can do.
    long_s = situation.times.expected_s(visit.recipe)
    return (visit.repeat, -long_s, len(visit.among), visit.id)


def round_key(visit: Visit) -> Round:
    """The round that the visit belongs to."""
    return (visit.recipe, visit.group, visit.repeat)


def candidates(
    state: VisitState, barred: Mapping[str, Unavailable], taken: Collection[str]
) -> tuple[str, ...]:
    """Devices that the visit may go to now or once they are free.

    A retry goes to a device that it has not failed on, even if it has to wait for it; to one of
    the others only where there is none. Of the visits of a round, each goes to another device:
    `take: 3` means three devices.
    """
    visit = state.visit
    if visit.device is not None:
        return () if visit.device in barred else (visit.device,)
    usable = [each for each in visit.among if each not in barred and each not in taken]
    failed = [end.identity for end in state.attempts if end.fate is Fate.FAILED]
    fresh = [each for each in usable if each not in failed]
    other = [each for each in usable if failed and each != failed[-1]]
    return tuple(fresh or other or usable)


def is_stuck(state: VisitState, situation: DispatchState) -> bool:
    """Whether no device could measure it, even if all were free."""
    taken = situation.taken.get(round_key(state.visit), ())
    return not candidates(state, situation.barred, taken)


def is_stuck_for_good(state: VisitState, situation: DispatchState, end: datetime | None) -> bool:
    """Whether only a person could change that: quarantined, or reserved beyond the end."""
    devices = state.visit.among if state.visit.device is None else (state.visit.device,)
    return all(_for_good(situation.barred.get(each), end) for each in devices)


def _for_good(why: Unavailable | None, end: datetime | None) -> bool:
    if why is None:
        return False
    if why.kind is UnavailableKind.RESERVED and why.until and end:
        return why.until >= end
    return why.kind is UnavailableKind.QUARANTINED


def waiting_visits(situation: DispatchState) -> Iterator[VisitState]:
    """All visits that wait."""
    for states in situation.bound.values():
        yield from states
    yield from situation.floating


def missed_reason(state: VisitState, situation: DispatchState, over: str) -> str:
    """Why a visit was not measured."""
    visit = state.visit
    devices = visit.among if visit.device is None else (visit.device,)
    why = [f"{each} {situation.barred[each].text}" for each in devices if each in situation.barred]
    if not devices:
        text = "no device matches"
    elif len(why) == len(devices):
        text = situation.barred[devices[0]].text if len(devices) == 1 else listed(why)
    elif is_stuck(state, situation):
        text = "each of its devices is away or measures another visit of the same round"
    else:
        text = f"{over} before its turn"
    if state.attempts:
        last = state.attempts[-1]
        text += f"; the attempt before: {result_text(last)}"
    return text


_GOES_ON = "Ctrl-C ends it, the same command goes on"


def awaited_devices(
    left: Iterable[VisitState], barred: Mapping[str, Unavailable]
) -> tuple[str, ...]:
    """The devices that the visits that are left would need, by identity."""
    found: dict[str, None] = {}
    for state in left:
        visit = state.visit
        devices = visit.among if visit.device is None else (visit.device,)
        found.update(dict.fromkeys(each for each in devices if each in barred))
    return tuple(found)


def waiting_text(
    devices: Iterable[str],
    barred: Mapping[str, Unavailable],
    name: Callable[[str], str],
    patience_s: float,
    until: datetime | None,
) -> str:
    """For which devices the night waits, why, and how long, in a line."""
    same: dict[str, list[str]] = {}
    for each in devices:
        same.setdefault(barred[each].text, []).append(name(each))
    why = [f"{listed(names)} ({text})" for text, names in same.items()]
    limit = f"up to {patience_s / 60:.0f} min"
    if until:
        limit = f"until the window closes at {local_time(until)}"
    return f"waiting {limit} for {listed(why) or 'a device that matches'}; {_GOES_ON}"
