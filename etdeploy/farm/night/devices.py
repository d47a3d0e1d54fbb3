"""The devices of a running night: which may be used now, and what is done about the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from etdeploy.core.errors import Interrupted
from etdeploy.device_pool import local_time
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.model import NOT_PLUGGED_IN, AvailableDevice
from etdeploy.farm.night.dependencies import Background, Clock, DevicePool
from etdeploy.farm.night.failure_attribution import (
    DEVICE_FAILURES,
    AttributedFailure,
    FailureOwner,
    quarantine_reason,
)
from etdeploy.farm.night.model import EventSink, Rules, Unavailable, UnavailableKind, listed
from etdeploy.farm.night.scheduler import DeviceHosts, choose_hosts, find_unavailable
from etdeploy.farm.night.state import RunState
from etdeploy.history.nights import Quarantined, Reservation

_HOST_FAILURES = 2
_HOST_PAUSE_S = 600.0
# A phone that was just plugged in says "unauthorized" or "offline" for a moment.
_PROBLEM_S = 120.0


class Devices:
    """Every device that the night has seen; changed by one thread.

    Attributes:
        offers: That are there now, each device once; those with a problem too.
        seen: Every device as it was offered last, and when.
        quarantine_reasons: Of devices that this night has quarantined, by identity.
        recovering: Identities of those that are on the ladder.
    """

    def __init__(
        self,
        engine: Engine,
        shelf: DevicePool,
        clock: Clock,
        rules: Rules,
        background: Background,
        events: EventSink,
    ) -> None:
        self._engine, self._shelf, self._clock, self._rules = engine, shelf, clock, rules
        self._background = background
        self._tell, self._trouble = events.tell, events.trouble
        self.offers: dict[str, AvailableDevice] = {}
        self.seen: dict[str, tuple[AvailableDevice, datetime]] = {}
        self.quarantine_reasons: dict[str, str] = {}
        self.recovering: set[str] = set()
        self._unnoted: set[str] = set()
        self._reservations: Sequence[Reservation] = ()
        self._quarantined: Sequence[Quarantined] = ()
        self._doubles: dict[str, tuple[str, ...]] = {}
        self._steps: dict[str, Counter[str]] = {}
        self._problem_since: dict[str, float] = {}
        self._restarting: dict[str, str] = {}
        self._host_failures: Counter[str] = Counter()
        self._host_until: dict[str, tuple[datetime, str]] = {}

    def look(self) -> None:
        """Asks the engine and the shelf; what cannot be asked stays as it was."""
        try:
            offers = tuple(self._engine.offers())
        except Interrupted:
            raise
        except Exception as error:
            self._trouble(f"which devices are there is not known now: {error}")
            return
        found = choose_hosts(offers, {each: offer.host for each, offer in self.offers.items()})
        self._tell_changes(found)
        now = self._clock.now()
        self.offers, self._doubles = found.held, found.doubles
        self.seen.update({each: (offer, now) for each, offer in found.held.items()})
        self._look_at_shelf()

    def _look_at_shelf(self) -> None:
        try:
            self._reservations = self._shelf.reservations()
            self._quarantined = self._shelf.quarantined()
            for identity in sorted(self._unnoted):
                self._shelf.quarantine_device(
                    self.seen[identity][0], self.quarantine_reasons[identity]
                )
                self._unnoted.discard(identity)
        except Interrupted:
            raise
        except Exception as error:
            # The ledger tells the remedy.
            why = str(error).partition("\n")[0]
            self._trouble(f"reservations and quarantine are not known now: {why}")

    def _tell_changes(self, found: DeviceHosts) -> None:
        for identity, offer in found.held.items():
            others = found.doubles.get(identity, ())
            if others and others != self._doubles.get(identity):
                self._tell(
                    f"{offer.name} is offered by {offer.host} and {', '.join(others)}: "
                    f"{offer.host} has it, the others would take over"
                )
            before = self.offers.get(identity)
            if before and before.host != offer.host:
                self._tell(f"{offer.name} is now measured by {offer.host}, not {before.host}")
            if before and before.problem and not offer.problem:
                self._tell(f"{offer.name} can be used again")
        new = found.held.keys() - self.offers.keys()
        self._tell_each_host((found.held[each] for each in new & self.seen.keys()), "back on")
        gone = self.offers.keys() - found.held.keys()
        self._tell_each_host((self.offers[each] for each in gone), "gone from")

    def _tell_each_host(self, offers: Iterable[AvailableDevice], what: str) -> None:
        """A host that is gone is a sentence, however many devices it has."""
        names: dict[str, list[str]] = {}
        for offer in offers:
            names.setdefault(offer.host, []).append(offer.name)
        for host, each in sorted(names.items()):
            verb = "is" if len(each) == 1 else "are"
            self._tell(f"{listed(sorted(each))} {verb} {what} {host}")

    def last_offer(self, identity: str) -> AvailableDevice | None:
        """The device as it was offered last."""
        found = self.seen.get(identity)
        return found[0] if found else None

    def find_unavailable(self, wanted: Collection[str]) -> dict[str, Unavailable]:
        """Why devices may not be used now, by identity; `wanted` are those of the visits."""
        found = find_unavailable(
            self.offers, self.seen, self._reservations, self._quarantined, self.quarantine_reasons
        )
        for identity in wanted:
            if identity not in self.seen:
                found[identity] = Unavailable(UnavailableKind.AWAY, NOT_PLUGGED_IN)
        for identity in self.recovering:
            found.setdefault(identity, Unavailable(UnavailableKind.RECOVERING, "being recovered"))
        now = self._clock.now()
        for identity, offer in self.offers.items():
            if offer.host in self._restarting.values():
                found.setdefault(
                    identity, Unavailable(UnavailableKind.HOST, f"adb restarts on {offer.host}")
                )
            until, why = self._host_until.get(offer.host, (now, ""))
            if until > now:
                text = f"its host {offer.host} is left alone until {local_time(until)}: {why}"
                found.setdefault(identity, Unavailable(UnavailableKind.HOST, text, until))
        return found

    def succeeded(self, host: str) -> None:
        """An attempt on the host was measured."""
        del self._host_failures[host]

    def failed(
        self,
        seen: AttributedFailure,
        row: Sequence[AttributedFailure],
        state: RunState,
        busy_hosts: Collection[str],
    ) -> None:
        """An attempt failed: recovers the device, quarantines it, or pauses its host."""
        if seen.trouble is FailureOwner.HOST:
            self._host_failed(seen)
            return
        reason = quarantine_reason(row, state.succeeds_elsewhere, state.loses_others, self._rules)
        if reason:
            self.quarantine_device(seen.identity, reason)
        elif seen.trouble is FailureOwner.DEVICE:
            failures = sum(each.trouble in DEVICE_FAILURES for each in row)
            self._recover_after(seen.identity, failures, busy_hosts)

    def _host_failed(self, seen: AttributedFailure) -> None:
        self._host_failures[seen.host] += 1
        if self._host_failures[seen.host] >= _HOST_FAILURES:
            now = self._clock.now()
            before, _ = self._host_until.get(seen.host, (now, ""))
            until = now + timedelta(seconds=_HOST_PAUSE_S)
            self._host_until[seen.host] = (until, seen.text)
            if before <= now:  # others that were under way there fail, too
                todo = f" ({seen.remedy})" if seen.remedy else ""
                end = local_time(until)
                self._tell(f"{seen.host} is left alone until {end}: {seen.text}{todo}")

    def quarantine_device(self, identity: str, reason: str) -> None:
        """Quarantines a device; a shelf that cannot be written is asked again later."""
        if identity in self.quarantine_reasons or identity not in self.seen:
            return
        self.quarantine_reasons[identity] = reason
        self._unnoted.add(identity)
        self._tell(f"{self.seen[identity][0].name} is quarantined: {reason}")
        self._look_at_shelf()

    def _recover_after(self, identity: str, failures: int, busy_hosts: Collection[str]) -> None:
        offer = self.offers.get(identity)
        if offer is None or identity in self.recovering:
            return
        steps = recovery_steps(
            offer,
            failures,
            self._rules.quarantine_after,
            self._steps.get(identity, Counter()),
            host_is_busy=offer.host in busy_hosts,
        )
        self._climb(offer, steps)

    def recover_problems(
        self, needed: Collection[str], busy: Collection[str], hosts: Collection[str]
    ) -> None:
        """Recovers devices that are there with a problem for a while, if a visit needs them."""
        now_s = self._clock.seconds()
        for identity, offer in self.offers.items():
            if not offer.problem:
                self._problem_since.pop(identity, None)
                continue
            since_s = self._problem_since.setdefault(identity, now_s)
            if now_s - since_s < _PROBLEM_S or identity not in needed or identity in busy:
                continue
            self._problem_since[identity] = now_s
            if "unauthori" in offer.problem.lower():
                todo = f" ({offer.remedy})" if offer.remedy else ""
                self.quarantine_device(identity, f"{offer.problem}{todo}")
            elif identity not in self.recovering and identity not in self.quarantine_reasons:
                taken = self._steps.get(identity, Counter())
                self._climb(offer, steps_for_problem(taken, host_is_busy=offer.host in hosts))

    def _climb(self, offer: AvailableDevice, steps: tuple[str, ...]) -> None:
        if not steps:
            return
        self.recovering.add(offer.identity)
        self._tell(f"{offer.name}: {', then '.join(steps)}")
        if RESTART in steps:
            self._restarting[offer.identity] = offer.host
        self._background.start(lambda: run_recovery(self._engine, offer, steps))

    def recovered(self, done: RecoveryResult) -> None:
        """The ladder ended for a device."""
        self.recovering.discard(done.identity)
        self._restarting.pop(done.identity, None)
        # A step that was not reached does not count.
        self._steps.setdefault(done.identity, Counter()).update(done.steps)
        name = self.seen[done.identity][0].name
        if done.offer:
            self.offers[done.identity] = done.offer
            self._tell(f"{name} can be used again after: {done.steps[-1]}")
        else:
            # The host may offer it without a problem until it looks again.
            if offer := self.offers.get(done.identity):
                problem = offer.problem or done.problem
                self.offers[done.identity] = offer.model_copy(update={"problem": problem})
            self._tell(f"{name} still cannot be used after {', '.join(done.steps)}: {done.problem}")


RECONNECT, RESTART, REBOOT = STEPS = ("reconnect", "restart", "reboot")
MOST = {RECONNECT: 4, RESTART: 2, REBOOT: 1}
"""How often each step is taken on a device in a night."""


def recovery_steps(
    offer: AvailableDevice,
    failures: int,
    quarantine_after: int,
    taken: Mapping[str, int],
    *,
    host_is_busy: bool,
) -> tuple[str, ...]:
    """The steps to take in turn, until one leaves the device without a problem.

    Where the ladder begins depends on the failures in a row: at reconnect after the first one, at
    reboot after the last one before the device is quarantined. Nothing reboots the coordinator's or
    a worker's own computer.
    """
    if offer.capabilities.is_here or offer.capabilities.shares_cores:
        return ()
    chances = quarantine_after - 1
    if failures > chances:
        return ()
    top = len(STEPS) - 1
    begin = round((failures - 1) * top / (chances - 1)) if chances > 1 else 0
    return _allowed(STEPS[min(begin, top) :], taken, host_is_busy)


def steps_for_problem(taken: Mapping[str, int], *, host_is_busy: bool) -> tuple[str, ...]:
    """The steps for a device that is there, and cannot be used, before anything failed on it.

    It is not rebooted: nobody knows what it is doing.
    """
    return _allowed((RECONNECT, RESTART), taken, host_is_busy)


def _allowed(
    steps: tuple[str, ...], taken: Mapping[str, int], host_is_busy: bool
) -> tuple[str, ...]:
    return tuple(
        step
        for step in steps
        if taken.get(step, 0) < MOST[step] and not (step == RESTART and host_is_busy)
    )


@dataclass(frozen=True)
class RecoveryResult:
    """What the ladder did.

    Attributes:
        identity: Of the device.
        steps: That were taken.
        offer: The device, without a problem; None if it still has one.
        problem: What is still wrong.
    """

    identity: str
    steps: tuple[str, ...]
    offer: AvailableDevice | None
    problem: str = ""


def run_recovery(engine: Engine, offer: AvailableDevice, steps: tuple[str, ...]) -> RecoveryResult:
    """Takes the steps until one helps."""
    taken, problem = [], offer.problem
    for step in steps:
        taken.append(step)
        try:
            after = engine.recover(offer, step)
        except Interrupted:
            raise
        except Exception as error:  # a step that fails is a reason for the next
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            continue
        if not after.problem:
            return RecoveryResult(offer.identity, tuple(taken), after)
        problem = after.problem
    return RecoveryResult(offer.identity, tuple(taken), None, problem)
