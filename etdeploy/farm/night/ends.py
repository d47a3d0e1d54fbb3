"""How attempts and visits end: what follows for the visit, its recipe and its device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from etdeploy.core.hashing import sha256_file
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.model import AttemptResult, Fate, Standing, VisitState
from etdeploy.farm.night.board import Numbers, Parcels, RunState
from etdeploy.farm.night.dependencies import LedgerLike
from etdeploy.farm.night.devices import Devices
from etdeploy.farm.night.dispatch import DispatchState, missed_because, waiting
from etdeploy.farm.night.model import Event, EventKind, EventSink
from etdeploy.farm.spec.model import LoadedFarm


class Ends:
    """Takes what ended."""

    def __init__(
        self,
        board: RunState,
        ledger: LedgerLike,
        devices: Devices,
        numbers: Numbers,
        parcels: Parcels,
        engine: Engine,
        events: EventSink,
        situation: Callable[[], DispatchState],
    ) -> None:
        self.board, self.ledger, self.devices = board, ledger, devices
        self.numbers, self.parcels, self.engine = numbers, parcels, engine
        self.events, self.situation = events, situation

    def take(self, ending: AttemptResult, now_s: float) -> None:
        """Takes an attempt that ended, at this second of the night."""
        state = self.board.states.get(ending.visit)
        if state is None:
            self.events.trouble(f"an attempt ended that is none of this night's: {ending.visit}")
            return
        is_new = state.result is None
        self.ledger.ended(ending)
        told = self.board.end(ending, now_s)
        self.events.event(Event(EventKind.ENDED, ending=ending, state=told.state))
        if ending.fate is Fate.DONE and is_new:
            self._done(told.state, ending)
        if told.seen:
            row = self.board.rows.get(ending.identity, ())
            hosts = {order.offer.host for order in self.board.running.values()}
            board = self.board
            self.devices.failed(told.seen, row, board.succeeds_elsewhere, board.loses_others, hosts)
        if told.finished:
            self._finished(told.state)
        self.stop_recipes()
        self.give_up_stopped(ending.visit)

    def _done(self, state: VisitState, ending: AttemptResult) -> None:
        visit = state.visit
        self.devices.succeeded(ending.host)
        if visit.id in self.board.running:  # another attempt, as this one was given up for lost
            self.events.report_errors(
                lambda: self.engine.cancel(visit.id), "an attempt cannot be ended"
            )
        self.events.report_errors(
            lambda: self.numbers.add(visit.recipe, ending), "a record cannot be read"
        )
        if reason := self.numbers.odd(visit.recipe, ending.identity):
            self.devices.set_aside(ending.identity, reason)

    def stop_recipes(self) -> None:
        """Gives up what waits of recipes that fail everywhere."""
        for recipe, reason in self.board.to_stop().items():
            self.events.tell(f"{recipe}: {reason}")
            for visit in self.board.waiting_of(recipe):
                self.give_up(visit, Standing.FAILED, reason)

    def give_up_stopped(self, visit: str) -> None:
        """Gives a visit up if it waits and its recipe is stopped."""
        state = self.board.states[visit]
        reason = self.board.stopped.get(state.visit.recipe)
        if reason and state.standing is Standing.WAITING:
            self.give_up(visit, Standing.FAILED, reason)

    def give_up(self, visit: str, standing: Standing, reason: str) -> None:
        """A waiting visit will not be measured."""
        self._finished(self.board.give_up(visit, standing, reason))

    def _finished(self, state: VisitState) -> None:
        if state.standing in (Standing.FAILED, Standing.MISSED):
            self.ledger.give_up(state.visit.id, state.standing, state.reason)
        last = state.attempts[-1].identity if state.attempts else state.visit.device
        self.events.event(
            Event(EventKind.FINISHED, state=state, offer=self.devices.last_offer(last or ""))
        )

    def give_up_unmade(self) -> None:
        """Fails visits for which nothing can be exported or built."""
        for state in list(waiting(self.situation())):
            why = self.parcels.why_not(state)
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
            self.board.add_attempt(ending)
            first = why[1].message.partition("\n")[0]
            self.give_up(state.visit.id, Standing.FAILED, f"{why[1].kind}: {first}")

    def miss_all(self, over: str) -> None:
        """Gives up every visit that waits; `over` says why nothing else begins."""
        if self.board.waiting:
            situation = self.situation()
            for state in list(waiting(situation)):
                reason = missed_because(state, situation, over)
                self.give_up(state.visit.id, Standing.MISSED, reason)


def digest_of(loaded: LoadedFarm) -> str:
    """SHA-256 of the farm's values and of every file of its recipes and their apps.

    A night is only gone on with while both are the same: else two of its repeats would measure
    different things. A comment in farm.yaml changes nothing.
    """
    found = hashlib.sha256(loaded.farm.model_dump_json().encode())
    for label, recipe in sorted(loaded.recipes.items()):
        found.update(f"\n{label}\n{recipe.recipe.model_dump_json()}".encode())
        for _, sha256 in recipe.files:
            found.update(f"\n{sha256}".encode())
        if label in loaded.farm.apps:
            found.update(f"\n{sha256_file(loaded.farm.apps[label])}".encode())
    return found.hexdigest()
