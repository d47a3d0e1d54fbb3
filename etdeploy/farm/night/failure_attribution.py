"""Whose failure an attempt's was, and when a recipe is stopped or a device quarantined. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import median

from etdeploy.core.values import StrEnum
from etdeploy.farm.model import STOPPED, AttemptResult, Fate, Gates, Health
from etdeploy.farm.night.model import Rules, listed

# Of an attempt, these can only be the host's: it exports and builds nothing.
_OF_HOST = ("host", "disk full", "farm", "build", "output", "history", "usage")
_OF_DEVICE = "device"
_NOBODYS = ("interrupted", "in use", "gate")
_NO_ROOM = ("no room", "no space left", "disk full", "disk is full", "quota exceeded")
_HOT = ("severe", "critical", "emergency", "shutdown")
# What cannot get better by itself is known after two.
_SURE_AFTER = 2
# Of the rule of the variance: a device's spread is odd from both on.
_TIMES_THE_OTHERS = 4.0
_LEAST_SPREAD = 0.15
_LEAST_REPEATS = 3
_LEAST_OTHERS = 4


class FailureOwner(StrEnum):
    """Whose failure it was."""

    RECIPE = "recipe"
    DEVICE = "device"
    DISK = "disk"
    HEAT = "heat"
    UNAUTHORISED = "unauthorised"
    LOCKED = "locked"
    HOST = "host"


DEVICE_FAILURES = (
    FailureOwner.DEVICE,
    FailureOwner.DISK,
    FailureOwner.HEAT,
    FailureOwner.UNAUTHORISED,
    FailureOwner.LOCKED,
)


@dataclass(frozen=True)
class AttributedFailure:
    """An attempt that did not end well, as the rules look at it.

    Attributes:
        recipe: Its label.
        identity: Of the device.
        device: What people call it.
        host: That did it.
        trouble: Whose failure it was.
        text: What happened.
        remedy: What to do about it, in a line; empty where nothing is known.
    """

    recipe: str
    identity: str
    device: str
    host: str
    trouble: FailureOwner
    text: str
    remedy: str = ""


def attribute_failure(ending: AttemptResult, gates: Gates) -> FailureOwner | None:
    """Whose failure it was; None where it was nobody's: done, lost, stopped, or a low battery."""
    if ending.fate in (Fate.DONE, Fate.LOST):
        return None
    failure = ending.failure
    its_own = ending.fate is Fate.PUT_OFF or failure is None or failure.kind == _OF_DEVICE
    if its_own and ending.health and (found := _unfit(ending.health, gates)):
        return found
    if ending.fate is Fate.PUT_OFF or (failure and failure.kind in _NOBODYS):
        return None
    if failure is None:
        return FailureOwner.RECIPE
    if failure.kind in _OF_HOST:
        return FailureOwner.HOST
    return _of_device(failure.message) if failure.kind == _OF_DEVICE else FailureOwner.RECIPE


def _unfit(health: Health, gates: Gates) -> FailureOwner | None:
    free, warm = health.free_bytes, health.temperature_celsius
    if free is not None and gates.free_bytes is not None and free < gates.free_bytes:
        return FailureOwner.DISK
    if health.thermal_status in _HOT:
        return FailureOwner.HEAT
    if warm is not None and gates.temperature_celsius is not None:
        return FailureOwner.HEAT if warm > gates.temperature_celsius else None
    return None


def _of_device(message: str) -> FailureOwner:
    text = message.lower()
    if "unauthori" in text:
        return FailureOwner.UNAUTHORISED
    # A restart would only lock it again: an iPhone's data are encrypted until it is unlocked.
    if "is locked" in text:
        return FailureOwner.LOCKED
    return FailureOwner.DISK if any(words in text for words in _NO_ROOM) else FailureOwner.DEVICE


def counts_as_attempt(ending: AttemptResult, gates: Gates) -> bool:
    """Whether it counts as one of the visit's attempts: not what the host or nobody did."""
    if ending.fate is not Fate.FAILED:
        return False
    nobodys = ending.failure is not None and ending.failure.kind in _NOBODYS
    return not nobodys and attribute_failure(ending, gates) is not FailureOwner.HOST


def result_text(ending: AttemptResult) -> str:
    """What happened, in a line."""
    if ending.failure:
        return ending.failure.message.splitlines()[0] if ending.failure.message else "no reason"
    return "its worker or host is gone" if ending.fate is Fate.LOST else str(ending.fate)


