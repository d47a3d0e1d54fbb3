"""Devices on hosts in simulated time."""

# ruff: noqa: ARG005 - parts that stand for others take what those take

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from etdeploy.devices.base import Capabilities, DeviceFacts
from etdeploy.farm.model import AttemptFailure, AttemptResult, AvailableDevice, Fate, Health, Order

BEGIN = datetime(2026, 11, 23, 22, 0, tzinfo=timezone.utc)
CRASH = AttemptFailure(kind="run", exit_code=7, message="SIGSEGV")
OFFLINE = AttemptFailure(kind="device", exit_code=6, message="device offline")


class SimClock:
    """Time that only moves when somebody waits."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self._events: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> datetime:
        return BEGIN + timedelta(seconds=self.at_s)

    def seconds(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        until = self.at_s + seconds
        while self.next_s <= until:
            self.happen()
        self.at_s = max(self.at_s, until)

    def at(self, seconds: float, happens: Callable[[], None]) -> None:
        """Lets something happen at that time of the simulation."""
        self._events.append((seconds, happens))
        self._events.sort(key=lambda each: each[0])

    @property
    def next_s(self) -> float:
        """When the next thing happens."""
        return self._events[0][0] if self._events else float("inf")

    def happen(self) -> None:
        """Lets the next thing happen."""
        at, happens = self._events.pop(0)
        self.at_s = max(self.at_s, at)
        happens()


def offer_of(number: int, hosts: int = 1, **changes: object) -> AvailableDevice:
    """A phone; phones are dealt out to hosts."""
    name = f"android:phone-{number:03d}"
    facts = DeviceFacts(name=name, kind="android", target="android-arm64", soc="SM8650")
    values = {
        "identity": f"phone-{number:03d}",
        "name": name,
        "host": f"host-{number % hosts}",
        "facts": facts,
        "capabilities": Capabilities(),
    }
    return AvailableDevice.model_validate(values | changes)


@dataclass
class Script:
    """What happens with an attempt: how it ends, and after how long."""

    seconds: float = 300.0
    fate: Fate = Fate.DONE
    failure: AttemptFailure | None = None
    health: Health | None = None


Behaviour = Callable[[Order, int], Script]
"""From an order, and how often its device was used before."""


class SimEngine:
    """Hosts with devices; asserts that no device is given two attempts at once.

    Attributes:
        plugged: Devices that are offered now.
        worst: The most attempts that any device had at once.
        busy_s: Seconds of all attempts together.
        late: Endings that come from nowhere: of attempts that were given up for lost.
    """

    def __init__(
        self, clock: SimClock, offers: Sequence[AvailableDevice], behaviour: Behaviour | None = None
    ) -> None:
        self.clock = clock
        self.plugged = list(offers)
        self.behaviour = behaviour or (lambda order, used: Script())
        self.under_way: dict[str, tuple[float, Order, Script]] = {}
        self.started: list[Order] = []
        self.used: Counter[str] = Counter()
        self.recovered: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.late: list[AttemptResult] = []
        self.worst = 0
        self.busy_s = 0.0

    def offers(self) -> Sequence[AvailableDevice]:
        return tuple(self.plugged)

    def start(self, order: Order) -> None:
        identity = order.offer.identity
        at_once = 1 + sum(o.offer.identity == identity for _, o, _ in self.under_way.values())
        self.worst = max(self.worst, at_once)
        script = self.behaviour(order, self.used[identity])
        if all(each.identity != identity for each in self.plugged):
            script = Script(1.0, Fate.FAILED, OFFLINE)
        self.used[identity] += 1
        self.started.append(order)
        self.under_way[order.visit] = (self.clock.at_s + script.seconds, order, script)

    def ended(self, wait_s: float) -> Sequence[AttemptResult]:
        until = self.clock.at_s + wait_s
        while not self._over():
            upcoming = min((at for at, _, _ in self.under_way.values()), default=float("inf"))
            if min(upcoming, self.clock.next_s) > until:
                self.clock.at_s = max(self.clock.at_s, until)
                return []
            if self.clock.next_s <= upcoming:
                self.clock.happen()
            else:
                self.clock.at_s = upcoming
        return self._pop()

    def _over(self) -> bool:
        return bool(self.late) or any(at <= self.clock.at_s for at, _, _ in self.under_way.values())

    def _pop(self) -> list[AttemptResult]:
        done = [v for v, (at, _, _) in self.under_way.items() if at <= self.clock.at_s]
        late, self.late = self.late, []
        return late + [self._ending(*self.under_way.pop(visit)[1:]) for visit in done]

    def _ending(self, order: Order, script: Script) -> AttemptResult:
        is_done = script.fate is Fate.DONE
        self.busy_s += script.seconds
        return AttemptResult(
            visit=order.visit,
            attempt=order.attempt,
            identity=order.offer.identity,
            host=order.offer.host,
            fate=script.fate,
            run_id=f"{order.visit}-{order.attempt}" if is_done else None,
            record=f"/records/{order.visit}-{order.attempt}" if is_done else None,
            failure=script.failure,
            health=script.health,
            seconds=script.seconds,
        )

    def lose(self, which: Callable[[Order], bool]) -> None:
        """Kills workers: their attempts are lost now."""
        for visit, (_, order, _) in list(self.under_way.items()):
            if which(order):
                self.under_way[visit] = (self.clock.at_s, order, Script(0.0, Fate.LOST))

    def unplug(self, identity: str, failure: AttemptFailure = OFFLINE) -> None:
        """Pulls a device; what it does fails now."""
        self.plugged = [offer for offer in self.plugged if offer.identity != identity]
        for visit, (_, order, _) in list(self.under_way.items()):
            if order.offer.identity == identity:
                failed = Script(0.0, Fate.FAILED, failure)
                self.under_way[visit] = (self.clock.at_s, order, failed)

    def plug(self, offer: AvailableDevice) -> None:
        """Plugs a device in."""
        self.plugged = [o for o in self.plugged if o.identity != offer.identity] + [offer]

    def cancel(self, visit: str) -> None:
        self.cancelled.append(visit)
        if visit in self.under_way:
            _, order, _ = self.under_way[visit]
            self.under_way[visit] = (self.clock.at_s, order, Script(0.0, Fate.LOST))

    def recover(self, offer: AvailableDevice, step: str) -> AvailableDevice:
        self.recovered.append((offer.identity, step))
        is_there = any(each.identity == offer.identity for each in self.plugged)
        return offer.model_copy(update={"problem": "" if is_there else "it is not there"})

    def close(self) -> None:
        self.under_way.clear()
