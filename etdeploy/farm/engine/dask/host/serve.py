"""A host of the farm, put together: its devices, its child processes, its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from etdeploy.cache.kinds import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.files.leftovers import sweep, working_folder
from etdeploy.farm.engine.certificates import check_certificate
from etdeploy.farm.engine.dask.host.agent import Agent, Site
from etdeploy.farm.engine.dask.host.fetch import sweep_parts
from etdeploy.farm.engine.dask.host.work import Parts
from etdeploy.farm.engine.dask.settings import apply_settings, require_safe, security_of
from etdeploy.farm.spec.model import Tls


def serve_host(
    name: str,
    scheduler: str,
    tls: Tls | None,
    parts: Callable[[Workspace, Path], Parts],
    tell: Callable[[str], None],
    *,
    list_every_s: float = 3.0,
) -> None:
    """Offers devices to the coordinator of each night, until this process is asked to stop.

    Args:
        name: Of this host in the farm.
        scheduler: tls://HOST:PORT of the coordinator, or tcp://HOST:PORT.
        tls: The certificates.
        parts: Gives what is done here, with the cache and a folder for records.
        tell: Shows the user a line.
        list_every_s: How often to look for devices.

    Raises:
        UsageError: The address or the certificates do not work, or the coordinator has another
            version.
    """
    require_safe(scheduler, tls)
    security = security_of(tls)
    if tls and (warning := check_certificate(tls)):
        tell(warning)
    apply_settings()
    workspace = Workspace.opened()
    fetched = workspace.folder(CacheKind.FETCHED)
    fetched.mkdir(exist_ok=True)
    sweep(fetched)
    sweep_parts(workspace)
    # A name that a later start knows to sweep, if this one is killed.
    with working_folder(fetched, ".staging-") as folder:
        site = Site(name, scheduler, security, folder, tell, list_every_s)
        asyncio.run(Agent(site, parts(workspace, folder)).run())