def stop_reason(
    failures: Sequence[AttributedFailure], succeeded: bool, sound: Collection[str], rules: Rules
) -> str | None:
    """Why a recipe is stopped for the night; None where it is not."""
    own = _recipe_failures(failures, sound)
    if succeeded or len(own) < rules.stop_after:
        return None
    last = list(own.values())[-1]
    names = listed(sorted(seen.device for seen in own.values()))
    return (
        f"{STOPPED}: it failed on {len(own)} devices and succeeded on none ({names}); "
        f"the last: {last.text}"
    )


def _recipe_failures(
    failures: Sequence[AttributedFailure], sound: Collection[str]
) -> dict[str, AttributedFailure]:
    """The last failure of a recipe on each device where it is to blame.

    A program that takes the phone down looks like a phone that goes away. It is the recipe where
    the phone can measure another one, and where the phone came back and went away again: a cable
    or a hub does not wait for the same recipe.
    """
    found: dict[str, AttributedFailure] = {}
    gone: set[str] = set()
    for seen in failures:
        again = seen.identity in gone or seen.identity in sound
        if seen.trouble is FailureOwner.RECIPE or (seen.trouble is FailureOwner.DEVICE and again):
            found[seen.identity] = seen
        elif seen.trouble is FailureOwner.DEVICE:
            gone.add(seen.identity)
    return found


def room_for_trials(
    failures: Sequence[AttributedFailure], running: int, sound: Collection[str], rules: Rules
) -> int:
    """How many more attempts of a recipe may begin that has not succeeded in this night.

    So a recipe that crashes every phone crashes `stop_after` of them, however many are free.
    """
    return max(0, rules.stop_after - len(_recipe_failures(failures, sound)) - running)


def quarantine_reason(
    row: Sequence[AttributedFailure],
    succeeds_elsewhere: Callable[[str, str], bool],
    loses_others: Callable[[str, str], bool],
    rules: Rules,
) -> str | None:
    """Why a device is quarantined; None where it is not."""
    for trouble, needed in (
        (FailureOwner.DISK, _SURE_AFTER),
        (FailureOwner.UNAUTHORISED, _SURE_AFTER),
        (FailureOwner.LOCKED, _SURE_AFTER),
        (FailureOwner.HEAT, rules.quarantine_after),
    ):
        found = [seen for seen in row if seen.trouble is trouble]
        if len(found) >= min(needed, rules.quarantine_after):
            return f"{_NAMES[trouble]} {len(found)} times in a row: {found[-1].text}"
    own = [
        seen
        for seen in row
        if seen.trouble in DEVICE_FAILURES
        and not (seen.trouble is FailureOwner.DEVICE and loses_others(seen.recipe, seen.identity))
    ]
    if len(own) >= rules.quarantine_after:
        return f"{len(own)} attempts in a row failed there: {own[-1].text}"
    odd = [seen for seen in row if seen.trouble is FailureOwner.RECIPE]
    if len(odd) < rules.quarantine_after:
        return None
    if not all(succeeds_elsewhere(seen.recipe, seen.identity) for seen in odd):
        return None
    names = listed(sorted({seen.recipe for seen in odd}))
    return (
        f"{len(odd)} attempts in a row failed there, of recipes that succeed elsewhere ({names}): "
        f"{odd[-1].text}"
    )


_NAMES = {
    FailureOwner.DISK: "no room on it,",
    FailureOwner.UNAUTHORISED: "it did not accept this computer's key,",
    FailureOwner.LOCKED: "it has to be unlocked,",
    FailureOwner.HEAT: "too warm,",
}


def relative_range(values: Sequence[float]) -> float | None:
    """(largest - smallest) / median of a recipe's repeats on one device; None with too few.

    Not a standard deviation: of three values, that says less about one that is off.
    """
    if len(values) < _LEAST_REPEATS or median(values) <= 0:
        return None
    return (max(values) - min(values)) / median(values)


def variance_reason(own: Sequence[float], others: Sequence[float]) -> str | None:
    """Why a device's numbers cannot be trusted; None where they are like the others'.

    The rule: the median of its recipes' spreads is above 15 %, and above four times the median of
    the spreads on all other devices. Both are needed: quiet devices differ by four times between
    1 and 4 %, and a noisy recipe is so everywhere. With less than four spreads elsewhere, nothing
    is said.
    """
    if not own or len(others) < _LEAST_OTHERS:
        return None
    mine, theirs = median(own), median(others)
    if mine <= _LEAST_SPREAD or mine <= _TIMES_THE_OTHERS * theirs:
        return None
    return (
        f"its repeats are {100 * mine:.0f} % apart, and those on other devices {100 * theirs:.0f} %"
    )
