"""Runs a night: asks the scheduler what to do next, does it, and records how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from etdeploy.core import cancel
from etdeploy.core.console import count
from etdeploy.core.errors import Interrupted
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.model import AttemptResult, AvailableDevice, Fate, Order, Standing, VisitState
from etdeploy.farm.night.dependencies import (
    BackgroundThreads,
    Clock,
    NightDependencies,
    NightLedger,
)
from etdeploy.farm.night.devices import Devices, RecoveryResult
from etdeploy.farm.night.model import Event, EventKind, EventSink, NightEnd, Rules, listed
from etdeploy.farm.night.scheduler import (
    DispatchState,
    awaited_devices,
    compare_plans,
    dispatch,
    is_stuck,
    is_stuck_for_good,
    missed_reason,
    offers_by_recipe,
    unsatisfied_visits,
    waiting_text,
    waiting_visits,
    with_absent,
)
from etdeploy.farm.night.state import Artifacts, HeadlineValues, Made, RunState, derive_standing
from etdeploy.farm.spec.matrix import NightPlan
from etdeploy.farm.spec.model import LoadedFarm

_STOPPING_S = 30.0
_LONG_AGO_S = 1e9


def run_night(
    loaded: LoadedFarm,
    engine: Engine,
    ledger: NightLedger,
    clock: Clock,
    on_event: Callable[[Event], None],
    parts: NightDependencies,
) -> NightEnd:
    """Runs a night to its end, or resumes one that was stopped.

    A failure of the engine or the ledger is reported, and the night continues. A request to stop
    (Ctrl-C, SIGTERM) cancels running attempts; the same call resumes the night later.

    Raises:
        StoreError: The ledger cannot be opened at all; nothing was begun.
        TakenError: Another process runs this farm; raised also where it took the farm over.
        EtdeployError: Nothing can be exported or built.
        Interrupted: It was stopped before the first attempt.
    """
    night = _Night(loaded, engine, ledger, clock, on_event, parts)
    night.open()
    return night.run()


class _Night:
    """A night that is under way."""

    def __init__(
        self,
        loaded: LoadedFarm,
        engine: Engine,
        ledger: NightLedger,
        clock: Clock,
        on_event: Callable[[Event], None],
        parts: NightDependencies,
    ) -> None:
        self.farm, self.loaded, self.engine, self.ledger = loaded.farm, loaded, engine, ledger
        self.clock, self.parts, self.events = clock, parts, EventSink(on_event)
        self.rules = Rules.of(self.farm)
        self.background = parts.background or BackgroundThreads()
        self.state = RunState(self.rules, parts.times)
        self.numbers = HeadlineValues(parts.headline)
        self.devices = Devices(engine, parts.shelf, clock, self.rules, self.background, self.events)
        self.artifacts = Artifacts(parts.prepare, self.background)
        self.night = ""
        self._is_planned = self._are_all_made = False
        self._usable: dict[str, AvailableDevice] = {}
        self._unsatisfied: tuple[str, ...] = ()
        self._named = set(parts.named)
        self._awaited: tuple[str, ...] | None = None
        self._looked_s = -_LONG_AGO_S
        self._begun_s = self._changed_s = clock.seconds()
        self._window_s: float | None = None

    def open(self) -> None:
        """Opens or goes on with the night, and makes what is measured."""
        now = self.clock.now()
        self.night, states = self.ledger.open_night(self.farm.name, self.loaded.digest(), now)
        if self.parts.until:
            self._window_s = max(0.0, (self.parts.until - now).total_seconds())
        if states:
            self._resume(states, now)
        self._look()
        visits = [state.visit for state in waiting_visits(self._situation())]
        self.artifacts.make_now(offers_by_recipe(visits, self._usable))
        self._give_up_unmade()
        self._changed_s = self.clock.seconds()

    def _resume(self, states: Sequence[VisitState], now: datetime) -> None:
        """Goes on with visits of before; what ran then is lost."""
        opened = self.parts.opened
        self._begun_s -= (now - opened).total_seconds() if opened else _LONG_AGO_S
        self.state.add(states)
        self.events.event(Event(EventKind.PLANNED, states=tuple(states)))
        for state in states:
            if state.result:
                self._add_number(state.visit.recipe, state.result)
            self._settle(state.visit.id)
        # It may have been killed before; nothing of such a recipe begins, so nothing would end.
        self._stop_recipes()
        left = self.state.waiting
        self.events.tell(
            f"resuming night {self.night}: {left} of {count(len(states), 'visit')} left"
        )

    def _settle(self, visit: str) -> None:
        """Ends a visit whose last attempt was written down, and not what followed from it."""
        state = self.state.states[visit]
        if state.standing is Standing.WAITING and state.attempts:
            standing, reason = derive_standing(state, self.rules)
            if standing is not Standing.WAITING:
                self._give_up(visit, standing, reason)

    def run(self) -> NightEnd:
        """Measures until nothing is left, the window closed, or a stop is asked for."""
        while True:
            if cancel.requested():
                return self._stop()
            try:
                self._look()
                self._take_background()
                self._start_all()
                if self._is_over():
                    break
                self._collect(self.parts.wait_s)
            except Interrupted:
                return self._stop()
        return self._finish()

    def _look(self) -> None:
        """Looks which devices are there, and plans visits for new ones."""
        now_s = self.clock.seconds()
        if now_s - self._looked_s < self.parts.look_s:
            return
        self._looked_s = now_s
        before = set(self.devices.offers)
        self.devices.look()
        if set(self.devices.offers) != before:
            self._changed_s = now_s
        hosts = {order.offer.host for order in self.state.running.values()}
        self.devices.recover_problems(self.state.needed, self.state.busy, hosts)
        found = {each: o for each, o in self.devices.offers.items() if not o.problem}
        is_new = bool(found.keys() - self._usable.keys())
        self._usable.update(found)
        if is_new or not self._is_planned:
            self._gain()
            self._is_planned, self._are_all_made = True, False

    def _gain(self) -> None:
        """Plans visits for devices that are new."""
        plan = self.parts.plan(self.farm, self.night, tuple(self._usable.values()), self._window_s)
        self._tell_unsatisfied(plan)
        new = compare_plans(self.night, self.state.states.values(), plan.visits)
        is_first = not self.state.states
        for known, among in new.among:
            self.state.widen(known, among)
        if new.visits:
            states = tuple(VisitState(visit=visit) for visit in new.visits)
            self.state.add(states)
            self.events.event(Event(EventKind.PLANNED, states=states))
            self.ledger.plan(new.visits)
            for visit in new.visits:
                self._give_up_stopped(visit.id)
            if not is_first:
                names = sorted({self._name(v.device) for v in new.visits if v.device})
                more = count(len(new.visits), "more visit")
                self.events.tell(f"{more}, for {', '.join(names) or 'new devices'}")

    def _tell_unsatisfied(self, plan: NightPlan) -> None:
        """Names what no device can measure, each pair once."""
        found = {(each.recipe, each.group) for each in plan.unsatisfied}
        for each in plan.unsatisfied:
            if (each.recipe, each.group) not in self._named:
                self.events.trouble(f"{each.recipe} on {each.group}: {each.reason}")
        self._named |= found
        has = {(visit.recipe, visit.group) for visit in plan.visits}
        self._unsatisfied = tuple(f"{recipe} on {group}" for recipe, group in sorted(found - has))

    def _situation(self) -> DispatchState:
        barred = self.devices.find_unavailable(self.state.devices)
        busy = self.state.busy
        free = {
            each: offer
            for each, offer in self.devices.offers.items()
            if each not in busy and each not in barred
        }
        return self.state.situation(self._now_s(), free, barred, self.artifacts.of.keys())

    def _start_all(self) -> None:
        if self._is_closed():
            return
        situation = self._situation()
        for start in dispatch(situation):
            self._start(start.visit, situation.free[start.identity])
        if not self._are_all_made and not self.artifacts.pending:
            self._are_all_made = True
            visits = (state.visit for state in waiting_visits(situation))
            names = self.artifacts.begin(offers_by_recipe(visits, self._usable))
            if names:
                self.events.tell(f"exporting and building for {listed(names)}")

    def _start(self, visit: str, offer: AvailableDevice) -> None:
        state = self.state.states[visit]
        order = Order(
            visit=visit,
            attempt=len(state.attempts) + 1,
            offer=offer,
            artifact=self.artifacts.of[state.visit.recipe, offer.identity],
            gates=self.rules.gates,
            limit_s=self.rules.limit_s,
        )
        self.state.begin(order)
        self._changed_s = self.clock.seconds()
        self.ledger.running(visit, order.attempt, offer.identity, offer.host, offer.name)
        self.events.event(Event(EventKind.STARTED, order=order, state=self.state.states[visit]))
        try:
            self.engine.start(order)
        except Interrupted:
            raise
        except Exception as error:
            self.events.trouble(f"{offer.name} on {offer.host} cannot be given work: {error}")
            self._take(order.end(Fate.LOST))

    def _collect(self, wait_s: float) -> None:
        try:
            endings = self.engine.ended(wait_s)
        except Interrupted:
            raise
        except Exception as error:
            self.events.trouble(f"how attempts ended is not known now: {error}")
            self.clock.sleep(wait_s)
            return
        for ending in endings:
            self._changed_s = self.clock.seconds()
            if ending.fate is not Fate.DONE:  # is its device still there?
                self._looked_s = -_LONG_AGO_S
            self._take(ending)

    def _take(self, ending: AttemptResult) -> None:
        """Records an attempt that ended, and what follows for its visit, recipe and device."""
        state = self.state.states.get(ending.visit)
        if state is None:
            self.events.trouble(f"an attempt ended that is none of this night's: {ending.visit}")
            return
        is_new = state.result is None
        self.ledger.ended(ending)
        told = self.state.end(ending, self._now_s())
        self.events.event(Event(EventKind.ENDED, ending=ending, state=told.state))
        if ending.fate is Fate.DONE and is_new:
            self._done(told.state, ending)
        if told.seen:
            row = self.state.rows.get(ending.identity, ())
            hosts = {order.offer.host for order in self.state.running.values()}
            self.devices.failed(told.seen, row, self.state, hosts)
        if told.finished:
            self._finished(told.state)
        self._stop_recipes()
        self._give_up_stopped(ending.visit)

    def _done(self, state: VisitState, ending: AttemptResult) -> None:
        visit = state.visit
        self.devices.succeeded(ending.host)
        if visit.id in self.state.running:  # another attempt, as this one was given up for lost
            self._cancel(visit.id)
        self._add_number(visit.recipe, ending)
        if reason := self.numbers.odd(visit.recipe, ending.identity):
            self.devices.quarantine_device(ending.identity, reason)

    def _stop_recipes(self) -> None:
        """Gives up what waits of recipes that fail everywhere."""
        for recipe, reason in self.state.to_stop().items():
            self.events.tell(f"{recipe}: {reason}")
            for visit in self.state.waiting_of(recipe):
                self._give_up(visit, Standing.FAILED, reason)

    def _give_up_stopped(self, visit: str) -> None:
        """Gives a visit up if it waits and its recipe is stopped."""
        state = self.state.states[visit]
        reason = self.state.stopped.get(state.visit.recipe)
        if reason and state.standing is Standing.WAITING:
            self._give_up(visit, Standing.FAILED, reason)

    def _give_up(self, visit: str, standing: Standing, reason: str) -> None:
        """A waiting visit will not be measured."""
        self._finished(self.state.give_up(visit, standing, reason))

    def _finished(self, state: VisitState) -> None:
        if state.standing in (Standing.FAILED, Standing.MISSED):
            self.ledger.give_up(state.visit.id, state.standing, state.reason)
        last = state.attempts[-1].identity if state.attempts else state.visit.device
        self.events.event(
            Event(EventKind.FINISHED, state=state, offer=self.devices.last_offer(last or ""))
        )

    def _give_up_unmade(self) -> None:
        """Fails visits for which nothing can be exported or built."""
        for state in list(waiting_visits(self._situation())):
            why = self.artifacts.why_not(state)
            if why is None:
                continue
            ending = AttemptResult(
                visit=state.visit.id,
                attempt=len(state.attempts) + 1,
                identity=why[0],
                host="",
                fate=Fate.FAILED,
                failure=why[1],
            )
            self.ledger.ended(ending)
            self.state.add_attempt(ending)
            first = why[1].message.partition("\n")[0]
            self._give_up(state.visit.id, Standing.FAILED, f"{why[1].kind}: {first}")

    def _miss_all(self, over: str) -> None:
        """Gives up every visit that waits; `over` says why nothing else begins."""
        if self.state.waiting:
            situation = self._situation()
            for state in list(waiting_visits(situation)):
                reason = missed_reason(state, situation, over)
                self._give_up(state.visit.id, Standing.MISSED, reason)

    def _add_number(self, recipe: str, ending: AttemptResult) -> None:
        self.events.report_errors(
            lambda: self.numbers.add(recipe, ending), "a record cannot be read"
        )

    def _take_background(self) -> None:
        for found in self.background.finished():
            if isinstance(found, RecoveryResult):
                self.devices.recovered(found)
            elif isinstance(found, Made):
                self.artifacts.take(found)
                self._are_all_made = False  # other devices may have come meanwhile
                self._give_up_unmade()
            elif isinstance(found, Interrupted):
                raise found
            else:
                self.events.trouble(f"recovery failed: {found}")
            self._changed_s = self.clock.seconds()

    def _is_closed(self) -> bool:
        return self.parts.until is not None and self.clock.now() >= self.parts.until

    def _is_over(self) -> bool:
        """Whether nothing is left to do; gives up what cannot be done any more."""
        if self._is_closed():
            self._miss_all("the window closed")
            return not self.state.running and not self.devices.recovering
        if self.state.running or self.background.active or self.artifacts.pending:
            return False
        quiet = self.clock.seconds() - self._changed_s >= self.rules.patience_s
        situation = self._situation()
        left = list(waiting_visits(situation))
        if not left:
            if self.state.states or (quiet and self.parts.until is None):
                return True
            self._tell_awaited((), situation)  # not one device was there yet
            return False
        if all(is_stuck(state, situation) for state in left):
            until = self.parts.until
            for_good = all(is_stuck_for_good(state, situation, until) for state in left)
            if for_good or (quiet and until is None):
                self._miss_all("the night was over")
            else:
                self._tell_awaited(awaited_devices(left, situation.barred), situation)
        return not self.state.waiting

    def _tell_awaited(self, devices: tuple[str, ...], situation: DispatchState) -> None:
        """Says for which devices the night waits, once for the same ones."""
        if devices != self._awaited:
            self._awaited = devices
            patience_s, until = self.rules.patience_s, self.parts.until
            self.events.tell(waiting_text(devices, situation.barred, self._name, patience_s, until))

    def _stop(self) -> NightEnd:
        """Ends what is under way; all of it is waited for, as some may just be done."""
        self.events.tell("stopping: what is under way is ended")
        for visit in list(self.state.running):
            self._cancel(visit)
        until_s = self.clock.seconds() + _STOPPING_S
        while self.state.running and self.clock.seconds() < until_s:
            try:
                self._collect(1.0)
            except Interrupted:
                break
        return self._end(stopped=True)

    def _cancel(self, visit: str) -> None:
        self.events.report_errors(lambda: self.engine.cancel(visit), "an attempt cannot be ended")

    def _finish(self) -> NightEnd:
        self._miss_unsatisfied()
        self.ledger.finish(self.night)
        return self._end(stopped=False)

    def _miss_unsatisfied(self) -> None:
        """Adds a missed visit for what no device could measure, so that every report names it."""
        # A phone that was offline before it said who it is has another identity now.
        names = {(offer.host, offer.name) for offer in self._usable.values()}
        broken = {
            identity: offer
            for identity, (offer, _) in self.devices.seen.items()
            if (offer.host, offer.name) not in names
        }
        seen = broken | self._usable
        plan = self.parts.plan(self.farm, self.night, tuple(seen.values()), self._window_s)
        unsatisfied = with_absent(
            self.farm, plan, seen.values(), self.parts.times.measured.values()
        )
        missing = unsatisfied_visits(self.night, self.state.states.values(), unsatisfied)
        if missing:
            self.state.add([VisitState(visit=visit) for visit, _ in missing])
            self.ledger.plan([visit for visit, _ in missing])
        for visit, reason in missing:
            self._give_up(visit.id, Standing.MISSED, reason)

    def _end(self, *, stopped: bool) -> NightEnd:
        return NightEnd(
            night=self.night,
            states=tuple(self.state.states.values()),
            stopped=stopped,
            devices={each: offer for each, (offer, _) in self.devices.seen.items()},
            quarantined=dict(self.devices.quarantine_reasons),
            unsatisfied=self._unsatisfied,
        )

    def _now_s(self) -> float:
        return self.clock.seconds() - self._begun_s

    def _name(self, identity: str) -> str:
        offer = self.devices.last_offer(identity)
        return offer.name if offer else identity
