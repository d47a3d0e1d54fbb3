"""Where every visit of a running night stands, and what was learnt from the attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from etdeploy.core.errors import EtdeployError
from etdeploy.farm.model import (
    AttemptFailure,
    AttemptResult,
    AvailableDevice,
    BuildArtifact,
    Fate,
    Order,
    Standing,
    Visit,
    VisitState,
)
from etdeploy.farm.night.dependencies import Background, Headline, Prepare
from etdeploy.farm.night.failure_attribution import (
    AttributedFailure,
    FailureOwner,
    attribute_failure,
    counts_as_attempt,
    relative_range,
    result_text,
    room_for_trials,
    stop_reason,
    variance_reason,
)
from etdeploy.farm.night.model import Rules, Unavailable
from etdeploy.farm.night.scheduler import AttemptDurations, DispatchState, Round, round_key

_PAUSE_S = 30.0
# 30 s, 1 min, ... and at most half an hour.
_DOUBLINGS = 6


@dataclass(frozen=True)
class AttemptEffect:
    """What an ending means.

    Attributes:
        state: Of its visit now.
        finished: Whether the visit ended with it.
        seen: The failure, where it was somebody's.
    """

    state: VisitState
    finished: bool
    seen: AttributedFailure | None


class RunState:
    """All visits of a night; changed by one thread."""

    def __init__(self, rules: Rules, times: AttemptDurations) -> None:
        self.rules, self.times = rules, times
        self.states: dict[str, VisitState] = {}
        self.bound: dict[str, dict[str, VisitState]] = {}
        self.floating: dict[str, VisitState] = {}
        self.running: dict[str, Order] = {}
        self.busy: dict[str, str] = {}
        self.pauses: dict[str, float] = {}
        self.last: dict[str, str] = {}
        self.stopped: dict[str, str] = {}
        # What failed on a device since it last succeeded; what failed of a recipe.
        self.rows: dict[str, list[AttributedFailure]] = {}
        self.failures: dict[str, list[AttributedFailure]] = {}
        self.succeeded: dict[str, set[str]] = {}
        self.devices: set[str] = set()
        self.recipes: set[str] = set()
        self._taken: dict[Round, Counter[str]] = {}
        self._running_of: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """How many visits wait."""
        return len(self.floating) + sum(map(len, self.bound.values()))

    @property
    def needed(self) -> set[str]:
        """Devices that a waiting visit may go to."""
        found = {identity for identity, states in self.bound.items() if states}
        for among in {state.visit.among for state in self.floating.values()}:
            found.update(among)
        return found

    def add(self, states: Iterable[VisitState]) -> None:
        """Adds visits with what is known of them."""
        for state in states:
            for ending in state.attempts:
                self._learn(state.visit, ending, ending.identity)
                if ending.fate is Fate.DONE:
                    self._around(state.visit)[ending.identity] += 1
            self._put(state)

    def widen(self, visit: str, among: tuple[str, ...]) -> None:
        """Lets a visit go to more devices."""
        state = self.states[visit]
        self.devices.update(among)
        changed = state.visit.model_copy(update={"among": among})
        self._put(state.model_copy(update={"visit": changed}))

    def begin(self, order: Order) -> None:
        """An attempt begins."""
        state = self.states[order.visit]
        self._put(state.model_copy(update={"standing": Standing.RUNNING}))
        self.running[order.visit] = order
        self.busy[order.offer.identity] = order.visit
        self.last[order.offer.identity] = state.visit.recipe
        self._running_of[state.visit.recipe] += 1
        self._around(state.visit)[order.offer.identity] += 1

    def end(self, ending: AttemptResult, now_s: float) -> AttemptEffect:
        """An attempt ended; of one visit, the first that was measured counts."""
        order = self._release(ending)
        state = self.states[ending.visit]
        if state.result:  # an earlier attempt was given up for lost too soon, and counts
            return AttemptEffect(state, False, None)
        seen = self._learn(state.visit, ending, order.offer.name if order else ending.identity)
        state = state.model_copy(update={"attempts": (*state.attempts, ending)})
        if ending.fate is Fate.DONE:
            self._around(state.visit)[ending.identity] += 1
            state = state.model_copy(update={"standing": Standing.DONE, "reason": ""})
        elif order is None:
            self._put(state)
            return AttemptEffect(state, False, seen)
        else:
            standing, reason = derive_standing(state, self.rules)
            state = state.model_copy(update={"standing": standing, "reason": reason})
            self.pauses[ending.visit] = now_s + _pause_s(state, self.rules)
        self._put(state)
        return AttemptEffect(state, state.standing is not Standing.WAITING, seen)

    def add_attempt(self, ending: AttemptResult) -> None:
        """Adds an attempt that this coordinator did not begin."""
        state = self.states[ending.visit]
        self._put(state.model_copy(update={"attempts": (*state.attempts, ending)}))

    def give_up(self, visit: str, standing: Standing, reason: str) -> VisitState:
        """A waiting visit will not be measured."""
        state = self.states[visit].model_copy(update={"standing": standing, "reason": reason})
        self._put(state)
        return state

    def to_stop(self) -> dict[str, str]:
        """Recipes that are to be stopped now, with the reason."""
        found = {}
        for recipe, failures in self.failures.items():
            if recipe not in self.stopped:
                succeeded = bool(self.succeeded.get(recipe))
                reason = stop_reason(failures, succeeded, self._sound_for(recipe), self.rules)
                if reason:
                    found[recipe] = reason
        self.stopped.update(found)
        return found

    def waiting_of(self, recipe: str) -> list[str]:
        """Waiting visits of a recipe."""
        every = [
            *self.floating.values(),
            *(s for each in self.bound.values() for s in each.values()),
        ]
        return [state.visit.id for state in every if state.visit.recipe == recipe]

    def succeeds_elsewhere(self, recipe: str, identity: str) -> bool:
        """Whether the recipe was measured in this night on another device."""
        return bool(self.succeeded.get(recipe, set()) - {identity})

    def loses_others(self, recipe: str, identity: str) -> bool:
        """Whether other devices fail during the recipe, too, and none has measured it."""
        return not self.succeeded.get(recipe) and any(
            seen.trouble is FailureOwner.DEVICE and seen.identity != identity
            for seen in self.failures.get(recipe, ())
        )

    def _sound_for(self, recipe: str) -> set[str]:
        """Devices on which another recipe was measured; empty where nothing of this one failed."""
        if recipe not in self.failures:
            return set()
        return {i for other, found in self.succeeded.items() if other != recipe for i in found}

    def situation(
        self,
        now_s: float,
        free: Mapping[str, AvailableDevice],
        barred: Mapping[str, Unavailable],
        ready: Collection[tuple[str, str]],
    ) -> DispatchState:
        """What `dispatch` decides from."""
        trials = {
            recipe: room_for_trials(
                self.failures.get(recipe, ()),
                self._running_of[recipe],
                self._sound_for(recipe),
                self.rules,
            )
            for recipe in self.recipes
            if not self.succeeded.get(recipe)
        }
        return DispatchState(
            now_s=now_s,
            bound={identity: each.values() for identity, each in self.bound.items()},
            floating=self.floating.values(),
            free=free,
            barred=barred,
            ready=ready,
            pauses=self.pauses,
            taken=self._taken,
            trials=trials,
            last=self.last,
            times=self.times,
        )

    def _put(self, state: VisitState) -> None:
        visit = state.visit
        if visit.id not in self.states:
            self.recipes.add(visit.recipe)
            self.devices.update(visit.among if visit.device is None else (visit.device,))
        self.states[visit.id] = state
        place = self.floating if visit.device is None else self.bound.setdefault(visit.device, {})
        if state.standing is Standing.WAITING:
            place[visit.id] = state
        else:
            place.pop(visit.id, None)

    def _release(self, ending: AttemptResult) -> Order | None:
        """Frees the device of the attempt; None where it is not the one that runs."""
        order = self.running.get(ending.visit)
        if order is None or order.attempt != ending.attempt:
            return None
        del self.running[ending.visit]
        self.busy.pop(order.offer.identity, None)
        visit = self.states[ending.visit].visit
        self._running_of[visit.recipe] -= 1
        around = self._around(visit)
        around[order.offer.identity] -= 1
        if around[order.offer.identity] <= 0:
            del around[order.offer.identity]
        return order

    def _around(self, visit: Visit) -> Counter[str]:
        return self._taken.setdefault(round_key(visit), Counter())

    def _learn(self, visit: Visit, ending: AttemptResult, device: str) -> AttributedFailure | None:
        if ending.fate is Fate.DONE:
            self.rows.pop(ending.identity, None)
            self.succeeded.setdefault(visit.recipe, set()).add(ending.identity)
            self.times.add(visit.recipe, ending.identity, ending.seconds)
            return None
        trouble = attribute_failure(ending, self.rules.gates)
        if trouble is None:
            return None
        text = result_text(ending)
        remedy = (ending.failure and ending.failure.remedy) or ""
        first = remedy.partition("\n")[0]
        seen = AttributedFailure(
            visit.recipe, ending.identity, device, ending.host, trouble, text, first
        )
        self.rows.setdefault(ending.identity, []).append(seen)
        self.failures.setdefault(visit.recipe, []).append(seen)
        return seen


def derive_standing(state: VisitState, rules: Rules) -> tuple[Standing, str]:
    """Where a visit stands after an attempt that did not succeed, and why."""
    last = state.attempts[-1]
    spent = sum(counts_as_attempt(ending, rules.gates) for ending in state.attempts)
    if spent > rules.retries:
        tries = "the attempt" if spent == 1 else f"{spent} attempts"
        return Standing.FAILED, f"{tries} failed; the last on {last.identity}: {result_text(last)}"
    if len(state.attempts) - spent >= rules.most_unspent:
        times = f"{rules.most_unspent} times"
        if last.fate is Fate.PUT_OFF:
            return (
                Standing.MISSED,
                f"put off {times}; the last on {last.identity}: {result_text(last)}",
            )
        return Standing.FAILED, f"lost {times}; the last on {last.identity}: {result_text(last)}"
    return Standing.WAITING, ""


def _pause_s(state: VisitState, rules: Rules) -> float:
    """How long a visit waits before its next attempt: twice as long each time it was put off."""
    unspent = sum(not counts_as_attempt(ending, rules.gates) for ending in state.attempts)
    return float(_PAUSE_S * 2 ** min(unspent, _DOUBLINGS))


class HeadlineValues:
    """What each device measured of each recipe."""

    def __init__(self, headline: Headline) -> None:
        self._headline = headline
        self._values: dict[tuple[str, str], list[float]] = {}
        self._spreads: dict[tuple[str, str], float] = {}

    def add(self, recipe: str, ending: AttemptResult) -> None:
        """Adds the number of an attempt, if it has one."""
        value = self._headline(ending)
        if value is None:
            return
        pair = (recipe, ending.identity)
        values = self._values.setdefault(pair, [])
        values.append(value)
        found = relative_range(values)
        if found is not None:
            self._spreads[pair] = found

    def odd(self, recipe: str, identity: str) -> str | None:
        """Why the device's numbers cannot be trusted, after one of this recipe; None if they can.

        Looked at only where the recipe has enough repeats there.
        """
        if (recipe, identity) not in self._spreads:
            return None
        own = [each for (_, device), each in self._spreads.items() if device == identity]
        others = [each for (_, device), each in self._spreads.items() if device != identity]
        return variance_reason(own, others)


Pair = tuple[str, str]
"""Label of a recipe, identity of a device."""


@dataclass(frozen=True)
class Made:
    """What `prepare` made: an artifact for each pair, or why there is none."""

    pairs: Sequence[Pair]
    artifacts: Mapping[Pair, BuildArtifact]
    failures: Mapping[Pair, AttemptFailure]


class Artifacts:
    """Artifacts by recipe and device; changed by one thread.

    Attributes:
        of: Those that are made.
        failures: Why others cannot be.
        pending: Pairs that are being made.
    """

    def __init__(self, prepare: Prepare, background: Background) -> None:
        self._prepare, self._background = prepare, background
        self.of: dict[Pair, BuildArtifact] = {}
        self.failures: dict[Pair, AttemptFailure] = {}
        self.pending: set[Pair] = set()

    def make_now(self, wanted: Mapping[str, Sequence[AvailableDevice]]) -> None:
        """Makes what is wanted, and waits for it."""
        wanted = self.missing(wanted)
        if wanted:
            found = self._prepare(wanted)
            self.take(Made(_pairs(wanted), found.artifacts, found.failures))

    def begin(self, wanted: Mapping[str, Sequence[AvailableDevice]]) -> list[str]:
        """Begins to make what is wanted and missing, if nothing else is being made."""
        wanted = {} if self.pending else self.missing(wanted)
        if wanted:
            pairs = _pairs(wanted)
            self.pending.update(pairs)
            self._background.start(lambda: _made(pairs, self._prepare, wanted))
        return sorted({offer.name for offers in wanted.values() for offer in offers})

    def missing(
        self, wanted: Mapping[str, Sequence[AvailableDevice]]
    ) -> dict[str, Sequence[AvailableDevice]]:
        """The part of it that is neither made nor known to fail."""
        found = {
            recipe: [o for o in offers if not self._is_known((recipe, o.identity))]
            for recipe, offers in wanted.items()
        }
        return {recipe: offers for recipe, offers in found.items() if offers}

    def take(self, made: Made) -> None:
        """What was begun is made."""
        self.pending.difference_update(made.pairs)
        self.of.update(made.artifacts)
        self.failures.update(made.failures)
        for pair in made.pairs:
            if not self._is_known(pair):
                self.failures[pair] = AttemptFailure(
                    kind="bug", exit_code=9, message="nothing was made for it, and nothing failed"
                )

    def why_not(self, state: VisitState) -> tuple[str, AttemptFailure] | None:
        """A device that a visit may go to and why not there; None while one is possible."""
        visit = state.visit
        devices = visit.among if visit.device is None else (visit.device,)
        why = [(each, self.failures.get((visit.recipe, each))) for each in devices]
        known = [(each, failure) for each, failure in why if failure]
        return known[0] if known and len(known) == len(why) else None

    def _is_known(self, pair: Pair) -> bool:
        return pair in self.of or pair in self.failures


def _made(
    pairs: Sequence[Pair], prepare: Prepare, wanted: Mapping[str, Sequence[AvailableDevice]]
) -> Made:
    """What was made in the background; an error there is that of every pair."""
    try:
        found = prepare(wanted)
        return Made(pairs, found.artifacts, found.failures)
    except EtdeployError as error:
        kind, code, message = error.kind, error.exit_code, error.message
    except Exception as error:
        kind, code, message = "bug", EtdeployError.exit_code, f"{type(error).__name__}: {error}"
    failure = AttemptFailure(kind=kind, exit_code=code, message=message)
    return Made(pairs, {}, dict.fromkeys(pairs, failure))


def _pairs(wanted: Mapping[str, Iterable[AvailableDevice]]) -> list[Pair]:
    return [(recipe, offer.identity) for recipe, offers in wanted.items() for offer in offers]
