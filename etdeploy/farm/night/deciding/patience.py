"""What is told while a night waits for devices, and nothing else is left to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from etdeploy.farm.model import VisitState
from etdeploy.farm.night.deciding.shelf import clock
from etdeploy.farm.night.model import Barred, listed

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
    """For which devices the night waits, why, and how long, in a line.

    Args:
        devices: Their identities; none if no device matches at all.
        barred: Why they cannot be used.
        name: What people call a device.
        patience_s: How long it waits without a window.
        until: When the window closes; None without one.
    """
    same: dict[str, list[str]] = {}
    for each in devices:
        same.setdefault(barred[each].text, []).append(name(each))
    why = [f"{listed(names)} ({text})" for text, names in same.items()]
    limit = f"up to {patience_s / 60:.0f} min"
    if until:
        limit = f"until the window closes at {clock(until)}"
    return f"waiting {limit} for {listed(why) or 'a device that matches'}; {_GOES_ON}"
