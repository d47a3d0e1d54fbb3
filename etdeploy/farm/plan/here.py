"""The devices of this machine, as a farm offers them: asked once, for a plan."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import EtdeployError
from etdeploy.devices.base import DeviceFacts, DeviceListing
from etdeploy.devices.registry import list_devices, open_device
from etdeploy.farm.model import Offer

_USABLE = "device"


def offers_here(pools: Mapping[str, Sequence[str]], workspace: Workspace) -> tuple[Offer, ...]:
    """Every device that is connected, and those that a pool names and no list finds.

    Args:
        pools: Names of devices by pool.
        workspace: The cache.

    Raises:
        UsageError: The environment variables of the adb server do not hold an address.
    """
    listed = {listing.name: listing for listing in list_devices(workspace)}
    for name in (name for names in pools.values() for name in names if name not in listed):
        listed[name] = DeviceListing(name=name, kind=name.partition(":")[0], status=_USABLE)
    return tuple(_distinct(_offer(listing, pools, workspace) for listing in listed.values()))


def _offer(
    listing: DeviceListing, pools: Mapping[str, Sequence[str]], workspace: Workspace
) -> Offer:
    name, host = listing.name, platform.node() or "localhost"
    offer = Offer(
        identity=name,
        name=name,
        host=host,
        facts=listing.facts or DeviceFacts(name=name, kind=listing.kind, target=""),
        pools=tuple(pool for pool, names in pools.items() if name in names),
        problem="" if listing.status == _USABLE else f"its state is {listing.status}",
        remedy=listing.remedy or "",
    )
    if offer.problem:
        return offer
    try:
        device = open_device(name, workspace)
    except EtdeployError as error:
        return offer.model_copy(update={"problem": error.message, "remedy": error.remedy or ""})
    try:
        known = {
            "facts": listing.facts or device.facts(),
            # `host` and `qemu` are other machines on other hosts.
            "identity": f"{device.identity}@{host}"
            if device.capabilities.shares_cores
            else device.identity,
            "capabilities": device.capabilities,
        }
        return offer.model_copy(update=known)
    except EtdeployError as error:
        return offer.model_copy(update={"problem": error.message, "remedy": error.remedy or ""})
    finally:
        device.close()


def _distinct(offers: Iterable[Offer]) -> Iterator[Offer]:
    """One of the names that a device has."""
    known: set[str] = set()
    for offer in offers:
        if offer.identity not in known:
            known.add(offer.identity)
            yield offer
