"""Which devices may be used now, on which host, and why the others may not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from etdeploy.farm.model import Offer
from etdeploy.farm.night.model import BarKind, Barred
from etdeploy.farm.night.parts import QuarantinedLike, ReservationLike


@dataclass(frozen=True)
class Present:
    """The devices that are offered, each once.

    Attributes:
        held: The offer that is used, by identity; it may have a problem.
        doubles: Other hosts that offer the same, by identity.
    """

    held: dict[str, Offer]
    doubles: dict[str, tuple[str, ...]]


def present(offers: Iterable[Offer], holders: Mapping[str, str]) -> Present:
    """Chooses a host for each device.

    The host that first offered it keeps it while it offers it without a problem, so that two hosts
    with the same phone do not take turns; the other is there in case.

    Args:
        offers: In the engine's order.
        holders: The host that had each device until now, by identity.
    """
    found: dict[str, list[Offer]] = {}
    for offer in offers:
        found.setdefault(offer.identity, []).append(offer)
    held, doubles = {}, {}
    for identity, same in found.items():
        mine = holders.get(identity)
        held[identity] = min(same, key=lambda offer: (bool(offer.problem), offer.host != mine))
        others = {offer.host for offer in same} - {held[identity].host}
        if others:
            doubles[identity] = tuple(sorted(others))
    return Present(held, doubles)


def barred(
    offers: Mapping[str, Offer],
    seen: Mapping[str, tuple[Offer, datetime]],
    reservations: Collection[ReservationLike],
    quarantined: Collection[QuarantinedLike],
    aside: Mapping[str, str],
) -> dict[str, Barred]:
    """Why devices cannot be used, by identity; those that can are not in it.

    Args:
        offers: That are there now, each device once.
        seen: Every device of this night as it was offered last, and when.
        reservations: Those that hold.
        quarantined: Devices that were set aside.
        aside: Why this night has set devices aside, by identity: the shelf may not have noted it.
    """
    found = {}
    for identity, (last, at) in seen.items():
        offer = offers.get(identity)
        if offer is None:
            found[identity] = Barred(BarKind.AWAY, f"unplugged since {clock(at)}")
        elif offer.problem:
            todo = f" ({' '.join(offer.remedy.split())})" if offer.remedy else ""
            found[identity] = Barred(BarKind.PROBLEM, f"not usable: {offer.problem}{todo}")
        for claim in reservations:
            if claim.is_of(last.lock, last.host, last.name):
                text = f"reserved by {claim.owner} until {clock(claim.until)}"
                found[identity] = Barred(BarKind.RESERVED, text, claim.until)
        reasons = [q.reason for q in quarantined if q.is_of(last.lock, last.host, last.name)]
        if identity in aside:
            reasons.append(aside[identity])
        if reasons:
            found[identity] = Barred(BarKind.QUARANTINED, f"quarantined because {reasons[-1]}")
    return found


def clock(at: datetime) -> str:
    """A date and time as they are here."""
    return f"{at.astimezone():%Y-%m-%d %H:%M %Z}"
