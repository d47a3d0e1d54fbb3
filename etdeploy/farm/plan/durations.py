"""How long visits take: from earlier runs of the same recipe on the same device, or guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from etdeploy.core.console import count
from etdeploy.farm.model import Offer, Visit
from etdeploy.farm.plan.model import Lasts

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store

# By (recipe label, identity): seconds of earlier runs.
Earlier = Mapping[tuple[str, str], Sequence[float]]
# A recipe of usual size with its starts, cooling down in between.
_GUESS_S = 120.0
_RUNS = 5
_NIGHTS = 5


def earlier_seconds(
    store: Store, names: Mapping[str, str], offers: Iterable[Offer]
) -> dict[tuple[str, str], list[float]]:
    """What the passes of the latest runs of each pair took in the history.

    Args:
        store: The history.
        names: The recipes' names by their labels.
        offers: The devices.
    """
    from etdeploy.history.series import DeviceIdentity
    from etdeploy.history.store.store import Filter

    identities = {offer.identity: DeviceIdentity.of(offer.facts) for offer in offers}
    found: dict[tuple[str, str], list[float]] = {}
    for name in set(names.values()):
        for known in store.series(Filter(recipe=name)):
            own = [i for i, device in identities.items() if device == known.series.device]
            if not own:
                continue
            entries = store.entries(Filter(series=known.series.key), _RUNS)
            took = [_seconds(store.content(entry.run_id)) for entry in entries]
            for label in (label for label, its in names.items() if its == name):
                for identity in own:
                    found.setdefault((label, identity), []).extend(filter(None, took))
    return found


def visited_seconds(store: Store, farm: str) -> dict[tuple[str, str], list[float]]:
    """What visits took in the latest nights of a farm: push, waiting and measurement.

    Args:
        store: The history.
        farm: Its name.
    """
    from etdeploy.history.store.nights import nights_of, visits_of

    found: dict[tuple[str, str], list[float]] = {}
    with store.transaction() as connection:
        visits = [
            visit
            for night in nights_of(connection, farm, _NIGHTS)
            for visit in visits_of(connection, night.id)
        ]
    for visit in visits:
        for attempt in visit.attempts:
            if attempt.counts and attempt.content:
                pair = (visit.content["recipe"], attempt.identity)
                found.setdefault(pair, []).append(float(attempt.content["seconds"]))
    return found


def _seconds(record: Mapping[str, Any] | None) -> float:
    """The wall time of a record's passes; 0 where it does not say."""
    passes = record.get("passes") if record else None
    return sum(float(each["seconds"]) for each in passes.values()) if passes else 0.0


def lasts(recipe: str, devices: Sequence[str], earlier: Earlier) -> Lasts:
    """How long one visit takes.

    Args:
        recipe: A label.
        devices: Identities that it may be on.
        earlier: Of all pairs.
    """
    own = [s for device in devices for s in earlier.get((recipe, device), ())]
    if own:
        return Lasts(
            seconds=median(own), basis=f"median of {count(len(own), 'run')}", measured=True
        )
    alike = [s for (label, _), took in earlier.items() if label == recipe for s in took]
    if alike:
        return Lasts(seconds=median(alike), basis="guess, from other devices", measured=False)
    everything = [s for took in earlier.values() for s in took]
    if everything:
        return Lasts(seconds=median(everything), basis="guess, from other recipes", measured=False)
    return Lasts(seconds=_GUESS_S, basis="guess, nothing was measured yet", measured=False)


def makespan_s(visits: Iterable[Visit], earlier: Earlier) -> float:
    """From the beginning of the night to the end of its last visit, every device at work at once.

    A visit that may go to several devices goes to the one that is free first. A guess of its own
    accord: nothing fails, and no gate has to be waited for.
    """
    free_s: dict[str, float] = {}
    for visit in visits:
        among = (visit.device,) if visit.device else visit.among
        device = min(among, key=lambda identity: free_s.get(identity, 0.0))
        begins_s = max(visit.not_before_s, free_s.get(device, 0.0))
        free_s[device] = begins_s + lasts(visit.recipe, (device,), earlier).seconds
    return max(free_s.values(), default=0.0)
