"""A host of the farm, put together: its devices, its child processes, its connection."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.files.leftovers import claimed, remove_tree, sweep
from etdeploy.farm.engine.dask.agent import Agent, Site
from etdeploy.farm.engine.dask.fetch import sweep_parts
from etdeploy.farm.engine.dask.hostwork import Parts
from etdeploy.farm.engine.dask.settings import apply_settings, require_safe, security_of
from etdeploy.farm.model import Offer
from etdeploy.farm.spec.model import Tls

# Stands for the devices that were named, among the pools of the shelf.
_NAMED = "named"


def serve_host(
    name: str,
    scheduler: str,
    tls: Tls | None,
    parts: Callable[[Workspace], Parts],
    tell: Callable[[str], None],
    *,
    insecure: bool = False,
    list_every_s: float = 3.0,
) -> None:
    """Offers devices to the coordinator of each night, until this process is asked to stop.

    Args:
        name: Of this host in the farm.
        scheduler: tls://HOST:PORT of the coordinator, or tcp://HOST:PORT.
        tls: The certificates.
        parts: Gives what is done here.
        tell: Shows the user a line.
        insecure: Whether tcp:// may lead to another machine.
        list_every_s: How often to look for devices.

    Raises:
        UsageError: The address or the certificates do not work, or the coordinator has another
            version.
    """
    require_safe(
        scheduler,
        tls,
        insecure=insecure,
        remedy="tls:// with --tls-ca, --tls-cert and --tls-key; or --insecure on a network that "
        "only you use",
    )
    security = security_of(tls)
    apply_settings()
    workspace = Workspace.opened()
    fetched = workspace.folder(CacheKind.FETCHED)
    fetched.mkdir(exist_ok=True)
    sweep(fetched)
    sweep_parts(workspace)
    # A name that a later start knows to sweep, if this one is killed.
    folder = Path(tempfile.mkdtemp(prefix=".staging-", dir=fetched))
    try:
        with claimed(folder):
            site = Site(name, scheduler, security, folder, tell, list_every_s)
            asyncio.run(Agent(site, parts(workspace)).run())
    finally:
        remove_tree(folder)


def parts_of(workspace: Workspace, host: str, names: Sequence[str], pools: Sequence[str]) -> Parts:
    """What a host does with its real devices.

    Args:
        workspace: The cache.
        host: Its name.
        names: Devices to offer, as `--device` takes them; empty for all that are plugged in, except
            the host itself, which has enough to do.
        pools: Names that its owner gave to these devices.
    """
    from etdeploy.devices.kinds import Recovery
    from etdeploy.devices.registry import recover_device
    from etdeploy.farm.work.child import run_attempt
    from etdeploy.farm.work.offers import Shelf

    shelf = Shelf(workspace, host, {_NAMED: names} if names else {})

    def plugged(busy: Collection[str]) -> tuple[Offer, ...]:
        return tuple(
            offer.model_copy(update={"pools": tuple(pools)})
            for offer in shelf.look(busy)
            if (_NAMED in offer.pools if names else not offer.capabilities.shares_cores)
        )

    def recover(offer: Offer, step: str, tell: Callable[[str], None]) -> Offer:
        recover_device(offer.name, Recovery(step), tell)
        shelf.forget(offer.identity)
        found = {each.identity: each for each in plugged(())}
        gone = offer.model_copy(update={"problem": "it is not plugged in"})
        return found.get(offer.identity, gone)

    return Parts(plugged, run_attempt, recover)
