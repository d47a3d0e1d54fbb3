"""The recovery ladder: reconnect, restart adb, reboot, each within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from etdeploy.core.errors import Interrupted
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.model import Offer, VisitState
from etdeploy.farm.night.dispatch import clock
from etdeploy.farm.night.model import Barred, listed

RECONNECT, RESTART, REBOOT = STEPS = ("reconnect", "restart", "reboot")
MOST = {RECONNECT: 4, RESTART: 2, REBOOT: 1}
"""How often each step is taken on a device in a night."""


def steps_after(
    offer: Offer,
    failures: int,
    quarantine_after: int,
    taken: Mapping[str, int],
    *,
    host_is_busy: bool,
) -> tuple[str, ...]:
    """The steps to take in turn, until one leaves the device without a problem.

    Where the ladder begins depends on the failures in a row: at reconnect after the first one, at
    reboot after the last one before the device is set aside. Nothing reboots the coordinator's or
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
    offer: Offer | None
    problem: str = ""


def climb(engine: Engine, offer: Offer, steps: tuple[str, ...]) -> RecoveryResult:
    """Takes the steps until one helps."""
    taken, problem = [], offer.problem
    for step in steps:
        taken.append(step)
        try:
            after = engine.recover(offer, step, _unheard)
        except Interrupted:
            raise
        except Exception as error:  # a step that fails is a reason for the next
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            continue
        if not after.problem:
            return RecoveryResult(offer.identity, tuple(taken), after)
        problem = after.problem
    return RecoveryResult(offer.identity, tuple(taken), None, problem)


def _unheard(text: str) -> None:
    """The night has told the steps, and tells how they ended."""


_GOES_ON = "Ctrl-C ends it, the same command goes on"


def awaited(left: Iterable[VisitState], barred: Mapping[str, Barred]) -> tuple[str, ...]:
    """The devices that the visits that are left would need, by identity."""
    found: dict[str, None] = {}
    for state in left:
        visit = state.visit
        devices = visit.among if visit.device is None else (visit.device,)
        found.update(dict.fromkeys(each for each in devices if each in barred))
    return tuple(found)


def waits_for(
    devices: Iterable[str],
    barred: Mapping[str, Barred],
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
        limit = f"until the window closes at {clock(until)}"
    return f"waiting {limit} for {listed(why) or 'a device that matches'}; {_GOES_ON}"
