"""A night in simulated time: nothing sleeps, waiting moves the clock to what happens next."""

# ruff: noqa: ARG005 - parts that stand for others take what those take

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from etdeploy.devices.base import Bundle, ProcessLaunch
from etdeploy.farm.model import AttemptResult, AvailableDevice, BuildArtifact, Visit
from etdeploy.farm.night.dependencies import NightDependencies, Plan
from etdeploy.farm.night.loop import run_night
from etdeploy.farm.night.model import Event, NightEnd
from etdeploy.farm.night.scheduler import AttemptDurations
from etdeploy.farm.spec.matrix import NightPlan, Unsatisfied
from etdeploy.farm.spec.model import DeviceGroup, Farm, LoadedFarm
from etdeploy.farm.work.prepare import PreparedArtifacts
from tests.support.farm_sim_engine import BEGIN, Behaviour, SimClock, SimEngine
from tests.support.farm_sim_ledger import MemoryLedger, SimDevicePool


class AtOnce:
    """Does the work when it is begun, for simulated time."""

    def __init__(self) -> None:
        self._results: list[Any] = []

    @property
    def active(self) -> int:
        """How many were not fetched."""
        return len(self._results)

    def start(self, work: Callable[[], Any]) -> None:
        """Does it."""
        try:
            self._results.append(work())
        except Exception as error:
            self._results.append(error)

    def finished(self) -> list[Any]:
        """What ended since the last call."""
        found, self._results = self._results, []
        return found


def prepare(wanted: Mapping[str, Sequence[AvailableDevice]]) -> PreparedArtifacts:
    """An artifact for each pair; the same of a recipe everywhere."""
    artifacts = {
        recipe: BuildArtifact(
            key=recipe, recipe=recipe, target="android-arm64", soc=None, folder=f"/{recipe}",
            bundle=Bundle(files=(), launch=ProcessLaunch(argv=("runner",))), files={},
        )
        for recipe in wanted
    }  # fmt: skip
    return PreparedArtifacts(
        {
            (recipe, o.identity): artifacts[recipe]
            for recipe, offers in wanted.items()
            for o in offers
        },
        {},
    )


def plan(
    farm: Farm, night: str, offers: Sequence[AvailableDevice], window_s: float | None
) -> NightPlan:
    """Every device is in every group; a group with `take` gets that many visits each repeat."""
    devices = tuple(sorted({offer.identity for offer in offers}))
    visits: list[Visit] = []
    for repeat in range(1, farm.repeats + 1):
        begin_s = (repeat - 1) * window_s / farm.repeats if farm.spread and window_s else 0.0
        for recipe, group in farm.pairs:
            take = farm.groups[group].take
            each = devices if take is None else (None,) * min(take, len(devices))
            visits += [
                Visit(
                    id=f"{night}-{len(visits) + i + 1}",
                    recipe=recipe,
                    group=group,
                    device=device,
                    among=devices if device is None else (device,),
                    repeat=repeat,
                    not_before_s=begin_s,
                )
                for i, device in enumerate(each)
            ]
    missing = () if devices else farm.pairs
    lacks = [Unsatisfied(recipe=r, group=g, reason="no device matches") for r, g in missing]
    return NightPlan(visits=tuple(visits), unsatisfied=tuple(lacks))


def make_farm(
    recipes: Sequence[str] = ("a", "b"), take: int | None = None, **changes: object
) -> LoadedFarm:
    """A farm of these recipes on all phones."""
    values: dict[str, object] = {
        "name": "lab",
        "groups": {"phones": DeviceGroup(conditions=(), take=take)},
        "pairs": tuple((recipe, "phones") for recipe in recipes),
        "results": Path("/results"),
        "spread": False,
    }
    return LoadedFarm(Path("/farm.yaml"), Farm.model_validate(values | changes), {}, {})


class SimNight:
    """A farm, its engine and its ledger; `run` may be called again after a crash."""

    def __init__(
        self,
        loaded: LoadedFarm,
        offers: Sequence[AvailableDevice],
        behaviour: Behaviour | None = None,
        hours: float | None = None,
        wait_s: float = 60.0,
    ) -> None:
        self.loaded = loaded
        self.clock = SimClock()
        self.engine = SimEngine(self.clock, offers, behaviour)
        self.ledger = MemoryLedger()
        self.shelf = SimDevicePool(self.clock)
        self.until = BEGIN + timedelta(hours=hours) if hours else None
        self.wait_s = wait_s
        self.times = AttemptDurations()
        self.numbers: Callable[[AttemptResult], float | None] = lambda ending: None
        self.plan: Plan = plan
        self.prepare: Callable[[Mapping[str, Sequence[AvailableDevice]]], PreparedArtifacts] = (
            prepare
        )
        self.events: list[Event] = []
        self.kills = 0
        self.named: frozenset[tuple[str, str]] = frozenset()
        self.heard: Callable[[Event], None] = lambda event: None

    def run(self) -> NightEnd:
        """Runs the night, or goes on with it."""
        parts = NightDependencies(
            prepare=self.prepare,
            shelf=self.shelf,
            plan=self.plan,
            headline=self.numbers,
            times=self.times,
            background=AtOnce(),
            opened=BEGIN if self.until else None,
            until=self.until,
            wait_s=self.wait_s,
            look_s=self.wait_s,
            named=self.named,
        )
        return run_night(self.loaded, self.engine, self.ledger, self.clock, self._event, parts)

    def _event(self, event: Event) -> None:
        self.events.append(event)
        self.heard(event)

    @property
    def texts(self) -> list[str]:
        """What was told."""
        return [event.text for event in self.events if event.text]


def chaos(night: SimNight, seed: int, hours: float, offers: Sequence[AvailableDevice]) -> None:
    """Plans deaths of workers and hosts, phones that go and come, a database that is down."""
    draw = random.Random(seed)
    hosts = sorted({offer.host for offer in offers})
    engine, clock, end_s = night.engine, night.clock, hours * 3600

    def worker() -> None:
        if engine.under_way:
            victim = draw.choice(list(engine.under_way))
            engine.lose(lambda order: order.visit == victim)

    def host() -> None:
        gone = draw.choice(hosts)
        for offer in [offer for offer in engine.plugged if offer.host == gone]:
            engine.plugged.remove(offer)
            clock.at(clock.at_s + 900, partial(engine.plug, offer))
        engine.lose(lambda order: order.offer.host == gone)

    def cable() -> None:
        if engine.plugged:
            offer = draw.choice(engine.plugged)
            engine.unplug(offer.identity)
            clock.at(clock.at_s + draw.uniform(60, 3600), lambda: engine.plug(offer))

    def database() -> None:
        night.ledger.down = night.shelf.down = True
        clock.at(clock.at_s + 600, lambda: _up(night))

    for happens, often in ((worker, 40), (host, 6), (cable, 40), (database, 4)):
        for _ in range(often):
            clock.at(draw.uniform(0, end_s), happens)


def _up(night: SimNight) -> None:
    night.ledger.down = night.shelf.down = False
